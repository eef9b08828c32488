"""Image folders: one folder per class, with or without a folder per part above them."""

from __future__ import annotations

import os
from collections.abc import Collection, Sequence
from pathlib import Path

import torch

from .dataset import ArrayDataset, Dataset, Split
from .errors import MissingData, missing
from .images import EXTENSIONS, ImageFiles, Size, list_pictures, make_dataset
from .sources import SOURCES
from .splits import choose_test

PARTS = {"train": ("train",), "validation": ("val", "validation"), "test": ("test",)}


def load_folder(
    root: Path,
    path: str = ".",
    size: Size = None,
    mode: str | None = None,
    exclude: Collection[str] = (),
    test_fraction: float = 0.25,
    seed: int = 0,
    lazy: bool = False,
) -> Split:
    """Pictures in `root`/`path`.

    Layout 1: {train, val, test}/CLASS/*.jpg. Where only one of val and test is there, it is the
    test part. Layout 2: CLASS/*.jpg, of which `test_fraction` of every class is drawn for testing.
    `exclude`: class names to leave out, as section 2.3.6 leaves out of the training faces everybody
    who appears in a test set. `size`, `mode`: see `read_image`. `lazy=True` leaves the pictures in
    their files (`ImageFiles`).
    """
    base = root / path
    if not base.is_dir():
        raise missing("the image folder", base, SOURCES["folder"].where)
    parts = {
        part: next((base / name for name in names if (base / name).is_dir()), None)
        for part, names in PARTS.items()
    }
    if parts["train"] is None:
        paths, labels, classes = list_classes(base, exclude)
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
    paths, labels, classes = list_classes(parts["train"], exclude)
    train = make_dataset(paths, labels, classes, size, mode, lazy)
    test = _other_part(parts["test"], train, exclude, size, mode, lazy)
    validation = parts["validation"]
    return Split(
        train,
        test,
        None if validation is None else _other_part(validation, train, exclude, size, mode, lazy),
    )


def list_classes(
    folder: Path, exclude: Collection[str] = ()
) -> tuple[list[str], list[int], list[str]]:
    """Paths, labels and class names of CLASS/*.jpg, both in alphabetical order."""
    with os.scandir(folder) as entries:
        names = sorted(e.name for e in entries if e.is_dir() and not e.name.startswith("."))
    paths: list[str] = []
    labels: list[int] = []
    classes: list[str] = []
    left_out = set(exclude)
    for name in names:
        pictures = [] if name in left_out else list_pictures(folder / name)
        if pictures:  # a folder without pictures is no class
            labels.extend([len(classes)] * len(pictures))
            classes.append(name)
            paths.extend(pictures)
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
) -> Dataset:
    """A part with the classes, and so the numbers, of the training part."""
    paths, labels, names = list_classes(folder, exclude)
    number = {name: i for i, name in enumerate(train.classes)}
    unknown: Sequence[str] = [name for name in names if name not in number]
    if unknown:
        raise ValueError(
            f"{folder} has {len(unknown)} classes that the training part lacks, e.g. {unknown[0]!r}"
        )
    if mode is None:  # grey or RGB is decided once, by the training part
        if isinstance(train, ImageFiles):
            mode = train.mode
        elif isinstance(train, ArrayDataset):
            mode = "L" if train.shape[0] == 1 else "RGB"
    labels = [number[names[label]] for label in labels]
    return make_dataset(paths, labels, list(train.classes), size, mode, lazy)
