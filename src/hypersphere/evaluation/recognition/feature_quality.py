"""The norm of a feature as the quality of its picture: does it tell which pictures to trust?"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from ...functional.angles import normalize
from ..inputs import check_features, check_row_labels, number_names
from ..results import Result, percent

REJECTED = (0.0, 0.05, 0.1, 0.2, 0.3, 0.5)


@dataclass
class QualityResult(Result):
    """Result of `quality_by_norm`.

    Args:
        correlation: rank correlation (Spearman) of norm and cosine with the own person's mean.
        rejected: shares of the samples with the smallest norms that are left out.
        errors: share of wrong nearest people among the others, at each of them.
        norms: (n,) norm of each feature.
        agreement: (n,) cosine with the mean direction of the person's other samples.
    """

    correlation: float
    rejected: list[float]
    errors: list[float]
    norms: Tensor
    agreement: Tensor

    def rows(self) -> Iterator[Sequence[object]]:
        yield "rank correlation of norm and agreement", f"{self.correlation:.3f}"
        for share, error in zip(self.rejected, self.errors, strict=True):
            yield f"error without the lowest {percent(share, 0)}", percent(error)


def quality_by_norm(
    features: Any, labels: Any, rejected: Sequence[float] = REJECTED, quality: Any = None
) -> QualityResult:
    """Whether samples with short features are those that go wrong.

    A sample agrees with its person by the cosine with the mean of the person's other samples, and
    is wrong if another person's mean is nearer. People with a single sample are left out.

    Args:
        features: (n, d), not normalized.
        labels: (n,) who they are: numbers or names.
        rejected: shares of the samples with lowest quality that are left out (failures to enroll).
        quality: (n,) quality of each sample. Default: the norm of its feature.

    Returns:
        Correlation and errors; `reports.figures.quality_against_norm` draws it.
    """
    rows = check_features("features", features)
    people = check_row_labels("labels", number_names(labels)[0], len(rows))
    counts = torch.bincount(people.unique(return_inverse=True)[1])
    index = people.unique(return_inverse=True)[1]
    several = counts[index] > 1
    if int(several.sum()) < 2 or len(index[several].unique()) < 2:
        raise ValueError("labels: at least two people with two samples are needed")
    rows, index = rows[several], index[several].unique(return_inverse=True)[1]
    norms = rows.norm(dim=1) if quality is None else torch.as_tensor(quality)[several].float()
    unit = normalize(rows)
    sums = unit.new_zeros(int(index.max()) + 1, unit.shape[1]).index_add_(0, index, unit)
    own = (unit * normalize(sums[index] - unit)).sum(1)
    others = unit @ normalize(sums).T
    others.scatter_(1, index.unsqueeze(1), -math.inf)
    wrong = others.amax(1) >= own
    order = norms.argsort(stable=True)
    errors = []
    for share in rejected:
        if not 0 <= share < 1:
            raise ValueError(f"rejected: expected shares in [0, 1); got {share}")
        kept = order[math.floor(share * len(order)) :]
        errors.append(float(wrong[kept].double().mean()))
    return QualityResult(_rank_correlation(norms, own), list(rejected), errors, norms, own)


def enrollable(features: Any, least: float, quality: Any = None) -> Tensor:
    """Which samples are good enough to enroll; the others are failures to enroll.

    Args:
        features: (n, d), not normalized.
        least: smallest quality.
        quality: (n,) quality of each sample. Default: the norm of its feature.

    Returns:
        (n,) bool.

    >>> enrollable(torch.tensor([[3.0, 4.0], [0.1, 0.0]]), least=1.0)
    tensor([ True, False])
    """
    rows = check_features("features", features)
    values = rows.norm(dim=1) if quality is None else torch.as_tensor(quality)
    if values.shape != (len(rows),):
        raise ValueError(f"quality: expected one per sample, ({len(rows)},); got {values.shape}")
    return values >= least


def _rank_correlation(a: Tensor, b: Tensor) -> float:
    """Spearman's: the correlation of the ranks, equal values sharing their mean rank."""
    ranks = []
    for values in (a, b):
        _, index, counts = values.unique(return_inverse=True, return_counts=True)
        last = counts.cumsum(0).double()
        ranks.append((last - (counts.double() - 1) / 2)[index])
    return float(torch.corrcoef(torch.stack(ranks))[0, 1])
