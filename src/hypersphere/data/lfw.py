"""LFW: a folder per person, and verification pairs in `pairs.txt`."""

from __future__ import annotations

from pathlib import Path

import torch

from .._reading import read_lines
from ..registry import register
from ._random import generator
from .checksums import verify_files
from .dataset import ArrayDataset, Split
from .errors import damaged, missing
from .files import find_folder
from .image_files import Size, read_images
from .image_folder import list_classes
from .pair_lists import parse_lfw_header, parse_lfw_pairs
from .sources import SOURCES
from .splits import closed_set
from .verification_pairs import Pairs, draw_pairs


@register("data", "lfw")
def load_lfw(
    root: Path,
    protocol: str = "pairs",
    size: Size = None,
    mode: str | None = None,
    pairs_file: str = "pairs.txt",
    min_images: int = 10,
    unseen_fraction: float = 0.2,
    test_fraction: float = 0.25,
    folds: int = 10,
    per_fold: int = 300,
    seed: int = 0,
    verify: bool = False,
) -> Split:
    """LFW, or any people folder in its layout: NAME/NAME_0001.jpg.

    Args:
        root: the data folder.
        protocol: "pairs": the published verification pairs; `pairs` point into `test`, the pictures
            that appear in them, and `train` is everybody who appears in none, so it may be trained
            on. "open_set": for training on LFW itself; some people are drawn for verification
            pairs, the others are divided into `train` and `test`.
        size: bring the pictures to (height, width), or a square of this side, bilinear. Default: as
            in the files.
        mode: "L" (gray) or "RGB". Default: gray pictures stay gray, all others become RGB.
        pairs_file: the list of pairs, in the folder of the people or in `root`.
        min_images: people with fewer pictures are left out of `train` and `test`, for "open_set".
        unseen_fraction: share of the people with two or more pictures that is drawn for the pairs,
            for "open_set".
        test_fraction: share of every person's pictures for testing, for "open_set".
        folds: folds of the drawn pairs, for "open_set".
        per_fold: drawn pairs of one person, and of two, per fold.
        seed: seed of all that is drawn.
        verify: compare pairs.txt with its published checksum.

    Returns:
        Training and test part, with `pairs`.
    """
    if protocol not in ("pairs", "open_set"):
        raise ValueError(f"protocol is 'pairs' or 'open_set'; got {protocol!r}")
    source = SOURCES["lfw"]
    folder = next((root / f for f in source.folders if _has_people(root / f)), None)
    if folder is None:
        raise missing(
            "LFW (NAME/NAME_0001.jpg)", [root / f for f in source.folders], source.how(root)
        )
    paths, labels, people = list_classes(folder)
    faces = ArrayDataset(read_images(paths, size, mode), torch.tensor(labels), people)
    if protocol == "open_set":
        return _open_set(faces, min_images, unseen_fraction, test_fraction, folds, per_fold, seed)
    place = folder if (folder / pairs_file).exists() else root
    if not (place / pairs_file).exists():
        find_folder(root, source, [pairs_file])
    if verify:
        verify_files([place / pairs_file], source)
    pairs = pairs_of_list(place / pairs_file, faces, paths)
    used = torch.cat([pairs.first, pairs.second]).unique()
    position = torch.full((len(faces),), -1, dtype=torch.int64)
    position[used] = torch.arange(len(used))
    shown = faces.labels[used].unique()
    listed = set(shown.tolist())
    unlisted = [person for person in range(len(people)) if person not in listed]
    test = faces.subset(used).only(shown.tolist())
    moved = Pairs(test, position[pairs.first], position[pairs.second], pairs.same, pairs.fold)
    return Split(train=faces.only(unlisted), test=test, pairs=moved)


def pairs_of_list(path: Path, faces: ArrayDataset, paths: list[str]) -> Pairs:
    """The verification pairs of a list in LFW's format, as rows of `faces`.

    First line: folds and pairs of each kind per fold ("10 300"; one number means one fold). Then
    fold by fold "NAME i j" for one person and "NAME i OTHER j" for two; i, j count from 1 and name
    the pictures NAME_000i.jpg.
    """
    where = SOURCES["lfw"].where
    row_of = {Path(p).stem: i for i, p in enumerate(paths)}
    lines = read_lines(path)
    header = parse_lfw_header(lines[0].split() if lines else ())
    if header is None:
        raise damaged(path, "a first line like '10 300'", repr("".join(lines[:1])[:80]), where)
    folds, per_fold = header
    listed = parse_lfw_pairs(
        path, [(i, line.split()) for i, line in enumerate(lines[1:], 2) if line.strip()], where
    )
    if len(listed) != 2 * folds * per_fold:
        raise damaged(path, f"{folds} x 2 x {per_fold} pairs", f"{len(listed)}", where)
    for pair in listed:
        for name, stem in zip((pair.first, pair.second), pair.stems, strict=True):
            if stem not in row_of:
                raise missing(
                    f"the picture of line {pair.line} of {path.name}",
                    path.parent / name / f"{stem}.jpg",
                    where,
                )
    first, second = ([row_of[pair.stems[side]] for pair in listed] for side in (0, 1))
    same = torch.tensor([pair.same for pair in listed])
    fold = torch.arange(folds).repeat_interleave(2 * per_fold)
    return Pairs(faces, torch.tensor(first), torch.tensor(second), same, fold)


def _open_set(
    faces: ArrayDataset,
    min_images: int,
    unseen_fraction: float,
    test_fraction: float,
    folds: int,
    per_fold: int,
    seed: int,
) -> Split:
    counts = faces.counts()
    several = (counts >= 2).nonzero().squeeze(1)
    order = several[torch.randperm(len(several), generator=generator(seed, "unseen"))]
    unseen = order[: round(unseen_fraction * len(order))].sort().values
    hidden = set(unseen.tolist())
    seen = [p for p, count in enumerate(counts.tolist()) if count >= min_images and p not in hidden]
    if not seen or len(hidden) < 2:
        raise ValueError(
            f"{len(seen)} people to train on and {len(hidden)} for pairs: lower min_images "
            f"({min_images}) or change unseen_fraction ({unseen_fraction})"
        )
    split = closed_set(faces.only(seen), test_fraction, seed)
    pairs = draw_pairs(faces.only(unseen.tolist()), folds, per_fold, seed)
    return Split(split.train, split.test, pairs=pairs)


def _has_people(folder: Path) -> bool:
    """Whether there is a NAME/NAME_0001.* below; looks at the first few folders only."""
    if not folder.is_dir():
        return False
    folders = (f for f in folder.iterdir() if f.is_dir())
    return any(any(f.glob(f"{f.name}_[0-9]*")) for f, _ in zip(folders, range(20), strict=False))
