"""`hypersphere gallery enroll | identify | verify | list | remove`: a gallery on disk."""

from __future__ import annotations

import argparse
import json
import os
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from .._terminal import complain, printable

if TYPE_CHECKING:
    from torch import Tensor

    from ..evaluation import Gallery
    from ..training.run.trained import TrainedRun

NOT_THE_SAME = 3  # exit code of `verify` and `identify` when the answer is no

EPILOG = """pictures need --run RUN, whose network makes the features; they are aligned crops, or
with --align whole pictures in which the largest face is found and aligned (extra `faces`).
--features FILE (.npz or .safetensors with `features`, and `names` or `labels`) needs no run.
verify and identify exit with 3 when nobody matches."""


def main(argv: Sequence[str]) -> int:
    options = parse(list(argv))
    from ..training.run.checkpoint import RunError

    try:
        return COMMANDS[options.what](options)
    except (ValueError, OSError, RunError) as error:
        complain(f"gallery {options.what}", error)
        return 1


def parse(arguments: list[str]) -> argparse.Namespace:
    """The command line, where pictures may also stand behind options: `--name ada a.jpg`."""
    top, parts = parsers()
    if not arguments or arguments[0] not in parts:
        return top.parse_args(arguments)
    what, *rest = arguments
    return parts[what].parse_intermixed_args(rest, argparse.Namespace(what=what))


def parsers() -> tuple[argparse.ArgumentParser, dict[str, argparse.ArgumentParser]]:
    """The whole parser, and one per subcommand."""
    style = argparse.RawDescriptionHelpFormatter
    top = argparse.ArgumentParser(
        prog="hypersphere gallery",
        description="Known people (or things) by their features: add some, then ask.",
        epilog=EPILOG,
        formatter_class=style,
    )
    what = top.add_subparsers(dest="what", required=True, metavar="WHAT")
    added = {}
    for name, text in {
        "enroll": "add people: --name NAME PICTURE ..., or --images DIR with a folder each",
        "identify": "who is it?",
        "verify": "is it NAME?",
        "list": "who is enrolled, with how many features",
        "remove": "forget somebody",
    }.items():
        p = what.add_parser(name, help=text, description=text, epilog=EPILOG, formatter_class=style)
        p.add_argument("gallery", metavar="GALLERY", help="folder of the gallery")
        added[name] = p
    for name in ("verify", "remove"):
        added[name].add_argument("name", metavar="NAME", help="the person")
    for name in ("enroll", "identify", "verify"):
        p = added[name]
        p.add_argument("pictures", nargs="*", metavar="PICTURE", help="picture files")
        p.add_argument("--run", metavar="RUN", help="run folder of `hypersphere train`")
        p.add_argument("--features", metavar="FILE", help="features instead of pictures")
        p.add_argument("--align", action="store_true", help="find and align the largest face")
    for name in ("identify", "verify"):
        added[name].add_argument("--threshold", type=float, help="cosine (default: the gallery's)")
        added[name].add_argument("--json", action="store_true", help="print JSON")
    added["identify"].add_argument("--top", type=int, default=5, help="so many people (default: 5)")
    enroll = added["enroll"]
    enroll.add_argument("--name", help="whose pictures these are")
    enroll.add_argument("--images", metavar="DIR", help="a folder of pictures per person")
    enroll.add_argument(
        "--threshold",
        type=float,
        default=None,
        help="cosine from which a match counts (default: 0.4)",
    )
    enroll.add_argument(
        "--flips",
        choices=["unused", "concatenate"],
        default=None,
        help="of a new gallery: use mirror images too (default: concatenate)",
    )
    return top, added


def open_gallery(options: argparse.Namespace, create: bool = False) -> Gallery:
    """The gallery on disk with the run's model; or a new one."""
    from ..evaluation import Gallery
    from ..evaluation.gallery.store import clear_unfinished

    run = open_run(options)
    model, transform = (run.model, run.transform) if run else (None, None)
    record = Path(options.gallery) / "gallery.json"
    if create and not os.path.lexists(record):
        clear_unfinished(options.gallery)
        return Gallery(
            model,
            transform=transform,
            flips=options.flips or ("concatenate" if run else "unused"),
            threshold=0.4 if options.threshold is None else options.threshold,
        )
    gallery = Gallery.load(options.gallery, model, transform=transform)
    if create and options.flips not in (None, gallery.flips):
        raise ValueError(f"{options.gallery} was made with --flips {gallery.flips}")
    if create and options.threshold is not None:
        gallery.threshold = options.threshold
    return gallery


def open_run(options: argparse.Namespace) -> TrainedRun | None:
    from ..training.run.trained import TrainedRun

    if getattr(options, "run", None) is None:
        return None
    if not hasattr(options, "opened"):
        options.opened = TrainedRun.open(options.run)
    return options.opened  # type: ignore[no-any-return]


