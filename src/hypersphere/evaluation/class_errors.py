"""Errors of a classifier: over all samples, per class, in the top k, and the confusions."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from .inputs import check_features, check_row_labels
from .results import Result, percent, wilson_interval

MOST_CLASSES = 1 << 14  # of predictions: the largest number makes a table of its square


@dataclass
class ClassificationResult(Result):
    """Result of `classification`.

    Args:
        error: share of wrong answers.
        interval: its 95 % (Wilson) interval.
        errors_at: k -> top-k error.
        class_error: error of each class; NaN for a class without samples.
        confusion: confusion[i][j] counts samples of class i that were called j.
        samples: number of samples.
        classes: the name of each class.
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
        """Share of right answers."""
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
    """Errors of scores or predictions.

    A tie with the label's own score counts as an error in the top-k figures (k > 1).

    Args:
        logits: (n, C) scores, or (n,) predicted classes.
        labels: (n,).
        top: the k of the top-k errors wanted.
        classes: the name of each class. Default: its number.

    Returns:
        Errors, over all samples and per class, and the confusion matrix.

    >>> scores = torch.tensor([[2.0, 1.0], [0.0, 3.0], [5.0, 1.0]])
    >>> result = classification(scores, torch.tensor([0, 1, 1]))
    >>> result.confusion
    [[1, 0], [1, 1]]
    """
    if np.ndim(logits) == 1:
        predicted = logits = check_row_labels("predictions", logits, len(logits))
        labels = check_row_labels("labels", labels, len(predicted))
        count = int(max(predicted.max(), labels.max())) + 1
        if count > MOST_CLASSES:
            raise ValueError(
                f"predictions, labels: expected numbers of classes below {MOST_CLASSES:,}; got "
                f"{count - 1:,}: number the classes 0, 1, 2, ..."
            )
        if top:
            raise ValueError("top-k errors need the scores of all classes, not predictions")
    else:
        logits = check_features("logits", logits)
        labels = check_row_labels("labels", labels, len(logits))
        predicted, count = logits.argmax(1), logits.shape[1]
    if int(labels.min()) < 0 or int(labels.max()) >= count:
        wrong = int(labels.min() if int(labels.min()) < 0 else labels.max())
        raise ValueError(f"labels: expected 0 ... {count - 1}; got {wrong}")
    if classes is not None and len(classes) < count:
        raise ValueError(f"classes: expected a name for each of {count}; got {len(classes)}")
    for k in top:
        if not 1 <= k <= count:
            raise ValueError(f"top: expected k from 1 to the {count} classes; got {k}")
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
