"""The patches that a convolution compares its filters with: their projections and their norms.

The norm of every patch costs one pass over the input: sum x^2 over the channels, then add up each
window with a box filter of one channel a group. It never holds the patches themselves.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor
from torch.nn import functional as F

__all__ = ["Geometry", "box_filter", "patch_norm", "project", "resolve_geometry", "squared_sum"]


class Geometry(NamedTuple):
    """How the windows of a convolution lie on its input; None stands for a linear layer."""

    stride: tuple[int, ...]
    padding: tuple[int, ...]
    dilation: tuple[int, ...]
    groups: int


def patch_norm(
    x: Tensor,
    kernel_size: int | Sequence[int],
    stride: int | Sequence[int] = 1,
    padding: str | int | Sequence[int] = 0,
    dilation: int | Sequence[int] = 1,
    groups: int = 1,
) -> Tensor:
    """|x| of every patch that a convolution of this geometry sees; gradient 0 at zero patches.

    x: (B, C, ...) with one to three spatial dimensions, or (C, ...) unbatched. Returns
    (B, groups, ...) in float32 or wider: a filter of group g is compared with the channels of
    group g alone. Zero padding adds nothing to a norm.

    The released code adds 1e-4 under the root, which turns a patch of norm 0.01 that is parallel
    to its filter into a cosine of 0.71; here nothing is added.

    >>> patch_norm(torch.ones(1, 4, 2, 2), kernel_size=2)
    tensor([[[[4.]]]])
    """
    if torch.is_autocast_enabled(x.device.type):  # which would run the box filter in 16 bits
        with torch.autocast(x.device.type, enabled=False):
            return patch_norm(x, kernel_size, stride, padding, dilation, groups)
    sizes = [kernel_size] if isinstance(kernel_size, int) else list(kernel_size)
    spatial = len(sizes) if len(sizes) > 1 else max(x.ndim - 2, 1)
    sizes = sizes * spatial if len(sizes) == 1 else sizes
    batched = x.ndim == spatial + 2
    x, geometry = resolve_geometry(x, tuple(sizes), stride, padding, dilation, groups)
    squares = box_filter(squared_sum(x if batched else x[None], geometry), tuple(sizes), geometry)
    norm = root(squares)
    return norm if batched else norm[0]


def project(
    x: Tensor, kernel: Tensor, geometry: Geometry | None, bias: Tensor | None = None
) -> Tensor:
    """w^T x + b for every filter and patch: the convolution, or the linear map without geometry."""
    if geometry is None:
        return F.linear(x, kernel, bias)
    stride, padding, dilation, groups = geometry
    none = [0] * len(stride)
    return torch.convolution(x, kernel, bias, stride, padding, dilation, False, none, groups)


def squared_sum(x: Tensor, geometry: Geometry | None) -> Tensor:
    """Sum of x^2 over the channels of each group, in float32 or wider: (B, groups, ...)."""
    wide = x.float() if x.dtype in (torch.float16, torch.bfloat16) else x
    if geometry is None or geometry.groups == 1:
        return wide.square().sum(1, keepdim=True)
    return wide.unflatten(1, (geometry.groups, -1)).square().sum(2)


def box_filter(squares: Tensor, size: tuple[int, ...], geometry: Geometry | None) -> Tensor:
    """Sums over the windows of a convolution, each group by itself."""
    if geometry is None or _is_pointwise(size, geometry):
        return squares
    stride, padding, dilation, groups = geometry
    ones = squares.new_ones(groups, 1, *size)
    none = [0] * len(stride)
    return torch.convolution(squares, ones, None, stride, padding, dilation, False, none, groups)


def box_filter_transposed(
    grad: Tensor, squares_shape: Sequence[int], size: tuple[int, ...], geometry: Geometry | None
) -> Tensor:
    """The adjoint of box_filter: spreads a value per window over the pixels of that window."""
    if geometry is None or _is_pointwise(size, geometry):
        return grad
    stride, padding, dilation, groups = geometry
    ones, like = grad.new_ones(groups, 1, *size), grad.new_empty(squares_shape)
    none = [0] * len(stride)
    return torch.ops.aten.convolution_backward(
        grad, like, ones, None, stride, padding, dilation, False, none, groups, [True, False, False]
    )[0]


def convolution_gradients(
    grad: Tensor,
    x: Tensor,
    kernel: Tensor,
    geometry: Geometry | None,
    need_x: bool,
    need_kernel: bool,
) -> tuple[Tensor | None, Tensor | None]:
    """Gradients of project in x and in the kernel."""
    if geometry is None:
        return grad @ kernel if need_x else None, grad.T @ x if need_kernel else None
    stride, padding, dilation, groups = geometry
    mask, none = [need_x, need_kernel, False], [0] * len(stride)
    return torch.ops.aten.convolution_backward(
        grad, x, kernel, None, stride, padding, dilation, False, none, groups, mask
    )[:2]


def root(squares: Tensor) -> Tensor:
    """sqrt with value and gradient 0 at 0, where a plain root has the gradient 0 * infinity."""
    positive = squares > 0
    safe = torch.where(positive, squares, torch.ones_like(squares))
    return torch.where(positive, safe.sqrt(), torch.zeros_like(squares))


def resolve_geometry(
    x: Tensor,
    size: tuple[int, ...],
    stride: int | Sequence[int],
    padding: str | int | Sequence[int],
    dilation: int | Sequence[int],
    groups: int,
) -> tuple[Tensor, Geometry]:
    """Numbers for every argument; "same" padding that is uneven is applied to x right here."""
    spatial = len(size)
    stride, dilation = expand(stride, spatial, "stride"), expand(dilation, spatial, "dilation")
    if padding == "valid":
        padding = 0
    elif padding == "same":
        if any(step != 1 for step in stride):
            raise ValueError(f"padding='same' expects stride 1, got stride {stride}")
        total = [d * (n - 1) for d, n in zip(dilation, size, strict=True)]
        padding = [t // 2 for t in total]
        if any(t % 2 for t in total):
            # The odd pixel goes to the end, as in torch.
            pairs = [(0, t % 2) for t in reversed(total)]
            x = F.pad(x, [side for pair in pairs for side in pair])
    elif isinstance(padding, str):
        raise ValueError(f"padding must be 'same', 'valid' or numbers, got {padding!r}")
    return x, Geometry(stride, expand(padding, spatial, "padding"), dilation, groups)


def expand(value: int | Sequence[int], spatial: int, name: str) -> tuple[int, ...]:
    """One number for all spatial dimensions, or one for each."""
    values = (value,) * spatial if isinstance(value, int) else tuple(value)
    if len(values) == 1:
        values = values * spatial
    if len(values) != spatial:
        raise ValueError(f"{name} expects 1 or {spatial} numbers, got {values}")
    return values


def _is_pointwise(size: tuple[int, ...], geometry: Geometry) -> bool:
    one_pixel = math.prod(size) == 1
    return one_pixel and max(geometry.stride) == 1 and max(geometry.padding) == 0
