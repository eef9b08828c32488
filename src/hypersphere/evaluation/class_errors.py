"""Classification: error, per class, confusion, and how classes and confidence lie on the sphere."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from ..functional.angles import pairwise_cosine
from .inputs import check_features, check_row_labels
from .results import Result, percent, wilson_interval


@dataclass
class ClassificationResult(Result):
    """Result of `classification`.

    `confusion[i][j]` counts samples of class i that were called j; `class_error` is NaN for a class
    without samples; `errors_at` maps k to the top-k error.
    """

    error: float
    interval: tuple[float, float]
    errors_at: dict[int, float]
    class_error: list[float]
    confusion: list[list[int]]
    samples: int
    classes: list[str]

    @property
    def accuracy(self) -> float:
        return 1 - self.error

    def rows(self) -> Iterator[Sequence[object]]:
        low, high = (f"{100 * bound:.2f}" for bound in self.interval)
        yield "samples", f"{self.samples:,}"
        yield "error", f"{percent(self.error)}  (95 %: {low} to {high})"
        for k, value in self.errors_at.items():
            yield f"top-{k} error", percent(value)
        known = [(e, c) for e, c in zip(self.class_error, self.classes, strict=True) if e == e]
        yield "mean over classes", percent(sum(e for e, _ in known) / len(known))
        for value, name in sorted(known, key=lambda pair: -pair[0])[:20]:
            yield f"  class {name}", percent(value)
        if len(known) > 20:
            yield f"  ... {len(known) - 20} classes with less", ""


def classification(
    logits: Tensor, labels: Tensor, top: Sequence[int] = (), classes: Sequence[str] | None = None
) -> ClassificationResult:
    """Errors of scores `logits` (n, C), or of predictions (n,), against `labels` (n,).

    A tie with the label's own score counts as an error in the top-k figures (k > 1).

    >>> scores = torch.tensor([[2.0, 1.0], [0.0, 3.0], [5.0, 1.0]])
    >>> result = classification(scores, torch.tensor([0, 1, 1]))
    >>> result.confusion
    [[1, 0], [1, 1]]
    """
    logits = torch.as_tensor(logits)
    if logits.ndim == 1:
        predicted = check_row_labels("predictions", logits, len(logits))
        labels = check_row_labels("labels", labels, len(predicted))
        count = int(max(predicted.max(), labels.max())) + 1
        if top:
            raise ValueError("top-k errors need the scores of all classes, not predictions")
    else:
        logits = check_features("logits", logits)
        labels = check_row_labels("labels", labels, len(logits))
        predicted, count = logits.argmax(1), logits.shape[1]
    if int(labels.min()) < 0 or int(labels.max()) >= count:
        raise ValueError(f"labels: expected 0 ... {count - 1}; got {int(labels.max())}")
    count = max(count, len(classes) if classes is not None else 0)
    confusion = torch.bincount(labels * count + predicted, minlength=count * count)
    confusion = confusion.view(count, count)
    right = int(confusion.diagonal().sum())
    per_class = 1 - confusion.diagonal().double() / confusion.sum(1)
    low, high = wilson_interval(right, len(labels))
    errors_at = {}
    for k in top:
        own = logits.gather(1, labels.unsqueeze(1))
        errors_at[k] = float(((logits >= own).sum(1) > k).double().mean())
    return ClassificationResult(
        1 - right / len(labels),
        (1 - high, 1 - low),
        errors_at,
        per_class.tolist(),
        confusion.tolist(),
        len(labels),
        list(classes) if classes is not None else list(map(str, range(count))),
    )


@dataclass
class ClassMeansResult(Result):
    """Cosines between the class means (Fig. 2.5): `cosine` (C, C), `classes` their labels."""

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

    >>> class_mean_cosines(torch.eye(2), torch.tensor([3, 5])).cosine
    [[1.0, 0.0], [0.0, 1.0]]
    """
    features = check_features("features", features)
    labels = check_row_labels("labels", labels, len(features))
    names, index = labels.unique(return_inverse=True)
    if len(names) < 2:
        raise ValueError(f"labels: all are {int(labels[0])}; at least two classes are needed")
    means = features.new_zeros(len(names), features.shape[1]).index_add_(0, index, features)
    cosine = pairwise_cosine(means)
    between = cosine[~torch.eye(len(names), dtype=torch.bool)]
    return ClassMeansResult(
        cosine.tolist(), names.tolist(), float(between.mean()), float(between.max())
    )


@dataclass
class ConfidenceResult(Result):
    """Confidence against angular visual hardness, one value per sample, and their agreement.

    `spearman` is the rank correlation over all samples; `bins` has (hardness, mean confidence,
    accuracy, samples) from easy to hard.
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
        features (n, d), labels (n,), weight (C, d): the class weights of the head.
        logits: (n, C) scores; by default features @ weight.T.
    """
    from .geometry.separability import angular_visual_hardness

    features = check_features("features", features)
    labels = check_row_labels("labels", labels, len(features))
    if logits is None:
        logits = features @ weight.detach().to(features).T
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
    """Spearman's rank correlation with mean ranks for ties; NaN when one side is constant.

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
