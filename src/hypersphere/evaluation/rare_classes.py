"""Class imbalance: the error on the whole test set and on the classes rare in training."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from .class_errors import classification
from .inputs import is_number
from .results import Result, percent


@dataclass
class ImbalanceResult(Result):
    """Result of `imbalance` (Tables 5.7 and D.6).

    Args:
        error: on the whole test set.
        rare_error: on the rare classes.
        common_error: on the other classes.
        rare: the rare classes.
        class_error: error of each class; NaN for a class without samples.
        train_counts: training samples of each class, where given.
    """

    error: float
    rare_error: float
    common_error: float
    rare: list[int]
    class_error: list[float]
    train_counts: list[int]

    def rows(self) -> Iterator[Sequence[object]]:
        yield "error, whole test set", percent(self.error)
        yield f"error, rare classes {self.rare}", percent(self.rare_error)
        yield "error, other classes", percent(self.common_error)


def imbalance(
    logits: Tensor,
    labels: Tensor,
    rare: Sequence[int] | None = None,
    train_counts: Tensor | None = None,
    threshold: float = 0.5,
) -> ImbalanceResult:
    """Error on all samples, on the rare classes and on the others.

    Args:
        logits: (n, C) scores or (n,) predictions.
        labels: (n,).
        rare: the classes with few training samples. Default: those with less than `threshold` of
            the largest class of `train_counts`.
        train_counts: (C,) training samples of each class.
        threshold: share of the largest class below which a class is rare.

    Returns:
        The three errors.

    >>> result = imbalance(torch.tensor([0, 1, 1, 1]), torch.tensor([0, 0, 1, 1]), rare=[0])
    >>> result.error, result.rare_error, result.common_error
    (0.25, 0.5, 0.0)
    """
    if not (is_number(threshold) and 0 < threshold <= 1):
        raise ValueError(f"threshold: expected a share in (0, 1]; got {threshold!r}")
    result = classification(logits, labels)
    counts = [] if train_counts is None else _counts(train_counts, len(result.class_error))
    if rare is None:
        if not counts:
            raise ValueError("say which classes are rare, or give train_counts to find them")
        rare = [c for c, n in enumerate(counts) if n < threshold * max(counts)]
        if not rare:
            raise ValueError(
                f"no class is rare in training: the classes have {min(counts)} to {max(counts)} "
                f"samples, and rare is below {threshold:g} of the most; say which to take as rare "
                f"(--rare CLASS ..., in Python rare=[...])"
            )
    confusion = torch.tensor(result.confusion)
    chosen = torch.zeros(len(confusion), dtype=torch.bool)
    for c in rare:
        if not 0 <= c < len(confusion):
            raise ValueError(f"rare: class {c} is not among the {len(confusion)} classes")
        chosen[c] = True
    if not bool(chosen.any()) or int(confusion[chosen].sum()) == 0:
        raise ValueError(f"rare: no test sample is of the rare classes {list(rare)}")

    def error(part: Tensor) -> float:
        total = confusion[part].sum().double()
        return float(1 - confusion.diagonal()[part].sum() / total)

    return ImbalanceResult(
        result.error, error(chosen), error(~chosen), sorted(rare), result.class_error, counts
    )


def _counts(train_counts: Any, classes: int) -> list[int]:
    found = torch.as_tensor(train_counts)
    if found.ndim != 1 or len(found) < classes:
        raise ValueError(
            f"train_counts: expected a count for each of the {classes} classes; got shape "
            f"{tuple(found.shape)}"
        )
    counts = found.tolist()
    bad = [n for n in counts if not (is_number(n) and n >= 0 and float(n).is_integer())]
    if bad:
        raise ValueError(f"train_counts: expected whole numbers, at least 0; got {bad[0]}")
    return [int(n) for n in counts]
