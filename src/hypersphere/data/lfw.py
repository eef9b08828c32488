"""LFW: a folder per person, and verification pairs in `pairs.txt`."""

from __future__ import annotations

from pathlib import Path

import torch

from ._random import generator
from .checksums import verify_files
from .dataset import ArrayDataset, Split
from .errors import damaged, missing
from .files import find_folder
from .image_files import Size, read_images
from .image_folder import list_classes
from .sources import SOURCES
from .splits import closed_set
from .verification_pairs import Pairs, draw_pairs


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

    `protocol="pairs"`: the published verification pairs. `pairs` point into `test`, the pictures
    that appear in them; `train` is everybody who appears in none, so it may be trained on.

    `protocol="open_set"`: for training on LFW itself. `unseen_fraction` of the people with two or
    more pictures are drawn for verification pairs (`folds` x (`per_fold` + `per_fold`)); of the
    others, those with `min_images` or more are divided into `train` and `test`.

    `size`, `mode`: see `read_image`. `verify` compares pairs.txt with its published checksum.
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
    pairs = read_pairs(place / pairs_file, faces, paths)
    used = torch.cat([pairs.first, pairs.second]).unique()
    position = torch.full((len(faces),), -1, dtype=torch.int64)
    position[used] = torch.arange(len(used))
    shown = faces.labels[used].unique()
    strangers = [p for p in range(len(people)) if p not in set(shown.tolist())]
    test = faces.subset(used).only(shown.tolist())
    moved = Pairs(test, position[pairs.first], position[pairs.second], pairs.same, pairs.fold)
    return Split(train=faces.only(strangers), test=test, pairs=moved)


def read_pairs(path: Path, faces: ArrayDataset, paths: list[str]) -> Pairs:
    """Verification pairs as LFW lists them.

    First line: folds and pairs of each kind per fold ("10 300"; one number means one fold). Then
    fold by fold "NAME i j" for one person and "NAME i OTHER j" for two; i, j count from 1 and name
    the pictures NAME_000i.jpg.
    """
    where = SOURCES["lfw"].where
    number = {Path(p).stem: i for i, p in enumerate(paths)}
    lines = path.read_text(encoding="utf-8").splitlines()
    try:
        header = [int(n) for n in lines[0].split()]
        folds, per_fold = header if len(header) == 2 else (1, *header)
    except (IndexError, ValueError):
        raise damaged(path, "a first line like '10 300'", repr("".join(lines[:1])), where) from None
    rows = [line.split() for line in lines[1:] if line.strip()]
    if len(rows) != 2 * folds * per_fold:
        raise damaged(path, f"{folds} x 2 x {per_fold} pairs", f"{len(rows)}", where)
    first: list[int] = []
    second: list[int] = []
    same: list[bool] = []
    for line, row in enumerate(rows, start=2):
        if len(row) not in (3, 4) or not row[1].isdigit() or not row[-1].isdigit():
            raise damaged(path, "'NAME i j' or 'NAME i OTHER j'", f"line {line}: {row}", where)
        other = row[0] if len(row) == 3 else row[2]
        for name, count, side in ((row[0], row[1], first), (other, row[-1], second)):
            stem = f"{name}_{int(count):04d}"
            if stem not in number:
                raise missing(
                    f"the picture of line {line} of {path.name}",
                    path.parent / name / f"{stem}.jpg",
                    where,
                )
            side.append(number[stem])
        same.append(row[0] == other)
    fold = torch.arange(folds).repeat_interleave(2 * per_fold)
    return Pairs(faces, torch.tensor(first), torch.tensor(second), torch.tensor(same), fold)


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
