"""Verification over every pair of a set, as MegaFace's TAR at FAR 1e-6: billions, streamed.

Positive scores are few and kept; negative scores go into a fine histogram of the cosine. Memory is
O(block^2 + bins), never n x n.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from ...functional.angles import normalize
from ..inputs import (
    check_features,
    check_row_labels,
    check_two_classes,
    number_names,
    to_common_type,
)
from ..results import Result, percent
from .roc import FARS, Roc
from .verification import FarPoint, describe, tar_at_fars

BINS = 1 << 20  # cosines are told apart to 2e-6
BLOCK = 2048


@dataclass
class AllPairsResult(Result):
    """Result of `all_pairs`.

    Args:
        auc: area under the ROC curve.
        eer: equal error rate, in [0, 1].
        tar_at_far: true accept rate at each false accept rate.
        positives: number of pairs of one label.
        negatives: number of pairs of different labels.
        resolution: width of a bin of the cosine.
        roc: the curve, thinned.
    """

    auc: float
    eer: float
    tar_at_far: list[FarPoint]
    positives: int
    negatives: int
    resolution: float
    roc: Roc

    def rows(self) -> Iterator[Sequence[object]]:
        yield "pairs", f"{self.positives:,} same, {self.negatives:,} different"
        yield "AUC", f"{self.auc:.5f}"
        yield "EER", percent(self.eer)
        for point in self.tar_at_far:
            yield f"TAR at FAR {point.far:g}", describe(point, self.negatives)


def all_pairs(
    features: Tensor,
    labels: Any,
    others: Tensor | None = None,
    other_labels: Any = None,
    *,
    fars: Sequence[float] = FARS,
    bins: int = BINS,
) -> AllPairsResult:
    """ROC over all pairs i < j of `features`, or over all pairs of `features` x `others`.

    Distractors may carry a label that nobody else has, e.g. -1: a pair of two negative labels is
    skipped, since nobody knows who they are; a pair of a person and a distractor is negative.

    Args:
        features: (n, d).
        labels: (n,) numbers or names.
        others: (m, d). Default: the features themselves, each pair once.
        other_labels: (m,).
        fars: false accept rates; a rate with fewer than 1/rate negatives is refused.
        bins: how many bins of the cosine in [-1, 1] are told apart.

    Returns:
        Area, equal error rate, true accept rates and the curve.

    >>> angles = torch.tensor([0.0, 0.1, 1.5, 1.6])
    >>> points = torch.stack([angles.cos(), angles.sin()], 1)
    >>> result = all_pairs(points, torch.tensor([0, 0, 1, 1]))
    >>> result.auc, result.positives, result.negatives
    (1.0, 2, 4)
    """
    features = normalize(check_features("features", features))
    if others is None or other_labels is None:
        (labels,) = number_names(labels)
    else:
        labels, other_labels = number_names(labels, other_labels)
    labels = check_row_labels("labels", labels, len(features))
    if others is None:
        check_two_classes("labels", labels)
        right, right_labels = features, labels
    else:
        if other_labels is None:
            raise ValueError("others were given without other_labels")
        right = normalize(check_features("others", others, features.shape[1]))
        features, right = to_common_type(features, right)
        right_labels = check_row_labels("other_labels", other_labels, len(right))
    counts = torch.zeros(2, bins, dtype=torch.long)  # different, same
    for i in range(0, len(features), BLOCK):
        a, label_a = features[i : i + BLOCK], labels[i : i + BLOCK]
        first = i if others is None else 0
        for j in range(first, len(right), BLOCK):
            b, label_b = right[j : j + BLOCK], right_labels[j : j + BLOCK]
            place = ((a @ b.T).add_(1).mul_(bins / 2)).long().clamp_(0, bins - 1)
            same = (label_a.unsqueeze(1) == label_b) & (label_a.unsqueeze(1) >= 0)
            place.add_(same, alpha=bins)
            known = (label_a.unsqueeze(1) >= 0) | (label_b >= 0)
            if others is None and i == j:
                known = known.triu(1)
            elif bool(known.all()):
                counts += torch.bincount(place.flatten(), minlength=2 * bins).view(2, bins)
                continue
            counts += torch.bincount(place[known], minlength=2 * bins).view(2, bins)
    return _result(counts, fars)


def _result(counts: Tensor, fars: Sequence[float]) -> AllPairsResult:
    bins = counts.shape[1]
    if int(counts[1].sum()) == 0 or int(counts[0].sum()) == 0:
        kind = "same" if int(counts[1].sum()) == 0 else "different"
        raise ValueError(f"labels: no pair is of {kind} labels; pairs of both kinds are needed")
    used = counts.sum(0).nonzero().flatten().flip(0)  # from high scores to low
    lower_edge = used.double() * (2 / bins) - 1
    zero = counts.new_zeros(1)
    roc = Roc(
        torch.cat([torch.tensor([math.inf], dtype=torch.float64), lower_edge]),
        torch.cat([zero, counts[1, used].cumsum(0)]),
        torch.cat([zero, counts[0, used].cumsum(0)]),
    )
    return AllPairsResult(
        roc.area(),
        roc.equal_error_rate(),
        tar_at_fars(roc, fars),
        roc.positives,
        roc.negatives,
        2 / bins,
        roc.thin(),
    )
