"""How classes and confidence lie on the sphere: class means, and confidence against hardness."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from ...functional.angles import pairwise_cosine
from ..inputs import check_features, check_row_labels, to_unit_scale
from ..results import Result, percent
from .separability import angular_visual_hardness


@dataclass
class ClassMeansResult(Result):
    """Cosines between the class means (Fig. 2.5).

    Args:
        cosine: (C, C).
        classes: the label of each row.
        mean_between: mean cosine between two classes.
        max_between: largest cosine between two classes.
    """

    cosine: list[list[float]]
    classes: list[int]
    mean_between: float
    max_between: float

    def rows(self) -> Iterator[Sequence[object]]:
        yield "classes", len(self.classes)
        yield "mean cosine between classes", f"{self.mean_between:.4f}"
        yield "largest cosine between classes", f"{self.max_between:.4f}"


def class_mean_cosines(features: Tensor, labels: Tensor) -> ClassMeansResult:
    """Cosine matrix between the mean features of the classes (Fig. 2.5).

    Args:
        features: (n, d).
        labels: (n,), of at least two classes.

    Returns:
        The matrix and its figures.

    >>> class_mean_cosines(torch.eye(2), torch.tensor([3, 5])).cosine
    [[1.0, 0.0], [0.0, 1.0]]
    """
    features = check_features("features", features)
    labels = check_row_labels("labels", labels, len(features))
    names, index = labels.unique(return_inverse=True)
    if len(names) < 2:
        raise ValueError(f"labels: all are {int(labels[0])}; at least two classes are needed")
    (features,), _ = to_unit_scale(features)
    means = features.new_zeros(len(names), features.shape[1]).index_add_(0, index, features)
    cosine = pairwise_cosine(means)
    between = cosine[~torch.eye(len(names), dtype=torch.bool)]
    return ClassMeansResult(
        cosine.tolist(), names.tolist(), float(between.mean()), float(between.max())
    )


@dataclass
class ConfidenceResult(Result):
    """Confidence against angular visual hardness, and their agreement.

    Args:
        spearman: rank correlation over all samples.
        confidence: of each sample in its right class.
        hardness: of each sample.
        right: whether each sample was recognized.
        bins: (hardness, mean confidence, accuracy, samples) from easy to hard.
    """

    spearman: float
    confidence: list[float]
    hardness: list[float]
    right: list[bool]
    bins: list[tuple[float, float, float, int]]

    def header(self) -> Sequence[str]:
        return ("hardness (AVH)", "confidence", "accuracy", "samples")

    def rows(self) -> Iterator[Sequence[object]]:
        for hardness, confidence, accuracy, count in self.bins:
            yield f"{hardness:.4f}", percent(confidence), percent(accuracy), count
        yield "rank correlation", f"{self.spearman:.4f}"


def confidence_and_hardness(
    features: Tensor, labels: Tensor, weight: Tensor, logits: Tensor | None = None, bins: int = 10
) -> ConfidenceResult:
    """The model's confidence in the right class beside angular visual hardness (Eq. 1.1).

    Args:
        features: (n, d).
        labels: (n,).
        weight: (C, d), the class weights of the head.
        logits: (n, C) scores. Default: features @ weight.T.
        bins: into how many bins of hardness the samples are cut.

    Returns:
        Confidence and hardness of each sample, and their rank correlation.
    """
    features = check_features("features", features)
    labels = check_row_labels("labels", labels, len(features))
    if logits is None:
        logits = features @ weight.detach().to(features).T
    logits = logits.detach()
    hardness = angular_visual_hardness(features, labels, weight.detach().to(features))
    confidence = logits.softmax(1).gather(1, labels.unsqueeze(1)).squeeze(1)
    right = logits.argmax(1) == labels
    table = []
    for part in hardness.argsort().tensor_split(min(bins, len(labels))):
        values = (hardness[part].mean(), confidence[part].mean(), right[part].double().mean())
        table.append((*(float(v) for v in values), len(part)))
    return ConfidenceResult(
        rank_correlation(confidence, hardness),
        confidence.tolist(),
        hardness.tolist(),
        right.tolist(),
        table,  # type: ignore[arg-type]
    )


def rank_correlation(a: Tensor, b: Tensor) -> float:
    """Spearman's rank correlation with mean ranks for ties.

    Args:
        a: (n,).
        b: (n,).

    Returns:
        The correlation in [-1, 1]; NaN when one side is constant.

    >>> round(rank_correlation(torch.tensor([1.0, 2.0, 3.0]), torch.tensor([5.0, 4.0, 1.0])), 6)
    -1.0
    """

    def ranks(x: Tensor) -> Tensor:
        _, inverse, counts = x.unique(return_inverse=True, return_counts=True)
        last = counts.cumsum(0).double()
        return (last - (counts - 1).double() / 2)[inverse]

    x, y = ranks(a), ranks(b)
    x, y = x - x.mean(), y - y.mean()
    scale = float(x.norm() * y.norm())
    return float(x @ y) / scale if scale > 0 else math.nan
