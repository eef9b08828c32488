"""Verification pairs: two samples, whether they are of one class, and the fold they belong to."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from ._random import generator

if TYPE_CHECKING:
    from .dataset import Dataset


@dataclass(frozen=True)
class Pairs:
    """Pairs of samples: two indices, whether they are of one class, and a fold.

    With features of all samples, ``verification(features[p.first], features[p.second], p.same)``.

    Args:
        dataset: the samples.
        first: (P,) int64 indices into `dataset`.
        second: (P,) int64 indices into `dataset`.
        same: (P,) bool, whether both are of one class.
        fold: (P,) int64.
    """

    dataset: Dataset
    first: Tensor
    second: Tensor
    same: Tensor
    fold: Tensor

    def __len__(self) -> int:
        return len(self.same)

    def __repr__(self) -> str:
        folds = len(self.fold.unique())
        same = int(self.same.sum())
        return f"Pairs({same:,} same of {len(self):,} in {folds} folds, {self.dataset!r})"

    def __post_init__(self) -> None:
        sizes = {len(self.first), len(self.second), len(self.same), len(self.fold)}
        if len(sizes) > 1:
            raise ValueError(f"first, second, same and fold have one entry per pair; got {sizes}")


def draw_pairs(dataset: Dataset, folds: int = 10, per_fold: int = 300, seed: int = 0) -> Pairs:
    """Draw distinct random pairs of one class and of two.

    The shape of LFW's list (10 folds of 300 + 300), whose people are disjoint between folds; here
    the folds divide the pairs only, so that it also works for a handful of classes. A positive pair
    picks a sample first and a partner in its class second, so a class counts by its size.

    Args:
        dataset: the samples.
        folds: number of folds.
        per_fold: pairs of one class, and of two, in each fold.
        seed: seed of the choice.

    Returns:
        The pairs, fold by fold, those of one class first.

    >>> from hypersphere.data import ArrayDataset
    >>> data = ArrayDataset(torch.zeros(40, 1, 2, 2), torch.arange(40) % 4, list("abcd"))
    >>> pairs = draw_pairs(data, folds=2, per_fold=5)
    >>> pairs.same.tolist() == (data.labels[pairs.first] == data.labels[pairs.second]).tolist()
    True
    """
    if folds < 1 or per_fold < 1:
        raise ValueError(f"folds and per_fold are whole numbers >= 1; got {folds} and {per_fold}")
    labels = dataset.labels.cpu()
    if bool((labels < 0).any()):
        raise ValueError("pairs need a class for every sample; some labels are -1")
    counts = torch.bincount(labels)
    wanted = folds * per_fold
    positives = int((counts * (counts - 1) // 2).sum())
    negatives = len(labels) * (len(labels) - 1) // 2 - positives
    if positives < wanted or negatives < wanted:
        raise ValueError(
            f"{wanted} pairs of each kind are wanted, but {len(labels)} samples of "
            f"{int((counts > 0).sum())} classes have {positives} pairs of one class and "
            f"{negatives} of two: ask for fewer folds or fewer per fold"
        )
    random = generator(seed)
    same = _distinct(labels, True, wanted, random)
    different = _distinct(labels, False, wanted, random)
    # Fold by fold: its positive pairs, then its negative ones, as in pairs.txt.
    both = torch.stack([same.view(folds, per_fold, 2), different.view(folds, per_fold, 2)], dim=1)
    first, second = both.reshape(-1, 2).unbind(1)
    truth = torch.tensor([True, False]).repeat_interleave(per_fold).repeat(folds)
    return Pairs(dataset, first, second, truth, torch.arange(folds).repeat_interleave(2 * per_fold))


def _distinct(labels: Tensor, same: bool, wanted: int, random: torch.Generator) -> Tensor:
    """(wanted, 2) distinct unordered pairs i < j whose labels agree, or differ, in random order."""
    n = len(labels)
    if n * (n - 1) // 2 <= 4_000_000:  # all of them fit: draw without replacement
        upper = torch.triu_indices(n, n, offset=1).T
        matching = upper[(labels[upper[:, 0]] == labels[upper[:, 1]]) == same]
        return matching[torch.randperm(len(matching), generator=random)[:wanted]]
    order = torch.argsort(labels, stable=True)
    counts = torch.bincount(labels)
    start = torch.cumsum(counts, 0) - counts
    found = torch.empty(0, dtype=torch.int64)
    while len(found) < wanted:
        i = torch.randint(n, (2 * wanted,), generator=random)
        if same:  # partner from the class of i
            step = (torch.rand(len(i), generator=random) * counts[labels[i]]).long()
            j = order[start[labels[i]] + step]
        else:
            j = torch.randint(n, (2 * wanted,), generator=random)
        keep = (i != j) & ((labels[i] == labels[j]) == same)
        code = torch.minimum(i, j)[keep] * n + torch.maximum(i, j)[keep]
        found = torch.unique(torch.cat([found, code]))
    chosen = found[torch.randperm(len(found), generator=random)[:wanted]]
    return torch.stack([chosen // n, chosen % n], dim=1)
