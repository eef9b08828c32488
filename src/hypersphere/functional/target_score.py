"""The score of the target class, with its margin, and the three ways to differentiate it."""

from __future__ import annotations

from typing import Literal, TypeAlias

import torch
from torch import Tensor

from .angles import cosine, normalize, row_norm
from .angular import Angular, angular, is_cosine
from .margins import Psi, anneal, is_trivial, psi_slope, psi_value

__all__ = ["GRADIENTS", "Gradient", "target_level", "target_score"]

Gradient: TypeAlias = Literal["exact", "detached", "caffe"]

GRADIENTS = ("exact", "detached", "caffe")


def target_score(
    z: Tensor,
    rows: Tensor,
    psi: Psi,
    unit: bool = True,
    kind: Angular = "cosine",
    k: float | Tensor | None = None,
    lam: float | Tensor | None = None,
    gradient: Gradient = "exact",
) -> Tensor:
    """|z| n psi(theta) between corresponding rows of z and of the target classes: (B,)."""
    if gradient not in GRADIENTS:
        raise ValueError(f"gradient must be one of {', '.join(GRADIENTS)}; got {gradient!r}")
    if gradient == "caffe" and not (unit and is_cosine(kind)):
        raise ValueError(
            "gradient='caffe' is the released A-Softmax layer: unit weights and the cosine; "
            "use 'exact' or 'detached' for other heads"
        )
    if gradient != "caffe" and is_trivial(psi):
        return _plain_score(z, rows, unit, kind, k)
    cos = cosine(z, rows)
    length = row_norm(z) if unit else row_norm(z) * row_norm(rows)
    score = length * target_level(cos, psi, kind, k, lam)
    if gradient == "exact":
        return score
    if gradient == "detached":
        plain = _plain_score(z, rows, unit, kind, k)
        return plain + (score - plain).detach()
    return _with_caffe_gradient(score, z, rows, cos.detach(), psi, lam)


def target_level(
    cos: Tensor,
    psi: Psi,
    kind: Angular = "cosine",
    k: float | Tensor | None = None,
    lam: float | Tensor | None = None,
) -> Tensor:
    """psi(theta), annealed: what the target's score is without its length. Shaped like cos."""
    level = psi_value(psi, cos, kind, k)
    return level if lam is None else anneal(level, angular(cos, kind, k), lam)


def _plain_score(
    z: Tensor, rows: Tensor, unit: bool, kind: Angular, k: float | Tensor | None
) -> Tensor:
    if is_cosine(kind):
        return (z * (normalize(rows) if unit else rows)).sum(-1)
    score = row_norm(z) * angular(cosine(z, rows), kind, k)
    return score if unit else score * row_norm(rows)


def _with_caffe_gradient(
    score: Tensor, z: Tensor, rows: Tensor, cos: Tensor, psi: Psi, lam: float | Tensor | None
) -> Tensor:
    with torch.no_grad():
        direction, x = normalize(rows), z.detach()
        value, slope = psi_value(psi, cos), psi_slope(psi, cos)
        length = row_norm(x)
        # the x-gradient of |x| psi(theta) is a w + b x
        b = torch.where(length > 0, (value - slope * cos) / length, torch.zeros_like(length))
        size = torch.hypot(slope, b).clamp_min(torch.finfo(z.dtype).tiny)
        toward = (slope / size)[:, None] * direction + (b / size)[:, None] * x
        if lam is not None:
            toward = anneal(toward, direction, lam)
    surrogate = (toward * z).sum(-1) + (x * rows).sum(-1)
    return score.detach() + surrogate - surrogate.detach()
