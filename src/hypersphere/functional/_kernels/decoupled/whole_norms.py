"""Patch norms for accelerators: whole tensors, and sums over windows in a single launch.

n^2 = sum over the window of the sum of x^2 over the channels
"""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor

from .convolution import Geometry
from .patch_norms import plain_patch_norms
from .pooling import spread_windows, sum_windows

__all__ = ["WholeNorms"]


class WholeNorms(torch.autograd.Function):
    """x as it is, and its patch norms; the gradients of both meet in one pass over x."""

    @staticmethod
    def forward(
        ctx: Any, x: Tensor, size: tuple[int, ...], geometry: Geometry | None
    ) -> tuple[Tensor, Tensor]:
        norm = _norms(x, size, geometry)
        ctx.size, ctx.geometry = size, geometry
        ctx.set_materialize_grads(False)
        ctx.save_for_backward(x, norm)
        return x.view_as(x), norm

    @staticmethod
    def backward(
        ctx: Any, grad_x: Tensor | None, grad_norm: Tensor | None
    ) -> tuple[Tensor | None, None, None]:
        x, norm = ctx.saved_tensors
        if grad_norm is None:
            return grad_x, None, None
        if torch.is_grad_enabled():  # a second derivative will be asked of the result
            norm = plain_patch_norms(x, ctx.size, ctx.geometry)
            (through_norm,) = torch.autograd.grad(norm, [x], grad_norm, create_graph=True)
            return through_norm if grad_x is None else grad_x + through_norm, None, None
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
