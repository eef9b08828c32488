"""Patch norms for accelerators: whole tensors, and sums over windows in a single launch.

n^2 = sum over the window of the sum of x^2 over the channels
"""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor

from .convolution import Geometry
from .patch_norms import keep_norms, plain_gradient
from .pooling import spread_windows, sum_windows

__all__ = ["WholeNorms"]


class WholeNorms(torch.autograd.Function):
    """x as it is, and its patch norms; the gradients of both meet in one pass over x."""

    @staticmethod
    def forward(
        ctx: Any, x: Tensor, size: tuple[int, ...], geometry: Geometry | None
    ) -> tuple[Tensor, Tensor]:
        norm = _norms(x, size, geometry)
        return keep_norms(ctx, x, norm, size, geometry)

    @staticmethod
    def backward(
        ctx: Any, grad_x: Tensor | None, grad_norm: Tensor | None
    ) -> tuple[Tensor | None, None, None]:
        if grad_norm is None or torch.is_grad_enabled():
            return plain_gradient(ctx, grad_x, grad_norm)
        x, norm = ctx.saved_tensors
        # Nothing flows through the norm of a zero patch, which counts as infinitely long here.
        spread = grad_norm / torch.threshold(norm, 0.0, math.inf)
        shape = (*norm.shape[:2], *x.shape[2:])
        pixel = spread_windows(spread, shape, ctx.size, ctx.geometry)
        pixel = pixel if pixel.dtype == x.dtype else pixel.to(x.dtype)
        if norm.shape[1] > 1:
            pixel = pixel.repeat_interleave(x.shape[1] // norm.shape[1], 1)
        if grad_x is None:
            return x * pixel, None, None
        return torch.addcmul(grad_x, x, pixel), None, None


def _norms(x: Tensor, size: tuple[int, ...], geometry: Geometry | None) -> Tensor:
    wide = torch.promote_types(x.dtype, torch.float32)
    groups = 1 if geometry is None else geometry.groups
    channels = x if groups == 1 else x.unflatten(1, (groups, -1))  # type: ignore[no-untyped-call]
    dim = 1 if groups == 1 else 2
    norm: Tensor = torch.linalg.vector_norm(channels, dim=dim, keepdim=groups == 1, dtype=wide)
    if geometry is None:
        return norm
    return sum_windows(norm.square_(), size, geometry).sqrt_()
