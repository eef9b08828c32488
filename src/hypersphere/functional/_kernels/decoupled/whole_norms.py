"""Patch norms for accelerators: whole tensors, and norms over windows in a single launch.

n = the norm over the window of the norms over the channels
"""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor

from .backward import wants_plain_gradients
from .convolution import Geometry
from .patch_norms import keep_norms, plain_gradient
from .pooling import spread_windows

__all__ = ["WholeNorms", "norms_to_pixels", "whole_norms"]


class WholeNorms(torch.autograd.Function):
    """x as it is, and its patch norms; the gradients of both meet in one pass over x."""

    @staticmethod
    def forward(
        ctx: Any, x: Tensor, size: tuple[int, ...], geometry: Geometry | None
    ) -> tuple[Tensor, Tensor]:
        norm = whole_norms(x, size, geometry)
        return keep_norms(ctx, x, norm, size, geometry)

    @staticmethod
    def backward(
        ctx: Any, grad_x: Tensor | None, grad_norm: Tensor | None
    ) -> tuple[Tensor | None, None, None]:
        if grad_norm is None or wants_plain_gradients(grad_norm):
            return plain_gradient(ctx, grad_x, grad_norm)
        x, norm = ctx.saved_tensors
        # Nothing flows through the norm of a zero patch, which counts as infinitely long here.
        spread = grad_norm / torch.threshold(norm, 0.0, math.inf)
        pixel = norms_to_pixels(spread, x, ctx.size, ctx.geometry)
        if grad_x is None:
            return x * pixel, None, None
        return torch.addcmul(grad_x, x, pixel), None, None


def norms_to_pixels(
    spread: Tensor, x: Tensor, size: tuple[int, ...], geometry: Geometry | None
) -> Tensor:
    """What the windows of each pixel ask for, ready to multiply x: `spread` is df/dn / n."""
    shape = (*spread.shape[:2], *x.shape[2:])
    pixel = spread_windows(spread, shape, size, geometry)
    pixel = pixel if pixel.dtype == x.dtype else pixel.to(x.dtype)
    groups = spread.shape[1]
    return pixel if groups == 1 else pixel.repeat_interleave(x.shape[1] // groups, 1)


def whole_norms(x: Tensor, size: tuple[int, ...], geometry: Geometry | None) -> Tensor:
    """|x| of every patch, or of every row if geometry is None: (B, groups, ...)."""
    wide = torch.promote_types(x.dtype, torch.float32)
    groups = 1 if geometry is None else geometry.groups
    channels = x if groups == 1 else x.unflatten(1, (groups, -1))  # type: ignore[no-untyped-call]
    dim = 1 if groups == 1 else 2
    options = {"dim": dim, "keepdim": groups == 1, "dtype": wide}
    if geometry is None:
        rows: Tensor = torch.linalg.vector_norm(channels, **options)
        return rows
    if any(geometry.padding):
        # The norms of the pixels go straight between zeros.
        sides = [n + 2 * pad for n, pad in zip(x.shape[2:], geometry.padding, strict=True)]
        pixels = torch.zeros(len(x), groups, *sides, dtype=wide, device=x.device)
        inner = pixels
        for axis, pad in enumerate(geometry.padding, 2):
            inner = inner.narrow(axis, pad, x.shape[axis])
        torch.linalg.vector_norm(channels, **options, out=inner)
    else:
        pixels = torch.linalg.vector_norm(channels, **options)
    windows = _windows(pixels, size, geometry)
    norm: Tensor = torch.linalg.vector_norm(windows, dim=list(range(-len(size), 0)))
    return norm


def _windows(pixels: Tensor, size: tuple[int, ...], geometry: Geometry) -> Tensor:
    """All windows of (B, G, ...) as a view (B, G, outputs..., window...)."""
    strides = pixels.stride()[2:]
    outputs = [
        (n - gap * (count - 1) - 1) // step + 1
        for n, count, step, gap in zip(
            pixels.shape[2:], size, geometry.stride, geometry.dilation, strict=True
        )
    ]
    steps = [stride * step for stride, step in zip(strides, geometry.stride, strict=True)]
    gaps = [stride * gap for stride, gap in zip(strides, geometry.dilation, strict=True)]
    shape = (*pixels.shape[:2], *outputs, *size)
    return pixels.as_strided(shape, (*pixels.stride()[:2], *steps, *gaps))
