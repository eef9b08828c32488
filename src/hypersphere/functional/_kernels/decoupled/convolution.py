"""The patches that a convolution compares its filters with: projections, and sums over windows."""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import reduce
from typing import NamedTuple

import torch
from torch import Tensor
from torch.nn import functional as F

from ..autograd import is_exporting
from .machine import channels_last_pays
from .routes import route

__all__ = [
    "Geometry",
    "autocast_type",
    "box_filter",
    "box_filter_transposed",
    "convolution_gradients",
    "correlate",
    "expand",
    "inverse_norm",
    "is_compiled",
    "is_traced",
    "memory_for_gradient",
    "resolve_geometry",
]


class Geometry(NamedTuple):
    """How the windows of a convolution lie on its input; None stands for a linear layer."""

    stride: tuple[int, ...]
    padding: tuple[int, ...]
    dilation: tuple[int, ...]
    groups: int


def inverse_norm(n: Tensor) -> Tensor:
    """1 / n, and 0 for a zero patch, see Note [Zero patches] in plain.py."""
    return n.reciprocal().nan_to_num_(nan=math.nan, posinf=0.0)


def autocast_type(x: Tensor) -> torch.dtype | None:
    """The type that autocast asks for at x: float64 stays, as in torch's layers; None if it is off.

    Autocast does not know the meta device, on which shapes alone are computed.
    """
    kind = x.device.type
    if kind == "meta" or not torch.is_autocast_enabled(kind):
        return None
    return x.dtype if x.dtype == torch.float64 else torch.get_autocast_dtype(kind)


def is_compiled() -> bool:
    """Whether torch.compile records the operations, for nobody else to see."""
    return (
        torch.compiler.is_compiling()
        and not is_exporting()
        and not torch._C._are_functorch_transforms_active()
        and torch.autograd.forward_ad._current_level < 0
    )


def is_traced() -> bool:
    """Whether something records the operations: then it should see plain ones."""
    return (
        torch.compiler.is_compiling()
        or torch.jit.is_tracing()  # type: ignore[attr-defined, no-untyped-call]
        or torch._C._are_functorch_transforms_active()
        or torch.autograd.forward_ad._current_level >= 0
        or torch._C._len_torch_dispatch_stack() > 0
    )


def correlate(
    x: Tensor, kernel: Tensor, geometry: Geometry | None, bias: Tensor | None = None
) -> Tensor:
    """w^T x + b for every filter and patch: the convolution, or the linear map without geometry."""
    if geometry is None:
        return F.linear(x, kernel, bias)
    stride, padding, dilation, groups = geometry
    none = [0] * len(stride)
    return torch.convolution(x, kernel, bias, stride, padding, dilation, False, none, groups)


def box_filter(squares: Tensor, size: tuple[int, ...], geometry: Geometry | None) -> Tensor:
    """Sums over the windows of a convolution, one dimension after the other."""
    if geometry is None:
        return squares
    for axis, (count, step, pad, gap) in enumerate(zip(size, *geometry[:3], strict=True)):
        dim = axis - len(size)
        if pad:
            squares = F.pad(squares, [0, 0] * (-dim - 1) + [pad, pad])
        shifts = _shifts(squares.shape[dim], count, step, gap)
        squares = reduce(torch.add, [_narrow(squares, dim, shift) for shift in shifts])
    return squares


def box_filter_transposed(
    grad: Tensor, shape: Sequence[int], size: tuple[int, ...], geometry: Geometry | None
) -> Tensor:
    """The adjoint of box_filter: spreads a value per window over the pixels of that window."""
    if geometry is None:
        return grad
    for axis, (count, step, pad, gap) in enumerate(zip(size, *geometry[:3], strict=True)):
        dim = axis - len(size)
        length = shape[dim] + 2 * pad
        spread = grad.new_zeros(*grad.shape[:dim], length, *grad.shape[grad.ndim + dim + 1 :])
        for shift in _shifts(length, count, step, gap):
            _narrow(spread, dim, shift).add_(grad)
        grad = spread.narrow(dim, pad, shape[dim])
    return grad


