"""Cosines of listed pairs, block by block, with the mean and the principal directions of folds."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from ...functional.angles import cosine
from ..inputs import binary_exponent, check_features, collect_rows, times_power
from .protocols import merge_flips

BLOCK = 4096  # pairs worked off at once


class PairScorer:
    """Cosines of pairs, block by block."""

    def __init__(self, a: Tensor, b: Tensor, index: Tensor | None, flips: str) -> None:
        self.a, self.b = _rows("features_a", a), _rows("features_b", b)
        self.flips = flips
        for name, features in (("features_a", self.a), ("features_b", self.b)):
            merge_flips(features[:1], flips)  # the shape is right, or it says so
            check_features(name, features.flatten(1))
        if self.a.shape[1:] != self.b.shape[1:]:
            raise ValueError(
                "features_a and features_b: expected the same dimension; "
                f"got {tuple(self.a.shape)} and {tuple(self.b.shape)}"
            )
        if index is None:
            if len(self.a) != len(self.b):
                raise ValueError(f"{len(self.a)} features_a but {len(self.b)} features_b")
            rows = torch.arange(len(self.a))
            self.index = torch.stack([rows, rows], 1)
        else:
            self.index = torch.as_tensor(index).long()
            self._check_index()

    def _check_index(self) -> None:
        if self.index.ndim != 2 or self.index.shape[1] != 2 or len(self.index) == 0:
            raise ValueError(f"index: expected (n, 2), n >= 1; got {tuple(self.index.shape)}")
        limit = torch.tensor([len(self.a), len(self.b)])
        wrong = ((self.index < 0) | (self.index >= limit)).any(1).nonzero().flatten()
        if len(wrong):
            i = int(wrong[0])
            raise ValueError(f"index: pair {i} is {self.index[i].tolist()}, outside the features")

    def __len__(self) -> int:
        return len(self.index)

    def blocks(self) -> Iterator[tuple[slice, Tensor, Tensor]]:
        """(range of pairs, features a, features b), flips merged, in float32 or wider."""
        for start in range(0, len(self), BLOCK):
            where = slice(start, start + BLOCK)
            i, j = self.index[where].unbind(1)
            a, b = merge_flips(self.a[i], self.flips), merge_flips(self.b[j], self.flips)
            wide = torch.promote_types(torch.promote_types(a.dtype, b.dtype), torch.float32)
            yield where, a.to(wide), b.to(wide)

    def scores(self, mean: Tensor | None = None, basis: Tensor | None = None) -> Tensor:
        """Cosines (n,) of P(a - mean) and P(b - mean); basis P: (d, q)."""
        scores = torch.empty(len(self))
        for where, a, b in self.blocks():
            if mean is not None:
                a, b = a - mean.to(a), b - mean.to(b)
            if basis is not None:
                a, b = a @ basis.to(a), b @ basis.to(b)
            scores[where] = cosine(a, b).float()
        return scores


@dataclass
class Moments:
    """Sums per fold, from which any set of training folds has its mean and covariance."""

    count: Tensor  # (folds,)
    first: Tensor  # (folds, d)
    second: Tensor | None  # (folds, d, d)
    exponent: int  # of the power of two that all sums are over, so that no square overflows

    @staticmethod
    def of_folds(pairs: PairScorer, fold: Tensor, second: bool) -> Moments:
        folds = int(fold.max()) + 1
        dim = next(pairs.blocks())[1].shape[1]
        count = 2.0 * torch.bincount(fold, minlength=folds).double()
        sums = torch.zeros(folds, dim, dtype=torch.float64)
        squares = torch.zeros(folds, dim, dim, dtype=torch.float64) if second else None
        exponent = binary_exponent(pairs.a, pairs.b)
        for where, a, b in pairs.blocks():
            mine = fold[where]
            for f in mine.unique().tolist():
                both = torch.cat([a[mine == f], b[mine == f]]).double()
                both = times_power(both, -exponent)
                sums[f] += both.sum(0)
                if squares is not None:
                    squares[f] += both.T @ both
        return Moments(count, sums, squares, exponent)

    def without(self, f: int, center: bool, pca: int | None) -> tuple[Tensor | None, Tensor | None]:
        """Mean and principal directions of all folds but f; PCA implies the mean."""
        n = self.count.sum() - self.count[f]
        mean = (self.first.sum(0) - self.first[f]) / n
        if pca is None or self.second is None:
            return (times_power(mean, self.exponent) if center else None), None
        if not 1 <= pca <= len(mean):
            raise ValueError(f"pca: expected 1 to {len(mean)} (the dimension); got {pca}")
        covariance = (self.second.sum(0) - self.second[f]) / n - torch.outer(mean, mean)
        basis = torch.linalg.eigh(covariance).eigenvectors[:, -pca:]
        return times_power(mean, self.exponent), basis


def _rows(name: str, features: Any) -> Tensor:
    """Features in one tensor, whatever holds them; pictures are refused."""
    found = collect_rows(features, name)
    if found is None or (found.ndim > 3 and not isinstance(features, Tensor)):
        raise TypeError(
            f"{name}: expected features; got pictures, which a model has to turn into features "
            f"first: evaluation.extract(model, {name})"
        )
    return found
