"""What `hypersphere gallery` reads: its command line, pictures, features, unknown people."""

from __future__ import annotations

import argparse
import os
import warnings
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from .._terminal import complain
from ._faces import listed
from ._numbers import Cosine, Count, Name, read_as
from ._output import output_folder
from ._rates import rate

if TYPE_CHECKING:
    from ..evaluation import Gallery, Threshold
    from ..training.run.trained import TrainedRun

EPILOG = """pictures need --run RUN, whose network makes the features; they are aligned crops, or
with --align whole pictures in which the largest face is found and aligned (extra `faces`).
--features FILE (.npz or .safetensors with `features`, and `names` or `labels`) needs no run.
verify and identify exit with 0 if every picture is somebody (of verify: NAME), with 3 if one is
nobody or there is no threshold to decide by, and with 1 if one cannot be read."""
EXIF_ORIENTATION = 0x0112

COMMANDS = {
    "enroll": "add people: --name NAME PICTURE ..., or --images DIR with a folder each",
    "calibrate": "fit the threshold to a false-accept rate, with people who are not enrolled",
    "identify": "who is it?",
    "verify": "is it NAME?",
    "list": "who is enrolled, with how many features",
    "remove": "forget somebody",
}


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
    for name, text in COMMANDS.items():
        p = what.add_parser(name, help=text, description=text, epilog=EPILOG, formatter_class=style)
        p.add_argument(
            "gallery", type=output_folder, metavar="GALLERY", help="folder of the gallery"
        )
        added[name] = p
    for name in ("verify", "remove"):
        added[name].add_argument("name", type=read_as(Name), metavar="NAME", help="the person")
    for name in ("enroll", "calibrate", "identify", "verify"):
        p = added[name]
        if name != "calibrate":
            p.add_argument("pictures", nargs="*", metavar="PICTURE", help="picture files")
        p.add_argument(
            "--run", type=read_as(Name), metavar="RUN", help="run folder of `hypersphere train`"
        )
        p.add_argument(
            "--features", type=read_as(Name), metavar="FILE", help="features instead of pictures"
        )
        p.add_argument("--align", action="store_true", help="find and align the largest face")
    for name in ("identify", "verify"):
        added[name].add_argument(
            "--threshold", type=read_as(Cosine), help="cosine (default: the gallery's)"
        )
        added[name].add_argument("--json", action="store_true", help="print JSON")
    identify = added["identify"]
    identify.add_argument(
        "--top", type=read_as(Count), default=5, help="so many people (default: 5)"
    )
    identify.add_argument(
        "--far",
        type=rate,
        help="take the threshold at this false-accept rate of a whole search "
        "(default: the rate that the gallery was calibrated for)",
    )
    identify.add_argument(
        "--strangers",
        type=read_as(Name),
        metavar="DIR",
        help="with --far, pictures of people who are not enrolled, a folder each (default: those "
        "of `calibrate`, else the people of the run's data who were not trained on)",
    )
    for name in ("enroll", "calibrate"):
        added[name].add_argument(
            "--images", type=read_as(Name), metavar="DIR", help="a folder of pictures per person"
        )
    calibrate = added["calibrate"]
    calibrate.add_argument(
        "--far",
        type=rate,
        default=0.01,
        help="share of searches by unknown people that may end with a name (default: 0.01)",
    )
    enroll = added["enroll"]
    enroll.add_argument("--name", type=read_as(Name), help="whose pictures these are")
    enroll.add_argument(
        "--threshold",
        type=read_as(Cosine),
        default=None,
        help="cosine from which a match counts (default: none; see `gallery calibrate`)",
    )
    enroll.add_argument(
        "--flips",
        choices=["unused", "concatenate"],
        default=None,
        help="of a new gallery: use mirror images too (default: concatenate)",
    )
    return top, added


