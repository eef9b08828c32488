"""Image folders: one folder per class (or person), with or without a folder per part above them."""

from __future__ import annotations

import os
import warnings
from collections.abc import Collection, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Literal

import torch

from .._reading import read_json
from ..registry import register
from .dataset import ArrayDataset, Dataset, Split
from .errors import MissingData, missing
from .image_files import ALIGNMENT, EXTENSIONS, ImageFiles, Size, list_pictures, make_dataset
from .open_set_folder import Read, open_set_folder
from .sources import SOURCES
from .splits import choose_test
from .unreadable import UnreadablePictures

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
    unreadable: float = 0.05,
    protocol: Literal["closed_set", "open_set"] = "closed_set",
    people: str | None = None,
    unseen: float = 0.4,
    min_images: int = 2,
) -> Split:
    """Pictures in folders, one per class.

    Layout 1: {train, val, test}/CLASS/*.jpg. Where only one of val and test is there, it is the
    test part. Layout 2: CLASS/*.jpg, of which a share of every class is drawn for testing.

    With the protocol "open_set" (layout 2) the split is by person: some are trained on, others are
    for verification pairs and thresholds (`pairs`), and others for the final judgment alone
    (`reserved`); see `divide_people`.

    Args:
        root: the folder of the pictures, or one above it.
        path: the folder of the pictures, below `root`. Default: `root` itself.
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
        unreadable: share of the pictures that may be unreadable; they are listed in a warning and
            left out. More than that is an error.
        protocol: "closed_set" or "open_set".
        people: with "open_set", a JSON file that says who is used for what. Where it is missing the
            people are drawn and the file is written; a run keeps them in split.json.
        unseen: with "open_set", share of the people who are not trained on.
        min_images: with "open_set", pictures that a person needs to be trained on.

    Returns:
        Training and test part, and a validation part where there are val and test; pairs and
        reserved people with the protocol "open_set". Its notes say which pictures were left out,
        and take over the alignment.json that `hypersphere align` writes.
    """
    if largest is not None and largest < 1:
        raise ValueError(f"largest is a number of classes, 1 or more; got {largest}")
    if protocol not in ("closed_set", "open_set"):
        raise ValueError(f"protocol is 'closed_set' or 'open_set'; got {protocol!r}")
    base = root / Path(path).expanduser()
    if not base.is_dir():
        raise missing("the image folder", [base.absolute()], SOURCES["folder"].where)
    skipped = UnreadablePictures(unreadable)

    def read(paths: Sequence[str], labels: Sequence[int], classes: Sequence[str]) -> Dataset:
        return make_dataset(paths, labels, classes, size, mode, lazy, skipped)

    parts = {
        part: next((base / name for name in names if (base / name).is_dir()), None)
        for part, names in PARTS.items()
    }
    if parts["train"] is None:
        listed = list_classes(base, exclude, largest)
        if protocol == "open_set":
            split = open_set_folder(listed, read, people, unseen, min_images, test_fraction, seed)
        else:
            split = _closed_set(listed, read, test_fraction, seed)
        return _noted(split, skipped, base)
    if protocol == "open_set":
        raise ValueError(
            f"{base} is divided into parts already (train/CLASS/*.jpg); the protocol 'open_set' "
            "divides people itself: give the folder that holds a folder per person"
        )
    if parts["test"] is None:
        parts["test"], parts["validation"] = parts["validation"], None
    if parts["test"] is None:
        raise missing("the test part", [base / "val", base / "test"], SOURCES["folder"].where)
    paths, labels, classes = list_classes(parts["train"], exclude, largest)
    train = read(paths, labels, classes)
    options = (train, exclude, size, mode, lazy, largest is not None, skipped)
    test = _other_part(parts["test"], *options)
    validation = parts["validation"]
    other = None if validation is None else _other_part(validation, *options)
    return _noted(Split(train, test, other), skipped, base)


def _noted(split: Split, skipped: UnreadablePictures, base: Path) -> Split:
    """The split, after a warning of what was left out; its notes say how faces were aligned."""
    skipped.report()
    notes = dict(split.notes)
    if (base / ALIGNMENT).is_file():
        notes["alignment"] = read_json(base / ALIGNMENT)
    if skipped.paths:
        notes["unreadable"] = skipped.paths
        split = _without_empty_classes(split)
    return replace(split, notes=notes)


def _without_empty_classes(split: Split) -> Split:
    """The split without the classes of which no picture to train on could be read: a head would
    keep a direction for them that nothing is ever near to.
    """
    counts = torch.bincount(split.train.labels, minlength=split.num_classes)
    if bool((counts > 0).all()):
        return split
    kept = (counts > 0).nonzero().flatten()
    lost = [repr(split.classes[i]) for i in (counts == 0).nonzero().flatten().tolist()]
    warnings.warn(
        f"{', '.join(lost[:5])} ({len(lost)} of {split.num_classes} classes) have no picture to "
        "train on that can be read, and are no class of this set",
        stacklevel=2,
    )
    number = torch.full((split.num_classes,), -1)
    number[kept] = torch.arange(len(kept))
    classes = [split.classes[i] for i in kept.tolist()]

    def renumbered(part: Dataset) -> Dataset:
        part = part.subset((number[part.labels] >= 0).nonzero().flatten())
        return replace(part, labels=number[part.labels], classes=classes)  # type: ignore[type-var]

    other = None if split.validation is None else renumbered(split.validation)
    return replace(
        split, train=renumbered(split.train), test=renumbered(split.test), validation=other
    )


def _closed_set(
    listed: tuple[list[str], list[int], list[str]], read: Read, test_fraction: float, seed: int
) -> Split:
    """A share of every class for testing."""
    paths, labels, classes = listed
    chosen = choose_test(torch.tensor(labels), test_fraction, seed).tolist()
    halves = []
    for wanted in (False, True):
        index = [i for i, is_test in enumerate(chosen) if is_test == wanted]
        if not index:
            raise ValueError(
                f"every class of {Path(paths[0]).parent.parent} has a single picture, so that none "
                "is left for testing: give more pictures, or the protocol 'open_set'"
            )
        halves.append(read([paths[i] for i in index], [labels[i] for i in index], classes))
    return Split(train=halves[0], test=halves[1])


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
    for name, found in pictures.items():
        _check_depth(folder, name, found)
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


def _check_depth(folder: Path, name: str, paths: Sequence[str]) -> None:
    """Refuse folders in the folder of a class: they may be of several people, who would be one."""
    deep = [path for path in paths if Path(path).parent != folder / name]
    if deep:
        raise ValueError(
            f"{deep[0]} lies too deep: the folder of a class (or person) holds its pictures, such "
            f"as {folder / name / 'a.jpg'}, and no folders. If the folders in {folder / name} are "
            f"people, give {Path(deep[0]).parent.parent} in place of {folder}; if they are all "
            f"{name!r}, move the pictures up into {folder / name}"
        )


def _other_part(
    folder: Path,
    train: Dataset,
    exclude: Collection[str],
    size: Size,
    mode: str | None,
    lazy: bool,
    chosen: bool,
    unreadable: UnreadablePictures,
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
    pictures, numbers = [p for p, _ in known], [k for _, k in known]
    return make_dataset(pictures, numbers, list(train.classes), size, mode, lazy, unreadable)