def read_samples(options: argparse.Namespace) -> tuple[Tensor, list[str], list[str]]:
    """(pictures or features, a name for each, where each comes from)."""
    if options.features:
        from ..evaluation.feature_files import load_features, load_names, pick

        features = pick(load_features(options.features), "features", options.features)
        names = load_names(options.features)
        return features, names, [f"{options.features} row {i}" for i in range(len(features))]
    run = open_run(options)
    if run is None:
        raise ValueError("pictures need --run RUN to become features (or give --features FILE)")
    paths, names = _listed(options)
    missing = [p for p in paths if not Path(p).is_file()]
    if missing:
        raise FileNotFoundError(f"no picture at {missing[0]} ({len(missing)} missing in all)")
    pictures = _aligned(run, paths) if options.align else run.read(paths)
    return pictures, names, paths


def _listed(options: argparse.Namespace) -> tuple[list[str], list[str]]:
    paths = list(options.pictures)
    names = [getattr(options, "name", None) or "" for _ in paths]
    if getattr(options, "images", None):
        from ..data.image_folder import list_classes

        if not Path(options.images).is_dir():
            raise FileNotFoundError(f"no folder of pictures at {options.images}")
        found, labels, people = list_classes(Path(options.images))
        paths += list(map(str, found))
        names += [people[i] for i in labels]
    if not paths:
        raise ValueError("no pictures given")
    return paths, names


def _aligned(run: TrainedRun, paths: Sequence[str]) -> Tensor:
    """Faces found, aligned and brought to the size and color of the run."""
    import torch
    from torch.nn.functional import interpolate

    from ..data.image_files import read_image
    from ..evaluation import YuNet, detect_and_align

    detector, faces = YuNet(), []
    for path in paths:
        try:
            face = detect_and_align(torch.from_numpy(read_image(path, mode="RGB").copy()), detector)
        except ValueError as error:
            raise ValueError(f"{path}: {error}") from None
        faces.append(face.float())
    batch = torch.stack(faces)
    channels, height, width = run.shape
    if channels == 1:  # the luminance of ITU-R 601, as Pillow's "L"
        batch = (batch * torch.tensor([0.299, 0.587, 0.114]).view(3, 1, 1)).sum(1, keepdim=True)
    if batch.shape[-2:] != (height, width):
        batch = interpolate(batch, (height, width), mode="bilinear", antialias=True)
    return batch.round().clamp(0, 255).to(torch.uint8)


def enroll(options: argparse.Namespace) -> int:
    from ..evaluation.gallery.store import locked

    if options.pictures and not options.name:
        raise ValueError("whose pictures are these? give --name NAME, or --images DIR")
    samples, names, _ = read_samples(options)
    with locked(options.gallery):
        gallery = open_gallery(options, create=True)
        gallery.enroll_many(names, samples)
        gallery.save(options.gallery)
    print(
        f"enrolled {len(names)} of {len(set(names))}: {printable(options.gallery)} now holds "
        f"{len(gallery)} features of {len(gallery.people)} people"
    )
    return 0


def identify(options: argparse.Namespace) -> int:
    gallery = open_gallery(options)
    samples, _, sources = read_samples(options)
    answers = gallery.identify_many(samples, options.top, options.threshold)
    if options.json:
        record: list[dict[str, Any]] = [
            {"source": source, "matches": [vars(m) for m in matches]}
            for source, matches in zip(sources, answers, strict=True)
        ]
        print(json.dumps(record, indent=1))
    else:
        for source, matches in zip(sources, answers, strict=True):
            shown = "  ".join(f"{printable(m.name)} {m.score:.4f}" for m in matches)
            print(f"{printable(source)}: {shown or 'unknown'}")
    return 0 if any(answers) else NOT_THE_SAME


def verify(options: argparse.Namespace) -> int:
    gallery = open_gallery(options)
    samples, _, sources = read_samples(options)
    answers = [gallery.verify(options.name, s, options.threshold) for s in samples]
    if options.json:
        record = [
            {"source": source, "name": options.name, "same": same, "score": score}
            for source, (same, score) in zip(sources, answers, strict=True)
        ]
        print(json.dumps(record, indent=1))
    else:
        for source, (same, score) in zip(sources, answers, strict=True):
            answer = "yes" if same else "no"
            print(f"{printable(source)}: {answer}, {printable(options.name)} {score:.4f}")
    return 0 if all(same for same, _ in answers) else NOT_THE_SAME


def list_people(options: argparse.Namespace) -> int:
    gallery = open_gallery(options)
    for person, count in Counter(gallery.names).items():  # in the order of enrollment
        print(f"{printable(person)}  {count}")
    return 0


def remove(options: argparse.Namespace) -> int:
    from ..evaluation.gallery.store import locked

    with locked(options.gallery):
        gallery = open_gallery(options)
        gone = gallery.remove(options.name)
        gallery.save(options.gallery)
    print(f"removed {gone} feature{'s' if gone > 1 else ''} of {printable(options.name)}")
    return 0


COMMANDS = {
    "enroll": enroll,
    "identify": identify,
    "verify": verify,
    "list": list_people,
    "remove": remove,
}
