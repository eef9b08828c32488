"""`hypersphere align PICTURES OUT`: the largest face of every picture, cropped and aligned."""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Sequence
from pathlib import Path

from .._terminal import complain, printable
from ._faces import NO_FACE, listed, read_faces
from ._numbers import Name, Share, read_as
from ._output import output_folder

SIZE = (112, 96)  # of the SphereFace template


def main(argv: Sequence[str]) -> int:
    parser = argparse.ArgumentParser(
        prog="hypersphere align",
        description="Find the largest face of every picture, align it to the template of "
        "112 x 96 and write it to the same place below OUT. Needs the extra `faces`. Pictures "
        "without a face, or that cannot be read, are listed and left out.",
    )
    parser.add_argument(
        "pictures", type=read_as(Name), metavar="PICTURES", help="a picture, or a folder of them"
    )
    parser.add_argument(
        "out", type=output_folder, metavar="OUT", help="new folder of the crops (PNG)"
    )
    parser.add_argument(
        "--limit",
        type=read_as(Share),
        default=0.5,
        help="share of the pictures that may be left out (default: 0.5)",
    )
    options = parser.parse_args(list(argv))
    try:
        return align(Path(options.pictures), Path(options.out), options.limit)
    except (ValueError, OSError) as error:
        complain("align", error)
        return 1


def align(source: Path, out: Path, limit: float) -> int:
    import torch
    from PIL import Image

    from ..data.image_files import ALIGNMENT, list_pictures

    if not source.exists():
        raise FileNotFoundError(f"no picture or folder of pictures at {source}")
    if source.is_file():
        paths, source = [str(source)], source.parent
    elif out.resolve() == source.resolve() or source.resolve() in out.resolve().parents:
        raise ValueError(f"{out} lies in {source}: choose a folder beside it")
    else:
        paths = list_pictures(source)
    if not paths:
        raise FileNotFoundError(f"no pictures in {source}")
    targets = crop_names(paths, source)
    failures: dict[str, str] = {}
    for start in range(0, len(paths), 64):  # crops are small; whole pictures are read one by one
        part = paths[start : start + 64]
        try:
            faces, kept, failed = read_faces((3, *SIZE), part)
        except ValueError as error:
            if len(paths) <= 64:
                raise
            failed, kept = dict.fromkeys(part, str(error)), []
            faces = torch.empty(0, 3, *SIZE, dtype=torch.uint8)
        failures |= failed
        for place, face in zip(kept, faces, strict=True):
            target = out / targets[part[place]]
            target.parent.mkdir(parents=True, exist_ok=True)
            Image.fromarray(face.permute(1, 2, 0).numpy()).save(target)
        if sys.stderr.isatty():
            print(f"\raligned {start + len(part):,} / {len(paths):,}", end="", file=sys.stderr)
    print(f"aligned {len(paths) - len(failures)} of {len(paths)} pictures: {printable(out)}")
    if failures:
        faceless = sum(NO_FACE in reason for reason in failures.values())
        count = f"left out {len(failures)}: {faceless} without a face, "
        count += f"{len(failures) - faceless} that cannot be read"
        complain("align", "\n".join([count, *listed(failures)]))
    if len(failures) > limit * len(paths):
        raise ValueError(
            f"{len(failures)} of {len(paths)} pictures cannot be used, more than --limit "
            f"{limit:g} allows"
        )
    record = json.dumps({"by": "hypersphere align", "size": SIZE})
    (out / ALIGNMENT).write_text(record + "\n", encoding="utf-8")  # `train` takes it over
    return 0


def crop_names(paths: Sequence[str], source: Path) -> dict[str, Path]:
    """Where the crop of each picture goes: a.png, and a.jpg.png where a.png is another's.

    Args:
        paths: the pictures.
        source: the folder they lie in.

    Returns:
        Path of a picture -> that of its crop below the new folder, each once.
    """
    found: dict[str, Path] = {}
    taken: set[str] = set()
    for path in sorted(paths, key=lambda p: not p.endswith(".png")):  # a.png stays a.png
        name = Path(path).relative_to(source)
        target, more = name.with_suffix(".png"), name.name
        while str(target).lower() in taken:  # many file systems do not tell A from a
            target, more = name.with_name(f"{more}.png"), f"{more}.png"
        taken.add(str(target).lower())
        found[path] = target
    return found
