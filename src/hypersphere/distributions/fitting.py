"""The mean of directions, from which both families are fitted."""

from __future__ import annotations

import torch
from torch import Tensor

from ..functional import normalize, row_norm

__all__ = ["mean_direction_and_length"]


def mean_direction_and_length(x: Tensor, weights: Tensor | None) -> tuple[Tensor, Tensor]:
    """Direction and length of the weighted mean of x/|x|, in float64 where the device has it.

    Args:
        x: Directions (..., n, d) of any positive length.
        weights: Weights >= 0, (..., n), or None for equal ones.

    Returns:
        Unit vectors (..., d), the first axis where the mean is zero and any direction would do; and
        lengths (...).
    """
    if not x.is_floating_point() or x.ndim < 2 or x.shape[-2] < 1 or x.shape[-1] < 2:
        raise ValueError(
            "fit expects floating-point directions x of shape (..., n, d), n >= 1 and d >= 2; "
            f"got {tuple(x.shape)}, {x.dtype}"
        )
    wide = x.float() if x.device.type == "mps" else x.double()
    if not bool(wide.isfinite().all()):
        raise ValueError("fit expects finite directions; x holds NaN or infinity")
    unit = normalize(wide)
    if bool((unit == 0).all(-1).any()):
        raise ValueError("fit expects directions; x has rows that are zero, which have none")
    if weights is None:
        mean = unit.mean(-2)
    else:
        if weights.shape != x.shape[:-1]:
            raise ValueError(
                f"fit expects a weight per direction, of shape {tuple(x.shape[:-1])}; "
                f"got {tuple(weights.shape)}"
            )
        weights = weights.to(wide.dtype)
        total = weights.sum(-1, keepdim=True)
        if not bool((weights >= 0).all()) or not bool((total > 0).all()):
            raise ValueError("fit expects weights >= 0 that are not all zero")
        mean = ((weights / total).unsqueeze(-1) * unit).sum(-2)
    length = row_norm(mean)
    if bool((length > 1 - 4 * torch.finfo(length.dtype).eps).any()):
        raise ValueError(
            "fit expects directions that differ; these coincide, so the likelihood grows without "
            "bound as the concentration does"
        )
    first_axis = torch.zeros_like(mean)
    first_axis[..., 0] = 1
    return torch.where(length.unsqueeze(-1) > 0, normalize(mean), first_axis), length
