"""The embedded default: scikit-learn's 1,797 handwritten digits of 8 x 8, no download."""

from __future__ import annotations

import functools
import importlib.util
import sys
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import torch

from .._optional import require
from ..registry import register
from .dataset import ArrayDataset, Split
from .splits import closed_set, open_set


def digits() -> ArrayDataset:
    """All digits: the publisher's 0..16 divided by 16.

    Returns:
        1797 pictures (1, 8, 8) float32.

    >>> digits().shape
    torch.Size([1, 8, 8])
    """
    table = torch.from_numpy(_table())
    images = table[:, :64].float().div_(16).view(-1, 1, 8, 8)
    return ArrayDataset(images, table[:, 64].long(), [str(c) for c in range(10)])


@functools.cache  # the runs of a comparison share a process; nobody changes it
def _table() -> np.ndarray:
    """(1797, 65), pixels and label, from the file that scikit-learn brings.

    It is read without an import of scikit-learn, which takes longer than a short run.
    """
    found = importlib.util.find_spec("sklearn") if sys.modules.get("sklearn", True) else None
    for place in (found.submodule_search_locations or []) if found else []:
        path = Path(place) / "datasets" / "data" / "digits.csv.gz"
        if path.is_file():
            return np.loadtxt(path, delimiter=",")
    bunch = require("sklearn.datasets", extra="data").load_digits()
    return np.column_stack([bunch.data, bunch.target])


@register("data", "digits")
def load_digits(
    protocol: str = "closed_set",
    test_fraction: float = 0.25,
    unseen: Sequence[int] = (7, 8, 9),
    folds: int = 10,
    per_fold: int = 300,
    seed: int = 0,
) -> Split:
    """Scikit-learn's handwritten digits in a training and a test part.

    Args:
        protocol: "closed_set": all ten classes in both parts; "open_set": some classes are in
            neither part, only in `pairs`.
        test_fraction: share of every class for testing.
        unseen: the classes of the pairs, for "open_set".
        folds: folds of the pairs, for "open_set".
        per_fold: pairs of one class, and of two, per fold.
        seed: fixes the parts and the pairs.

    Returns:
        Pictures (1, 8, 8) float32.
    """
    if protocol == "closed_set":
        return closed_set(digits(), test_fraction, seed)
    if protocol == "open_set":
        return open_set(digits(), unseen, test_fraction, folds, per_fold, seed)
    raise ValueError(f"protocol is 'closed_set' or 'open_set'; got {protocol!r}")
