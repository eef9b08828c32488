"""Arguments of heads: as Python's own numbers, and checked against each other."""

from __future__ import annotations

import math
import numbers
from typing import Any, TypeVar, get_args

import torch
from torch import Tensor, nn

from ..functional.angular import Angular, check_angular, is_cosine
from ..functional.class_parts import Reduction, reduce
from ..functional.target_score import Gradient
from .theory import automatic_scale

__all__ = ["check_head", "chosen_scale", "plain_number", "sizes", "slow_start", "weighted_penalty"]

_Number = TypeVar("_Number")
# With a larger one, scores of neighboring float32 cosines differ by more than 0.06.
LARGEST_SCALE = 1e6


def plain_number(value: _Number) -> _Number | float:
    """A number of another library (``np.float32(0.5)``) as Python's; anything else as it is."""
    if type(value) in (int, float, bool) or not isinstance(value, numbers.Real):
        return value
    return int(value) if isinstance(value, numbers.Integral) else float(value)


def sizes(in_features: int, num_classes: int) -> tuple[int, int]:
    """Both as Python integers; raise unless they are whole numbers above 0."""
    for name, size in (("in_features", in_features), ("num_classes", num_classes)):
        if not _is_count(size):
            raise ValueError(f"expected a whole number {name} >= 1, got {size!r}")
    return int(in_features), int(num_classes)


def _is_count(value: Any) -> bool:
    whole = isinstance(value, numbers.Integral) and not isinstance(value, bool)
    return whole and value >= 1


def chosen_scale(scale: float | None, in_features: int, num_classes: int) -> float:
    """The scale of a head that takes one from the number of classes unless it is given."""
    return automatic_scale(sizes(in_features, num_classes)[1]) if scale is None else scale


def slow_start(in_features: int) -> float:
    """Standard deviation of the entries of W for rows of length 3; see the trap in docs/heads.md.

    A row turns by about 1 / |w|^2 of what it would turn at length 1.
    """
    return 3.0 / math.sqrt(sizes(in_features, 1)[0])


def weighted_penalty(
    penalty: Tensor, classes: Tensor, class_weight: Tensor | None, reduction: Reduction
) -> Tensor:
    """The mean, sum or (B,) of a penalty per sample, weighted as the losses are.

    `classes` are labels (B,), -1 for samples that do not count, or probabilities (B, C), whose mean
    is over the samples as in torch's `cross_entropy`.
    """
    if classes.is_floating_point():
        mass = classes.to(penalty)
        mass = mass if class_weight is None else mass * class_weight.to(penalty)
        return reduce(mass.sum(1) * penalty, None, reduction)
    own = (classes >= 0).to(penalty)
    if class_weight is not None:
        own = own * class_weight.to(penalty)[classes.clamp_min(0)]
    values = torch.where(own > 0, own * penalty, torch.zeros_like(penalty))
    return reduce(values, own, reduction)


def check_head(
    margin: Any,
    *,
    scale: float | None,
    learn_scale: bool,
    keep_weight_norm: bool,
    angular: Angular,
    k: float | None,
    learn_k: bool,
    gradient: Gradient,
    sample: float | None,
    subcenters: int,
    start_std: float | None,
) -> None:
    """Raise an error if arguments of `MarginHead` are out of range or contradict each other."""
    one_only = keep_weight_norm or gradient == "caffe"
    if not _is_count(subcenters) or (subcenters > 1 and one_only):
        raise ValueError(
            "expected a whole number of subcenters >= 1, and 1 with keep_weight_norm or "
            f"gradient='caffe'; got {subcenters!r}"
        )
    if start_std is not None and not start_std > 0:
        raise ValueError(f"start_std is a standard deviation > 0; got {start_std}")
    if scale is not None and not 0 < scale <= LARGEST_SCALE:
        raise ValueError(
            f"scale is None for |x|, or a number in (0, {LARGEST_SCALE:g}] (10 to 70 works); got "
            f"{scale}"
        )
    if margin is not None and not callable(margin):
        raise TypeError(
            f"margin is a Margin, such as Margin(m=4), Margin(shift=0.5) or "
            f"Margin(subtract=0.35), a callable psi of cos(theta), or None; got {margin!r}"
        )
    if learn_scale and scale is None:
        raise ValueError("learn_scale=True needs a scale to start from, e.g. scale=30.0")
    if learn_k and (isinstance(angular, nn.Module) or check_angular(angular, k).default_k is None):
        raise ValueError(
            f"learn_k=True learns the curvature of angular='sigmoid' (Eq. 4.13), which "
            f"{angular!r} is not; a module of the layers learns its own (learnable=True)"
        )
    if gradient not in get_args(Gradient):
        raise ValueError(f"gradient must be one of {get_args(Gradient)}, got {gradient!r}")
    kind: Angular = getattr(angular, "kind", angular)
    check_angular(kind, k)
    if gradient == "caffe" and (keep_weight_norm or scale is not None or not is_cosine(kind)):
        raise ValueError(
            "gradient='caffe' is the released A-Softmax layer: unit weights, scale=None (|x|) "
            "and the cosine; use 'exact' or 'detached' here"
        )
    if sample is not None and not 0 < sample <= 1:
        raise ValueError(f"sample is a share of the classes, in (0, 1]; got {sample}")
