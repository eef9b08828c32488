"""Patch norms for accelerators: whole tensors, and sums over windows in a single launch.

    n^2 = sum over the window of the sum of x^2 over the channels

A pooling adds up the windows in the type of its input. A convolution with ones would round that to
TF32 where the user allows this for convolutions, and the cosines of all patches with it.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from .convolution import (
    Geometry,
    box_filter,
    box_filter_transposed,
    plain_patch_norms,
)

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
        pixel = _spread_windows(spread, shape, ctx.size, ctx.geometry)
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
    return _sum_windows(norm.square_(), size, geometry).sqrt_()


def _sum_windows(squares: Tensor, size: tuple[int, ...], geometry: Geometry) -> Tensor:
    """Sums over the windows of a convolution, (B, G, ...)."""
    if not _pools(size, geometry):
        return box_filter(squares, size, geometry)
    if len(size) == 3:
        return torch.ops.aten.avg_pool3d(
            squares, size, geometry.stride, geometry.padding, False, True, 1
        )
    flat, (size, stride, padding) = _as_images(squares, size, geometry)
    sums: Tensor = torch.ops.aten.avg_pool2d(flat, size, stride, padding, False, True, 1)
    return sums if squares.ndim == 4 else sums.squeeze(2)


def _spread_windows(
    grad: Tensor, shape: Sequence[int], size: tuple[int, ...], geometry: Geometry | None
) -> Tensor:
    """The adjoint of _sum_windows: spreads a value per window over the pixels of that window."""
    if geometry is None:
        return grad
    if not _pools(size, geometry):
        return box_filter_transposed(grad, shape, size, geometry)
    like = grad.new_empty(shape)  # the operator below asks for its shape alone
    if len(size) == 3:
        return torch.ops.aten.avg_pool3d_backward(
            grad, like, size, geometry.stride, geometry.padding, False, True, 1
        )
    flat, (size, stride, padding) = _as_images(grad, size, geometry)
    like = like if grad.ndim == 4 else like.unsqueeze(2)
    pixels: Tensor = torch.ops.aten.avg_pool2d_backward(
        flat, like, size, stride, padding, False, True, 1
    )
    return pixels if grad.ndim == 4 else pixels.squeeze(2)


def _pools(size: tuple[int, ...], geometry: Geometry) -> bool:
    """Whether a pooling knows windows like these: no gaps, and no more than half of it padding."""
    return (
        all(gap == 1 for gap in geometry.dilation)
        and all(2 * pad <= n for pad, n in zip(geometry.padding, size, strict=True))
        # The backward of a pooling in three dimensions adds in any order.
        and (len(size) < 3 or not torch.are_deterministic_algorithms_enabled())
    )


def _as_images(
    value: Tensor, size: tuple[int, ...], geometry: Geometry
) -> tuple[Tensor, tuple[list[int], list[int], list[int]]]:
    """Signals as images of height 1; what poolings of one dimension lack is the divisor."""
    if value.ndim == 4:
        return value, (list(size), list(geometry.stride), list(geometry.padding))
    return value.unsqueeze(2), (
        [1, *size],
        [1, *geometry.stride],
        [0, *geometry.padding],
    )
