"""The steps of a loss over classes, which the dense, the chunked and the sharded one share."""

from __future__ import annotations

from typing import Literal, TypeAlias

import torch
from torch import Tensor

from .angles import cosine, normalize
from .angular import Angular
from .margins import Psi
from .target_score import target_level

__all__ = [
    "Reduction",
    "assemble_loss",
    "check_weight",
    "own_bias",
    "reached_level",
    "reduce",
    "scaled_features",
    "smoothing_mass",
]

Reduction: TypeAlias = Literal["mean", "sum", "none"]


def check_weight(weight: Tensor, unit: bool, curriculum: float | Tensor | None) -> int:
    """How many sub-centers a class has; raise an error if the scores cannot have them."""
    if weight.ndim == 2:
        return 1
    if weight.ndim != 3 or not unit or curriculum is not None:
        raise ValueError(
            f"class weights are (C, d), or (C, K, d) with K sub-centers of unit length and without "
            f"a curriculum; got {tuple(weight.shape)}"
        )
    return weight.shape[1]


def own_bias(bias: Tensor, classes: Tensor) -> Tensor:
    """The bias of the classes (B,); that of class 0 for negative ones."""
    return bias if bias.ndim == 0 else bias[classes.clamp_min(0)]


@torch.no_grad()
def reached_level(
    z: Tensor,
    weight: Tensor,
    classes: Tensor,
    psi: Psi,
    kind: Angular = "cosine",
    k: float | Tensor | None = None,
    lam: float | Tensor | None = None,
) -> Tensor:
    """psi(theta_y) (B,), without gradient: what makes another class hard."""
    rows = weight[classes.clamp_min(0)].to(z.dtype)
    return target_level(cosine(z, rows), psi, kind, k, lam)


def smoothing_mass(
    label_smoothing: float, class_weight: Tensor | None, count: int, like: Tensor
) -> Tensor | None:
    """The weights of the scores in the smoothing term, or None without smoothing."""
    if label_smoothing == 0:
        return None
    return like.new_ones(count) if class_weight is None else class_weight.to(like)


def assemble_loss(
    others: Tensor,
    target: Tensor,
    moment: Tensor,
    target_class: Tensor,
    count: int,
    class_weight: Tensor | None,
    label_smoothing: float,
    reduction: Reduction,
) -> Tensor:
    """The loss from log sum exp over the other classes, the target's score and sum mass_j f_j."""
    valid = target_class >= 0
    total = torch.logaddexp(others, target)
    own = valid.to(total) if class_weight is None else class_weight.to(total)[target_class] * valid
    loss = own * (total - target)
    if label_smoothing > 0:
        mass = float(count) if class_weight is None else class_weight.to(total).sum()
        spread = mass * total - moment - own * target
        loss = (1 - label_smoothing) * loss + label_smoothing / count * spread
    return reduce(torch.where(valid, loss, torch.zeros_like(loss)), own, reduction)


def scaled_features(features: Tensor, weight: Tensor, scale: float | Tensor | None) -> Tensor:
    """x or s x/|x|, in float32 or wider: its length is the scale of the scores."""
    wide = torch.promote_types(torch.promote_types(features.dtype, weight.dtype), torch.float32)
    x = features.to(wide)
    return x if scale is None else scale * normalize(x)


def reduce(loss: Tensor, weights: Tensor | None, reduction: Reduction) -> Tensor:
    """As torch: "mean" divides by the sum of the samples' weights, or their number if None."""
    if reduction == "none":
        return loss
    if reduction == "sum":
        return loss.sum()
    if reduction == "mean":
        return loss.sum() / (loss.shape[0] if weights is None else weights.sum())
    raise ValueError(f"reduction must be 'mean', 'sum' or 'none', got {reduction!r}")
