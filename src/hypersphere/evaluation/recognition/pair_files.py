"""Lists of pairs on disk: LFW's pairs.txt, or lines of two paths and 0 or 1."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor

from ..._reading import read_lines
from ...data.pair_lists import parse_lfw_header, parse_lfw_pairs

EXTENSIONS = (".jpg", ".jpeg", ".png", ".bmp", ".pgm", ".ppm", ".webp")


@dataclass(frozen=True)
class PairList:
    """Pictures named by a list of pairs, each once, and the pairs as rows of them.

    Args:
        paths: n files.
        index: (P, 2) rows of `paths`.
        same: (P,) bool, whether a pair is of one person.
        fold: (P,) the fold of each pair.
    """

    paths: list[Path]
    index: Tensor
    same: Tensor
    fold: Tensor

    def __len__(self) -> int:
        return len(self.same)


def read_pairs(path: str | Path, folder: str | Path | None = None, folds: int = 10) -> PairList:
    """Read a list of pairs and check that every picture is there.

    Two layouts, told apart by the lines:

    - LFW: a first line `10 300` (folds, pairs of each kind per fold) or `300`, then `name i j`
      (same person) and `name i other j`; pictures are folder/name/name_000i.jpg;
    - paths: `a.jpg b.jpg 1`, relative to `folder`, cut into `folds` equal runs.

    Args:
        path: the list.
        folder: where the pictures are. Default: where the list lies.
        folds: into how many folds a list of paths is cut; an LFW list says it itself.

    Returns:
        The pictures and the pairs.

    Raises:
        FileNotFoundError: if the list or a picture is missing; the message names some of them.
        ValueError: if a line cannot be read.
    """
    path = Path(path)
    if not path.is_file():
        raise FileNotFoundError(f"no list of pairs at {path}")
    root = Path(folder) if folder is not None else path.parent
    lines = [(i, line.split()) for i, line in enumerate(read_lines(path), 1)]
    lines = [(i, words) for i, words in lines if words and not words[0].startswith("#")]
    if not lines:
        raise ValueError(f"{path}: the list of pairs is empty")
    header = parse_lfw_header(lines[0][1])
    if header is not None:
        rows, folds = _lfw(path, lines[1:], root), header[0]
    else:
        rows = _paths(path, lines, root)
    if not rows:
        raise ValueError(f"{path}: the list has a first line but no pairs")
    return _collect(path, rows, folds)


Row = tuple[int, Path, Path, bool]


def _lfw(path: Path, lines: list[tuple[int, list[str]]], root: Path) -> list[Row]:
    return [
        (
            pair.line,
            _picture(root, pair.first, pair.first_number),
            _picture(root, pair.second, pair.second_number),
            pair.same,
        )
        for pair in parse_lfw_pairs(path, lines, "whoever wrote the list")
    ]


def _picture(root: Path, name: str, number: int) -> Path:
    """folder/name/name_0001 with the first known ending that exists; .jpg when none does."""
    stem = root / name / f"{name}_{number:04d}"
    for ending in EXTENSIONS:
        candidate = stem.parent / (stem.name + ending)
        if candidate.is_file():
            return candidate
    return stem.parent / (stem.name + ".jpg")


def _paths(path: Path, lines: list[tuple[int, list[str]]], root: Path) -> list[Row]:
    rows = []
    for number, words in lines:
        if len(words) != 3 or words[2] not in ("0", "1"):
            raise ValueError(
                f"{path}, line {number}: expected `picture picture 0|1`; got "
                f"{' '.join(words)[:200]!r}"
            )
        rows.append((number, root / words[0], root / words[1], words[2] == "1"))
    return rows


def _collect(path: Path, rows: list[Row], folds: int) -> PairList:
    place: dict[Path, int] = {}
    missing: list[tuple[int, Path]] = []
    for number, *both, _ in rows:
        for picture in both:
            if picture not in place:
                place[picture] = len(place)
                if not picture.is_file():
                    missing.append((number, picture))
    if missing:
        some = "\n".join(f"  line {number}: {picture}" for number, picture in missing[:5])
        raise FileNotFoundError(
            f"{path} names {len(missing)} of {len(place)} pictures that are not there:\n{some}"
            + ("\n  ..." if len(missing) > 5 else "")
        )
    if len(rows) < folds:
        raise ValueError(f"{path}: {len(rows)} pairs cannot be cut into {folds} folds")
    index = torch.tensor([[place[a], place[b]] for _, a, b, _ in rows])
    fold = torch.arange(len(rows)) * folds // len(rows)
    return PairList(list(place), index, torch.tensor([same for *_, same in rows]), fold)
