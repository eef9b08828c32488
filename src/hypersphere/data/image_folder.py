"""Image folders: one folder per class, with or without a folder per part above them."""

from __future__ import annotations

import os
from collections.abc import Collection, Sequence
from pathlib import Path

import torch

from ..registry import register
from .dataset import ArrayDataset, Dataset, Split
from .errors import MissingData, missing
from .image_files import EXTENSIONS, ImageFiles, Size, list_pictures, make_dataset
from .sources import SOURCES
from .splits import choose_test

PARTS = {"train": ("train",), "validation": ("val", "validation"), "test": ("test",)}


@register("data", "folder")
def load_folder(
    root: Path,
    path: str = ".",
    size: Size = None,
    mode: str | None = None,
    exclude: Collection[str] = (),
    test_fraction: float = 0.25,
    seed: int = 0,
    lazy: bool = False,
    largest: int | None = None,
) -> Split:
    """Pictures in folders, one per class.

    Layout 1: {train, val, test}/CLASS/*.jpg. Where only one of val and test is there, it is the
    test part. Layout 2: CLASS/*.jpg, of which a share of every class is drawn for testing.

    Args:
        root: the data folder.
        path: the folder of the pictures, below `root`.
        size: bring the pictures to (height, width), or a square of this side, bilinear. Default: as
            in the files.
        mode: "L" (gray) or "RGB". Default: gray pictures stay gray, all others become RGB.
        exclude: class names to leave out, as section 2.3.6 leaves out of the training faces
            everybody who appears in a test set.
        test_fraction: share of every class for testing, in layout 2.
        seed: seed of the choice.
        lazy: leave the pictures in their files (`ImageFiles`).
        largest: only this many classes, those with most pictures (in the training part, where there
            is one), as Fig. 2.10 takes six people.

    Returns:
        Training and test part, and a validation part where there are val and test.
    """
    if largest is not None and largest < 1:
        raise ValueError(f"largest is a number of classes, 1 or more; got {largest}")
    base = root / path
    if not base.is_dir():
        raise missing("the image folder", base, SOURCES["folder"].where)
    parts = {
        part: next((base / name for name in names if (base / name).is_dir()), None)
        for part, names in PARTS.items()
    }
    if parts["train"] is None:
        paths, labels, classes = list_classes(base, exclude, largest)
        chosen = choose_test(torch.tensor(labels), test_fraction, seed).tolist()
        halves: list[Dataset] = []
        for wanted in (False, True):
            index = [i for i, is_test in enumerate(chosen) if is_test == wanted]
            halves.append(
                make_dataset(
                    [paths[i] for i in index], [labels[i] for i in index], classes, size, mode, lazy
                )
            )
        return Split(train=halves[0], test=halves[1])
    if parts["test"] is None:
        parts["test"], parts["validation"] = parts["validation"], None
    if parts["test"] is None:
        raise missing("the test part", [base / "val", base / "test"], SOURCES["folder"].where)
    paths, labels, classes = list_classes(parts["train"], exclude, largest)
    train = make_dataset(paths, labels, classes, size, mode, lazy)
    options = (train, exclude, size, mode, lazy, largest is not None)
    test = _other_part(parts["test"], *options)
    validation = parts["validation"]
    return Split(train, test, None if validation is None else _other_part(validation, *options))


def list_classes(
    folder: Path, exclude: Collection[str] = (), largest: int | None = None
) -> tuple[list[str], list[int], list[str]]:
    """Paths, labels and class names of CLASS/*.jpg, both in alphabetical order; of the `largest`
    classes only, if a number is given.
    """
    with os.scandir(folder) as entries:
        names = sorted(e.name for e in entries if e.is_dir() and not e.name.startswith("."))
    left_out = set(exclude)
    pictures = {n: list_pictures(folder / n) for n in names if n not in left_out}
    pictures = {n: found for n, found in pictures.items() if found}  # without any, no class
    if largest is not None:
        if len(pictures) < largest:
            raise ValueError(f"{folder} has {len(pictures)} classes; largest={largest} are wanted")
        kept = sorted(pictures, key=lambda n: (-len(pictures[n]), n))[:largest]
        pictures = {n: pictures[n] for n in sorted(kept)}
    classes = list(pictures)
    paths = [path for found in pictures.values() for path in found]
    labels = [i for i, found in enumerate(pictures.values()) for _ in found]
    if not paths:
        raise MissingData(
            f"no pictures in class folders in {folder}: expected a folder for each class (or "
            f"person) with pictures in it, such as {folder / 'NAME' / 'a.jpg'}; pictures end in "
            f"{' '.join(EXTENSIONS)}"
        )
    return paths, labels, classes


def _other_part(
    folder: Path,
    train: Dataset,
    exclude: Collection[str],
    size: Size,
    mode: str | None,
    lazy: bool,
    chosen: bool = False,
) -> Dataset:
    """A part with the classes, and so the numbers, of the training part; where those were `chosen`
    among others, the others are left out.
    """
    paths, labels, names = list_classes(folder, exclude)
    number = {name: i for i, name in enumerate(train.classes)}
    unknown: Sequence[str] = [name for name in names if name not in number]
    if unknown and not chosen:
        raise ValueError(
            f"{folder} has {len(unknown)} classes that the training part lacks, e.g. {unknown[0]!r}"
        )
    known = [
        (p, number[names[k]]) for p, k in zip(paths, labels, strict=True) if names[k] in number
    ]
    if not known:
        raise ValueError(f"{folder} has no picture of the training part's classes")
    if mode is None:  # gray or RGB is decided once, by the training part
        if isinstance(train, ImageFiles):
            mode = train.mode
        elif isinstance(train, ArrayDataset):
            mode = "L" if train.shape[0] == 1 else "RGB"
    return make_dataset(
        [p for p, _ in known], [k for _, k in known], list(train.classes), size, mode, lazy
    )
