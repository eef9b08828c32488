"""Labels: checked, and with a random share of the other classes."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from .host import demand, known

__all__ = [
    "check_labels",
    "check_options",
    "check_shapes",
    "check_soft_targets",
    "sample_classes",
]


def sample_classes(
    labels: Tensor, count: int, share: float, generator: torch.Generator | None = None
) -> tuple[Tensor, Tensor]:
    """All P different classes in `labels`, and a random `share` of the other C - P.

    At least one other is drawn, if there is one. Inside torch.compile and on accelerators, where S
    has to be known ahead, more are: as if all labels were different.

    Args:
        labels: (B,) integers; negative ones do not count.
        count: C, the number of classes.
        share: of the other classes, in (0, 1].
        generator: source of randomness, on the device of the labels.

    Returns:
        The classes (S,), ascending, and the log of how many classes each stands for (S,): 0 for the
        labels, log((C - P) / (S - P)) for the others.

    >>> index, stands_for = sample_classes(torch.tensor([7, 7, 2]), 10, 0.5)
    >>> len(index), 7 in index, 2 in index
    (6, True, True)
    """
    if not 0 < share <= 1:
        raise ValueError(f"sample is a share of the classes, in (0, 1]; got {share}")
    positive = torch.zeros(count + 1, device=labels.device)
    positive[labels.clamp_min(-1)] = 1.0  # a negative label lands in the spare last place
    positive = positive[:count]
    different = positive.sum()
    found = known(different)
    most = min(count, labels.shape[0]) if found is None else int(found)
    size = most + math.ceil(share * (count - most))
    rank = torch.rand(count, device=labels.device, generator=generator) + 2 * positive
    index = rank.topk(size, sorted=False).indices.sort().values
    each = ((count - different) / (size - different).clamp_min(1)).clamp_min(1).log()
    return index, torch.where(positive[index] > 0, torch.zeros_like(each), each)


def check_shapes(features: Tensor, weight: Tensor, labels: Tensor | None) -> None:
    """Raise an error if features, class weights and labels do not fit each other.

    Args:
        features: (B, d).
        weight: (C, d), or (C, K, d) with K sub-centers per class.
        labels: (B,) integers or (B, C) probabilities; None for none.

    Raises:
        ValueError: with the shape expected.
    """
    if features.ndim != 2 or features.shape[1] != weight.shape[-1]:
        raise ValueError(
            f"expected features of shape (B, {weight.shape[-1]}), got {tuple(features.shape)}: "
            f"the class weights are {tuple(weight.shape)}"
        )
    if labels is None:
        return
    expected: tuple[int, ...] = (features.shape[0],)
    if labels.is_floating_point():
        expected = (features.shape[0], weight.shape[0])
    if labels.is_floating_point() and labels.ndim == 1:
        raise ValueError(
            f"class labels are integers, got {labels.dtype}: use labels.long(); soft targets have "
            f"shape {expected}"
        )
    if tuple(labels.shape) != expected:
        raise ValueError(
            f"expected labels of shape {expected} for {features.shape[0]} features, "
            f"got {tuple(labels.shape)}"
        )


def check_labels(labels: Tensor, count: int, ignore_index: int | None = None) -> None:
    """Raise an error that names the first label outside 0..count-1; silent inside torch.compile.

    On an accelerator the host does not wait for the answer: the device stops at an assertion.

    Args:
        labels: (B,) integers.
        count: number of classes.
        ignore_index: a label that is allowed besides. Default: none.

    Raises:
        ValueError: for a label out of range.
    """
    if torch.compiler.is_compiling() or labels.numel() == 0:
        return
    labels = labels.long()  # to a uint8, 156 is -100
    wrong = (labels < 0) | (labels >= count)
    if ignore_index is not None:
        wrong &= labels != ignore_index

    def message() -> str:
        place = int(wrong.nonzero()[0, 0])
        return (
            f"label {int(labels[place])} (sample {place}) is outside 0..{count - 1}: "
            f"there are C = {count} classes"
        )

    demand(~wrong.any(), message)


def check_soft_targets(labels: Tensor, has_margin: bool) -> None:
    """Raise an error if scores with a margin are asked for class probabilities."""
    if labels.is_floating_point() and has_margin:
        raise ValueError(
            "soft targets have no one target class for the margin to act on: give integer labels; "
            "`loss` takes soft targets, as the mean of the losses of their classes"
        )


def check_options(
    labels: Tensor,
    label_smoothing: float,
    sample: float | None,
    class_weight: Tensor | None,
    count: int,
) -> None:
    """Raise an error if options of the cross entropy contradict each other."""
    if not 0 <= label_smoothing <= 1:
        raise ValueError(f"label_smoothing must be in [0, 1], got {label_smoothing}")
    if class_weight is not None and tuple(class_weight.shape) != (count,):
        raise ValueError(
            f"expected class_weight of shape ({count},), one per class; "
            f"got {tuple(class_weight.shape)}"
        )
    if sample is not None and (labels.is_floating_point() or label_smoothing > 0):
        raise ValueError(
            "label smoothing and soft targets need the scores of all classes: leave out `sample`"
        )