@dataclass
class Gathered:
    """Samples of a command line.

    Args:
        samples: pictures (n, C, H, W) or features (n, d).
        names: a name for each; may be empty.
        sources: where each comes from.
        failures: pictures that cannot be used -> why.
        aligned: whether they are faces aligned to the template; None of features.
    """

    samples: Any
    names: list[str]
    sources: list[str]
    failures: dict[str, str] = field(default_factory=dict)
    aligned: bool | None = None


def open_gallery(options: argparse.Namespace, create: bool = False) -> Gallery:
    """The gallery on disk with the run's model; or a new one."""
    from ..evaluation import Gallery
    from ..evaluation.gallery.store import clear_unfinished

    run = open_run(options)
    model, transform = (run.model, run.transform) if run else (None, None)
    record = Path(options.gallery) / "gallery.json"
    if create and not os.path.lexists(record):
        if (Path(options.gallery) / "run.json").exists():
            raise ValueError(
                f"{options.gallery} is a run folder: name another folder for the gallery (the run "
                f"is given with --run)"
            )
        clear_unfinished(options.gallery)
        return Gallery(
            model,
            transform=transform,
            flips=options.flips or ("concatenate" if run else "unused"),
            threshold=options.threshold,
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


def read_samples(options: argparse.Namespace) -> Gathered:
    """What the command line gives: features of --features, or pictures."""
    paths, images = list(getattr(options, "pictures", ())), getattr(options, "images", None)
    if options.features:
        if paths or images:
            raise ValueError("--features FILE takes the place of pictures: give one of the two")
        return read_features(options.features)
    names = [getattr(options, "name", None) or "" for _ in paths]
    if images:
        found, people = pictures_in(images)
        paths, names = paths + found, names + people
    return read_pictures(options, paths, names)


def read_features(path: str) -> Gathered:
    """Features of a file, with their names."""
    from ..evaluation.feature_files import load_features, pick, pick_names

    arrays = load_features(path)
    features = pick(arrays, "features", path)
    rows = [f"{path} row {i}" for i in range(len(features))]
    return Gathered(features, pick_names(arrays, path), rows)


def pictures_in(images: str) -> tuple[list[str], list[str]]:
    """Pictures of a folder with a folder per person, and who each is."""
    from ..data.image_folder import list_classes

    if not Path(images).is_dir():
        raise FileNotFoundError(f"no folder of pictures at {images}")
    found, labels, people = list_classes(Path(images))
    return list(map(str, found)), [people[i] for i in labels]


def read_pictures(
    options: argparse.Namespace, paths: Sequence[str], names: Sequence[str]
) -> Gathered:
    """Pictures as the run takes them; those that cannot be used are failures."""
    run = open_run(options)
    if run is None:
        raise ValueError("pictures need --run RUN to become features (or give --features FILE)")
    if not paths:
        raise ValueError("no pictures given")
    missing = [p for p in paths if not Path(p).is_file()]
    if missing and Path(missing[0]).is_dir():
        raise ValueError(f"{missing[0]} is a folder: give its pictures, such as {missing[0]}/*.jpg")
    if missing:
        raise FileNotFoundError(f"no picture at {missing[0]} ({len(missing)} missing in all)")
    if options.align:
        from ._faces import read_faces

        pictures, kept, failures = read_faces(run.shape, paths)
    else:
        pictures, kept, failures = run.read_usable(paths)
    used = [paths[i] for i in kept]
    aligned = bool(options.align) or are_crops(used)
    return Gathered(pictures, [names[i] for i in kept], used, failures, aligned)


def tell_failures(what: str, found: Gathered) -> None:
    """List the pictures that could not be used."""
    if found.failures:
        total = len(found.sources) + len(found.failures)
        share = f"failed to {what}: {len(found.failures)} of {total} pictures"
        complain("gallery", "\n".join([share, *listed(found.failures)]))


def are_crops(paths: Sequence[str]) -> bool:
    """Whether all pictures have the size of what `hypersphere align` writes."""
    from PIL import Image

    from ..evaluation.recognition.alignment import SPHEREFACE_SIZE

    for path in paths:
        with Image.open(path) as picture:  # reads the header only
            turned = picture.getexif().get(EXIF_ORIENTATION, 1) in (5, 6, 7, 8)  # by 90 degrees
            if (picture.size if turned else picture.size[::-1]) != SPHEREFACE_SIZE:
                return False
    return True


def check_alignment(gallery: Gallery, found: Gathered, options: argparse.Namespace) -> None:
    """Warn where aligned faces are to be compared with whole pictures; a new gallery takes it over.

    It is no error: crops of another program have other sizes.
    """
    run = open_run(options)
    if len(gallery) == 0 and found.aligned is False and run is not None and run.aligned:
        warnings.warn(
            f"{run.folder} was trained on faces of `hypersphere align`, and these are whole "
            "pictures: add --align, which finds the faces; scores mean little so",
            stacklevel=2,
        )
    if found.aligned is None or len(gallery) == 0:
        gallery.aligned = found.aligned if len(gallery) == 0 else gallery.aligned
        return
    if gallery.aligned is None or gallery.aligned == found.aligned:
        return
    if gallery.aligned:
        what = "aligned faces, and these are whole pictures: add --align, which finds the faces"
    else:
        what = "pictures as they are, and these are aligned faces"
        what += ": leave --align out" if options.align else " (112 x 96)"
        what += ", or enroll anew with aligned faces"
    warnings.warn(f"{options.gallery} was made of {what}; scores mean little so", stacklevel=2)


def unknown_people(options: argparse.Namespace) -> Gathered:
    """Pictures or features of people to calibrate with, and who they are.

    Of `identify` they come from --strangers only: its pictures and --features are the probes.
    """
    found = None
    if options.what == "identify":
        if options.strangers:
            found = read_pictures(options, *pictures_in(options.strangers))
    elif options.images or options.features:
        found = read_samples(options)
    if found is not None:
        found.names = _numbered(found.names)
        return found
    run = open_run(options)
    if run is None:
        raise ValueError(
            "a threshold needs unknown people: give their pictures, a folder each, with "
            "--images DIR (of `identify`: --strangers DIR) and --run RUN, or their --features FILE"
        )
    pairs = run.loaders.split.pairs
    if pairs is None:
        raise ValueError(
            f"{run.folder} was trained on everybody in its data, so it knows no unknown people: "
            "give pictures of some, a folder each (--images DIR; of `identify`: --strangers DIR)"
        )
    people = [str(name) for name in pairs.dataset.classes]
    names = [people[i] for i in pairs.dataset.labels.tolist()]
    return Gathered(run.check(pairs.dataset, "the run"), names, [])


def check_strangers(found: Gathered, options: argparse.Namespace) -> None:
    """Warn of people whom the run was trained on; `Gallery.calibrate` leaves out the enrolled.

    Only of pictures and features that were given: the run's own people are known to be unseen.
    """
    from ..evaluation.gallery.scores import some

    if not found.sources:
        return
    names = dict.fromkeys(found.names)
    run = open_run(options)
    trained = set(run.classes) if run else set()
    seen = [name for name in names if name in trained]
    if seen:
        warnings.warn(
            f"{len(seen)} of {len(names)} people to calibrate with have names of people whom the "
            f"run was trained on ({some(seen)}): it tells those apart better than unknown "
            "people, and the threshold comes out too low; take people whom it has never seen",
            stacklevel=2,
        )


def _numbered(names: Sequence[str]) -> list[str]:
    """Names, with a number for each that has none: nobody knows who two of them are."""
    return [name or f"row {i}" for i, name in enumerate(names)]


def threshold_at(options: argparse.Namespace, gallery: Gallery) -> Threshold:
    """The threshold of `identify --far`."""
    if options.strangers is None and gallery.decision.impostors is not None:
        return gallery.decision.at(options.far, len(gallery.people), len(gallery))
    found = unknown_people(options)
    tell_failures("calibrate", found)
    check_strangers(found, options)
    check_alignment(gallery, found, options)
    return gallery.calibrate(found.samples, found.names, options.far)