def _shifts(length: int, count: int, step: int, gap: int) -> list[slice]:
    """The pixels that every window has as its first, its second, ... along one dimension."""
    windows = (length - gap * (count - 1) - 1) // step + 1
    starts = [gap * i for i in range(count)]
    return [slice(start, start + step * (windows - 1) + 1, step) for start in starts]


def _narrow(x: Tensor, dim: int, part: slice) -> Tensor:
    view: Tensor = torch.ops.aten.slice(x, dim, part.start, part.stop, part.step)
    return view


def convolution_gradients(
    grad: Tensor,
    x: Tensor,
    kernel: Tensor,
    geometry: Geometry | None,
    need_x: bool,
    need_kernel: bool,
) -> tuple[Tensor | None, Tensor | None]:
    """Gradients of correlate in x and in the kernel."""
    if geometry is None:
        return grad @ kernel if need_x else None, grad.T @ x if need_kernel else None
    stride, padding, dilation, groups = geometry
    mask, none = [need_x, need_kernel, False], [0] * len(stride)
    if _faster_in_channels_last(x, kernel, geometry):
        grad, x, kernel = (
            t.contiguous(memory_format=torch.channels_last) for t in (grad, x, kernel)
        )
    of_x, of_kernel, _ = torch.ops.aten.convolution_backward(
        grad, x, kernel, None, stride, padding, dilation, False, none, groups, mask
    )
    return of_x, of_kernel


def memory_for_gradient(memory: Tensor, kernel: Tensor, geometry: Geometry | None) -> Tensor:
    """The same memory, image for image in the layout that convolution_gradients likes best."""
    if geometry is None or not memory.is_contiguous():
        return memory
    if not _faster_in_channels_last(memory, kernel, geometry):
        return memory
    _, channels, height, width = memory.shape
    strides = (channels * height * width, 1, width * channels, channels)
    return memory.as_strided(memory.shape, strides)


def _faster_in_channels_last(x: Tensor, kernel: Tensor, geometry: Geometry) -> bool:
    """Whether a processor differentiates this convolution faster with the channels last."""
    return (
        x.device.type == "cpu"
        and route(x) == "tiled"
        and x.dtype == torch.float32
        and x.ndim == 4
        and geometry.groups == 1
        and all(step == 1 for step in geometry.stride)
        and min(kernel.shape[:2]) >= 16
        and kernel.shape[2:].numel() > 1
        and not torch.compiler.is_compiling()  # which cannot follow a measurement
        and channels_last_pays()
    )


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
    geometry = Geometry(stride, expand(padding, spatial, "padding"), dilation, groups)
    if not is_traced():
        _check_size(x, size, geometry)
    return x, geometry


def _check_size(x: Tensor, size: tuple[int, ...], geometry: Geometry) -> None:
    padded = [n + 2 * pad for n, pad in zip(x.shape[-len(size) :], geometry.padding, strict=True)]
    reach = [gap * (n - 1) + 1 for n, gap in zip(size, geometry.dilation, strict=True)]
    if any(need > have for need, have in zip(reach, padded, strict=True)):
        raise ValueError(
            f"kernel size {size} with dilation {geometry.dilation} is greater than the padded "
            f"input size {tuple(padded)}; use a smaller kernel or more padding"
        )


def expand(value: int | Sequence[int], spatial: int, name: str) -> tuple[int, ...]:
    """One number for all spatial dimensions, or one for each."""
    values = (value,) * spatial if isinstance(value, int) else tuple(value)
    if len(values) == 1:
        values = values * spatial
    if len(values) != spatial:
        raise ValueError(f"{name} expects 1 or {spatial} numbers, got {values}")
    return values
