"""mini-ImageNet style sets: train.csv, val.csv, test.csv (filename,label) and their pictures."""

from __future__ import annotations

import csv
from pathlib import Path

from .._reading import read_lines
from ..registry import register
from .dataset import Dataset, Split
from .errors import damaged, missing
from .files import find_folder
from .image_files import Size, make_dataset
from .sources import SOURCES


@register("data", "mini-imagenet")
def load_mini_imagenet(
    root: Path, size: Size = 84, images: str = "images", mode: str = "RGB", lazy: bool = False
) -> Split:
    """The three parts of a few-shot set; no class is in two of them (64, 16 and 20 of 100).

    Args:
        root: the data folder.
        size: (height, width) of the pictures, or the side of a square.
        images: folder of the pictures; they are FILENAME or LABEL/FILENAME in it.
        mode: "L" (gray) or "RGB".
        lazy: leave the pictures in their files (`ImageFiles`).

    Returns:
        Training, validation and test part.
    """
    source = SOURCES["mini-imagenet"]
    lists = find_folder(root, source, ["train.csv", "val.csv", "test.csv"])
    parts: list[Dataset] = []
    for path in lists:
        rows = _read_rows(path, source.where)
        classes = sorted({label for _, label in rows})
        number = {label: i for i, label in enumerate(classes)}
        base = path.parent / images
        files = [_place(base, file, label, source.how(root)) for file, label in rows]
        labels = [number[label] for _, label in rows]
        parts.append(make_dataset(files, labels, classes, size, mode, lazy))
    shared = set(parts[0].classes) & (set(parts[1].classes) | set(parts[2].classes))
    if shared:
        raise ValueError(
            f"{sorted(shared)[0]!r} is a training class and in val.csv or test.csv too"
        )
    return Split(train=parts[0], validation=parts[1], test=parts[2])


def _read_rows(path: Path, where: str) -> list[tuple[str, str]]:
    reader = csv.DictReader(read_lines(path))
    try:
        if not {"filename", "label"} <= set(reader.fieldnames or ()):
            raise damaged(path, "columns filename,label", f"{reader.fieldnames}", where)
        table = list(reader)
    except csv.Error as error:
        raise damaged(path, "lines of filename,label", str(error), where) from None
    rows = [(row["filename"], row["label"]) for row in table]
    # Under the key None csv keeps what has no column.
    if (
        not rows
        or any(not file or not label for file, label in rows)
        or any(None in row for row in table)
    ):
        raise damaged(path, "a filename and a label on every line", f"{len(rows)} lines", where)
    return rows


def _place(base: Path, file: str, label: str, where: str) -> str:
    for path in (base / file, base / label / file):
        if path.exists():
            return str(path)
    raise missing("the picture", [base / file, base / label / file], where)
