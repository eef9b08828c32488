"""Patch norms of images, and the gradient that comes back through them."""

from __future__ import annotations

from functools import lru_cache
from typing import Any

import torch
from torch import Tensor

from ..backward import wants_plain_gradients
from ..convolution import Geometry
from ..patch_norms import keep_norms, plain_gradient
from .tensors import Sizes, Windows, is_dense, norms_library, suits, threads_for

__all__ = ["measured", "native_norms", "spread_over_pixels", "through_norms"]


def native_norms(
    x: Tensor, size: tuple[int, ...], geometry: Geometry | None
) -> tuple[Tensor, Tensor] | None:
    """x and |x| of every patch; None where the kernels cannot: linear maps, groups, volumes."""
    if geometry is None or geometry.groups > 1 or x.ndim != 4 or not suits(x):
        return None
    if norms_library() is None or not is_dense(x):
        return None
    result: tuple[Tensor, Tensor] = _NativeNorms.apply(x, size, geometry)  # type: ignore[no-untyped-call]
    return result


def spread_over_pixels(
    grad_norm: Tensor, norm: Tensor, x: Tensor, size: tuple[int, ...], geometry: Geometry
) -> Tensor:
    """What x is multiplied with in its gradient: grad / norm of all windows that a pixel is in."""
    windows, grad_norm = _windows(x.shape[2:], size, geometry), grad_norm.contiguous()
    pixel = x.new_empty(x.shape[0], 1, *x.shape[2:])
    places = (grad_norm.data_ptr(), norm.data_ptr(), pixel.data_ptr())
    norms_library().spread(*places, windows, x.shape[0], threads_for(x))
    return pixel


def measured(x: Tensor, size: tuple[int, ...], geometry: Geometry) -> Tensor:
    """|x| of every patch, without a graph."""
    kernels, windows = norms_library(), _windows(x.shape[2:], size, geometry)
    sums = x.new_empty(x.shape[0], 1, windows.height, windows.width)
    norm = x.new_empty(x.shape[0], 1, windows.out_height, windows.out_width)
    threads = threads_for(x)
    kernels.squares(x.data_ptr(), sums.data_ptr(), Sizes.of(x), threads)
    kernels.window_norms(sums.data_ptr(), norm.data_ptr(), windows, x.shape[0], threads)
    return norm


def through_norms(
    grad_x: Tensor,
    grad_norm: Tensor,
    norm: Tensor,
    x: Tensor,
    size: tuple[int, ...],
    geometry: Geometry,
) -> Tensor:
    """The gradient in x with what comes through the norms; `grad_x` may be written into."""
    if grad_x.stride() != x.stride() or x.is_neg():
        pixel = spread_over_pixels(grad_norm, norm, x, size, geometry)
        return torch.addcmul(grad_x, x, pixel, out=torch.empty_like(x))
    places = (grad_norm.data_ptr(), norm.data_ptr(), x.data_ptr(), grad_x.data_ptr())
    windows = _windows(x.shape[2:], size, geometry)
    norms_library().add_through_norms(*places, windows, Sizes.of(x), threads_for(x))
    return grad_x


class _NativeNorms(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, x: Tensor, size: tuple[int, ...], geometry: Geometry
    ) -> tuple[Tensor, Tensor]:
        return keep_norms(ctx, x, measured(x.detach(), size, geometry), size, geometry)

    @staticmethod
    def backward(
        ctx: Any, grad_x: Tensor | None, grad_norm: Tensor | None
    ) -> tuple[Tensor | None, None, None]:
        if grad_norm is None or wants_plain_gradients(grad_norm):
            return plain_gradient(ctx, grad_x, grad_norm)
        x, norm = ctx.saved_tensors
        pixel = spread_over_pixels(grad_norm, norm, x, ctx.size, ctx.geometry)
        return x * pixel if grad_x is None else torch.addcmul(grad_x, x, pixel), None, None


@lru_cache(maxsize=1024)
def _windows(image: tuple[int, int], size: tuple[int, ...], geometry: Geometry) -> Windows:
    """The numbers of both dimensions of an image."""
    outputs = [
        (length + 2 * pad - gap * (count - 1) - 1) // step + 1
        for length, count, step, pad, gap in zip(image, size, *geometry[:3], strict=True)
    ]
    pairs = [(values[0], values[1]) for values in (size, *geometry[:3])]
    return Windows(*image, *outputs, *pairs)
