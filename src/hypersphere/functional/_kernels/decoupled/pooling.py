"""Sums over the windows of a convolution in a single launch, and their adjoint.

A pooling adds up the windows in the type of its input. A convolution with ones would round that to
TF32 where the user allows this for convolutions, and the cosines of all patches with it.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from .convolution import Geometry, box_filter, box_filter_transposed

__all__ = ["spread_windows", "sum_windows"]


def sum_windows(squares: Tensor, size: tuple[int, ...], geometry: Geometry) -> Tensor:
    """Sums over the windows of a convolution, (B, G, ...)."""
    if not _pools(size, geometry):
        return box_filter(squares, size, geometry)
    if len(size) == 3:
        steps = (geometry.stride, geometry.padding)
        cubes: Tensor = torch.ops.aten.avg_pool3d(squares, size, *steps, False, True, 1)
        return cubes
    flat, window = _as_images(squares, size, geometry)
    sums: Tensor = torch.ops.aten.avg_pool2d(flat, *window, False, True, 1)
    return sums if squares.ndim == 4 else sums.squeeze(2)


def spread_windows(
    grad: Tensor, shape: Sequence[int], size: tuple[int, ...], geometry: Geometry | None
) -> Tensor:
    """The adjoint of sum_windows: spreads a value per window over the pixels of that window."""
    if geometry is None:
        return grad
    if not _pools(size, geometry):
        return box_filter_transposed(grad, shape, size, geometry)
    like = grad.new_empty(shape)  # the operator below asks for its shape alone
    if len(size) == 3:
        steps = (geometry.stride, geometry.padding)
        cells: Tensor = torch.ops.aten.avg_pool3d_backward(grad, like, size, *steps, False, True, 1)
        return cells
    flat, window = _as_images(grad, size, geometry)
    like = like if grad.ndim == 4 else like.unsqueeze(2)
    pixels: Tensor = torch.ops.aten.avg_pool2d_backward(flat, like, *window, False, True, 1)
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
