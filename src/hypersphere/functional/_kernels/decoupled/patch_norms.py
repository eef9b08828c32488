"""The norms of patches: in plain operations, and tile by tile for a processor.

The norm of every patch costs one pass over the input: sum x^2 over the channels, then add up each
window with a box filter of one channel per group. It never holds the patches themselves.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from .backward import plain_gradients, wants_plain_gradients
from .convolution import (
    Geometry,
    box_filter,
    box_filter_transposed,
    correlate,
    inverse_norm,
    is_compiled,
)
from .pooling import sum_windows
from .workspace import Workspace, tiles

__all__ = ["PatchNorms", "keep_norms", "plain_gradient", "plain_patch_norms"]


def plain_patch_norms(x: Tensor, size: tuple[int, ...], geometry: Geometry | None) -> Tensor:
    """Patch norms in differentiable operations."""
    squares = _squared_sum(x, geometry)
    if geometry is not None and (is_compiled() or torch.jit.is_tracing()):  # type: ignore[attr-defined, no-untyped-call]
        # A convolution stores its result; a compiler would add up the windows for each filter. On
        # a graphics card it might round to TF32, which a pooling does not. A trace of torch.jit
        # would hold the shifts of a box filter, which fit one size of images only.
        if squares.device.type == "cpu":
            squares = correlate(squares, squares.new_ones(geometry.groups, 1, *size), geometry)
        else:
            squares = sum_windows(squares, size, geometry)
    else:
        squares = box_filter(squares, size, geometry)
    # A plain root has the gradient 0 * infinity at 0; this one has 0.
    positive = squares > 0
    safe = torch.where(positive, squares, torch.ones_like(squares))
    return torch.where(positive, safe.sqrt(), torch.zeros_like(squares))


def patch_norms(x: Tensor, size: tuple[int, ...], geometry: Geometry | None) -> Tensor:
    """Patch norms as fast as they get, without a graph."""
    groups = 1 if geometry is None else geometry.groups
    wide = torch.promote_types(x.dtype, torch.float32)
    squares = torch.empty(x.shape[0], groups, *x.shape[2:], dtype=wide, device=x.device)
    new, groups_of = Workspace(wide), (groups, x.shape[1] // groups)
    for rows in tiles(x):
        part = x[rows].contiguous()
        new.start(part)
        square = torch.mul(part, part, out=new()) if part.dtype == wide else part.float().square()
        torch.sum(square.unflatten(1, groups_of), 2, out=squares[rows])  # type: ignore[no-untyped-call]
    return box_filter(squares, size, geometry).sqrt()


def keep_norms(
    ctx: Any, x: Tensor, norm: Tensor, size: tuple[int, ...], geometry: Geometry | None
) -> tuple[Tensor, Tensor]:
    """The end of the forward pass of a function of x that gives x as it is and its patch norms."""
    ctx.size, ctx.geometry = size, geometry
    ctx.set_materialize_grads(False)
    ctx.save_for_backward(x, norm)
    return x.view_as(x), norm


def plain_gradient(
    ctx: Any, grad_x: Tensor | None, grad_norm: Tensor | None
) -> tuple[Tensor | None, None, None]:
    """Its backward pass if nothing comes through the norm, or by plain operations."""
    if grad_norm is None:
        return grad_x, None, None
    x, _ = ctx.saved_tensors
    (through_norm,) = plain_gradients(
        lambda x: plain_patch_norms(x, ctx.size, ctx.geometry), [x], [True], grad_norm
    )
    assert through_norm is not None  # the norms depend on x
    return through_norm if grad_x is None else grad_x + through_norm, None, None


class PatchNorms(torch.autograd.Function):
    """x as it is, and its patch norms: so the gradients of both meet in one pass over x."""

    @staticmethod
    def forward(
        ctx: Any, x: Tensor, size: tuple[int, ...], geometry: Geometry | None
    ) -> tuple[Tensor, Tensor]:
        norm = patch_norms(x, size, geometry)
        return keep_norms(ctx, x, norm, size, geometry)

    @staticmethod
    def backward(
        ctx: Any, grad_x: Tensor | None, grad_norm: Tensor | None
    ) -> tuple[Tensor | None, None, None]:
        if grad_norm is None or wants_plain_gradients(grad_norm):
            return plain_gradient(ctx, grad_x, grad_norm)
        x, norm = ctx.saved_tensors
        # A pixel gets x times what the norms of all its windows ask for.
        spread = grad_norm * inverse_norm(norm)
        shape = (*norm.shape[:2], *x.shape[2:])
        pixel = box_filter_transposed(spread, shape, ctx.size, ctx.geometry).to(x.dtype)
        if norm.shape[1] > 1:
            pixel = pixel.repeat_interleave(x.shape[1] // norm.shape[1], 1)
        if grad_x is None:
            return x * pixel, None, None
        return torch.addcmul(grad_x, x, pixel, out=torch.empty_like(x)), None, None


def _squared_sum(x: Tensor, geometry: Geometry | None) -> Tensor:
    """Sum of x^2 over the channels of each group, in float32 or wider: (B, groups, ...)."""
    wide = x.float() if x.dtype in (torch.float16, torch.bfloat16) else x
    if geometry is None or geometry.groups == 1:
        return wide.square().sum(1, keepdim=True)
    squares: Tensor = wide.unflatten(1, (geometry.groups, -1)).square().sum(2)  # type: ignore[no-untyped-call]
    return squares
