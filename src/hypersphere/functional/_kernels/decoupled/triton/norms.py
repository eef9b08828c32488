"""Patch norms and directions of filters by Triton.

    n = sqrt(sum over the window of the sum of x^2 over the channels)         two kernels
    gradient in x: that of w^T x, plus x times what the norms of all its windows ask for    one
    w / |w| and its gradient (g - (g.u) u) / |w|                              one each

A window is described in three dimensions; images and signals have a first size of 1.
"""

from __future__ import annotations

import math
from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor

from ....angles import normalize
from ..backward import plain_gradients, wants_plain_gradients
from ..convolution import Geometry
from ..patch_norms import keep_norms, plain_gradient
from .launch import block, launch

__all__ = ["TritonNorms", "TritonRows"]

PIXELS, CHANNELS, ROW = 64, 32, 1024


@triton.jit
def squares_kernel(
    x_pointer, squares_pointer, groups, channels, pixels,
    image_stride, channel_stride, pixel_stride,
    ROOT: tl.constexpr, BLOCK_C: tl.constexpr, BLOCK_P: tl.constexpr,
):  # fmt: skip
    """The sum of x^2 over the channels of a group, for every pixel; or its root."""
    blocks = tl.cdiv(pixels, BLOCK_P)
    program = tl.program_id(0)
    image_and_group = program // blocks
    p = (program % blocks) * BLOCK_P + tl.arange(0, BLOCK_P)
    group = image_and_group % groups
    image = (image_and_group // groups).to(tl.int64)
    total = tl.zeros((BLOCK_P,), tl.float32)
    for start in range(0, channels, BLOCK_C):
        own = start + tl.arange(0, BLOCK_C)
        mask = (own < channels)[:, None] & (p < pixels)[None, :]
        place = (
            image * image_stride + (group * channels + own)[:, None].to(tl.int64) * channel_stride
        )
        x = tl.load(
            x_pointer + place + p[None, :].to(tl.int64) * pixel_stride, mask=mask, other=0.0
        )
        x = x.to(tl.float32)
        total += tl.sum(x * x, 0)
    if ROOT:
        total = tl.sqrt(total)
    tl.store(squares_pointer + image_and_group.to(tl.int64) * pixels + p, total, mask=p < pixels)


@triton.jit
def windows_kernel(
    squares_pointer, norm_pointer, depth, height, width, out_depth, out_height, out_width,
    step_d, step_h, step_w, pad_d, pad_h, pad_w, gap_d, gap_h, gap_w, total,
    SIZE_D: tl.constexpr, SIZE_H: tl.constexpr, SIZE_W: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """The root of the sum over each window."""
    out = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    w = out % out_width
    h = out // out_width % out_height
    d = out // (out_width * out_height) % out_depth
    start = out // (out_width * out_height * out_depth) * (depth * height * width)
    sums = tl.zeros((BLOCK,), tl.float32)
    for i in tl.static_range(SIZE_D):
        z = d * step_d - pad_d + i * gap_d
        for j in tl.static_range(SIZE_H):
            y = h * step_h - pad_h + j * gap_h
            for m in tl.static_range(SIZE_W):
                x = w * step_w - pad_w + m * gap_w
                inside = (x >= 0) & (x < width) & (y >= 0) & (y < height) & (z >= 0) & (z < depth)
                place = start + (z * height + y) * width + x
                sums += tl.load(squares_pointer + place, mask=inside & (out < total), other=0.0)
    tl.store(norm_pointer + out, tl.sqrt(sums), mask=out < total)


@triton.jit
def spread_kernel(
    x_pointer, grad_x_pointer, norm_pointer, grad_norm_pointer, out_pointer,
    groups, channels, pixels, image_stride, channel_stride, pixel_stride,
    depth, height, width, out_depth, out_height, out_width,
    step_d, step_h, step_w, pad_d, pad_h, pad_w, gap_d, gap_h, gap_w,
    HAS_GRAD: tl.constexpr,
    SIZE_D: tl.constexpr, SIZE_H: tl.constexpr, SIZE_W: tl.constexpr,
    BLOCK_C: tl.constexpr, BLOCK_P: tl.constexpr,
):  # fmt: skip
    """grad_x + x sum of grad_norm / norm over the windows that a pixel is in."""
    blocks = tl.cdiv(pixels, BLOCK_P)
    program = tl.program_id(0)
    image_and_group = program // blocks
    p = (program % blocks) * BLOCK_P + tl.arange(0, BLOCK_P)
    inside = p < pixels
    w = p % width
    h = p // width % height
    d = p // (width * height)
    windows = image_and_group.to(tl.int64) * (out_depth * out_height * out_width)
    pixel = tl.zeros((BLOCK_P,), tl.float32)
    for i in tl.static_range(SIZE_D):
        z = d + pad_d - i * gap_d
        for j in tl.static_range(SIZE_H):
            y = h + pad_h - j * gap_h
            for m in tl.static_range(SIZE_W):
                x = w + pad_w - m * gap_w
                # The window whose pixel (i, j, m) this one is, if there is one.
                there = (x >= 0) & (x % step_w == 0) & (x // step_w < out_width)
                there &= (y >= 0) & (y % step_h == 0) & (y // step_h < out_height)
                there &= (z >= 0) & (z % step_d == 0) & (z // step_d < out_depth) & inside
                window = (
                    windows + (z // step_d * out_height + y // step_h) * out_width + x // step_w
                )
                norm = tl.load(norm_pointer + window, mask=there, other=0.0)
                grad = tl.load(grad_norm_pointer + window, mask=there, other=0.0)
                nonzero = norm != 0  # nothing flows through the norm of a zero patch
                pixel += tl.where(nonzero, grad / tl.where(nonzero, norm, 1.0), 0.0)
    group = image_and_group % groups
    image = (image_and_group // groups).to(tl.int64)
    for start in range(0, channels, BLOCK_C):
        own = start + tl.arange(0, BLOCK_C)
        mask = (own < channels)[:, None] & inside[None, :]
        place = (
            image * image_stride + (group * channels + own)[:, None].to(tl.int64) * channel_stride
        )
        place = place + p[None, :].to(tl.int64) * pixel_stride
        value = tl.load(x_pointer + place, mask=mask, other=0.0).to(tl.float32) * pixel[None, :]
        if HAS_GRAD:
            value += tl.load(grad_x_pointer + place, mask=mask, other=0.0).to(tl.float32)
        tl.store(out_pointer + place, value.to(out_pointer.dtype.element_ty), mask=mask)


@triton.jit
def unit_kernel(rows_pointer, unit_pointer, norm_pointer, length, BLOCK: tl.constexpr):
    """w / |w| of one row, and |w|; a zero row stays zero."""
    row = tl.program_id(0).to(tl.int64) * length
    total = 0.0
    for start in range(0, length, BLOCK):
        d = start + tl.arange(0, BLOCK)
        w = tl.load(rows_pointer + row + d, mask=d < length, other=0.0).to(tl.float32)
        total += tl.sum(w * w, 0)
    norm = tl.sqrt(total)
    inverse = tl.where(norm == 0, 0.0, 1.0 / tl.where(norm == 0, 1.0, norm))
    tl.store(norm_pointer + tl.program_id(0), norm)
    for start in range(0, length, BLOCK):
        d = start + tl.arange(0, BLOCK)
        w = tl.load(rows_pointer + row + d, mask=d < length, other=0.0).to(tl.float32)
        tl.store(unit_pointer + row + d, w * inverse, mask=d < length)


@triton.jit
def unit_backward_kernel(
    grad_pointer, unit_pointer, norm_pointer, out_pointer, length, BLOCK: tl.constexpr
):
    """(g - (g.u) u) / |w| of one row, Eq. 4.17; 0 for a zero row."""
    row = tl.program_id(0).to(tl.int64) * length
    inner = 0.0
    for start in range(0, length, BLOCK):
        d = start + tl.arange(0, BLOCK)
        grad = tl.load(grad_pointer + row + d, mask=d < length, other=0.0).to(tl.float32)
        inner += tl.sum(grad * tl.load(unit_pointer + row + d, mask=d < length, other=0.0), 0)
    norm = tl.load(norm_pointer + tl.program_id(0))
    inverse = tl.where(norm == 0, 0.0, 1.0 / tl.where(norm == 0, 1.0, norm))
    for start in range(0, length, BLOCK):
        d = start + tl.arange(0, BLOCK)
        grad = tl.load(grad_pointer + row + d, mask=d < length, other=0.0).to(tl.float32)
        unit = tl.load(unit_pointer + row + d, mask=d < length, other=0.0)
        tl.store(out_pointer + row + d, (grad - inner * unit) * inverse, mask=d < length)


class TritonRows(torch.autograd.Function):
    """rows / |rows| in float32."""

    @staticmethod
    def forward(ctx: Any, rows: Tensor) -> Tensor:
        count, length = rows.shape
        given = rows.detach().contiguous()
        unit = torch.empty_like(given, dtype=torch.float32)
        norm = unit.new_empty(count)
        launch(unit_kernel, (count,), unit, given, unit, norm, length, BLOCK=block(length, ROW))
        ctx.save_for_backward(rows, unit, norm)
        return unit

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> Tensor | None:
        rows, unit, norm = ctx.saved_tensors
        if wants_plain_gradients(grad):
            return plain_gradients(normalize, [rows], [True], grad)[0]
        out, (count, length) = torch.empty_like(unit), rows.shape
        size = {"BLOCK": block(length, ROW)}
        launch(
            unit_backward_kernel, (count,), out, grad.contiguous(), unit, norm, out, length, **size
        )
        return out if out.dtype == rows.dtype else out.to(rows.dtype)


class TritonNorms(torch.autograd.Function):
    """x as it is, and its patch norms; the gradients of both meet in one pass over x."""

    @staticmethod
    def forward(
        ctx: Any, x: Tensor, size: tuple[int, ...], geometry: Geometry | None
    ) -> tuple[Tensor, Tensor]:
        given = _dense(x.detach())
        norm = _norms(given, size, geometry)
        return keep_norms(ctx, x, norm, size, geometry)

    @staticmethod
    def backward(
        ctx: Any, grad_x: Tensor | None, grad_norm: Tensor | None
    ) -> tuple[Tensor | None, None, None]:
        if grad_norm is None or wants_plain_gradients(grad_norm):
            return plain_gradient(ctx, grad_x, grad_norm)
        x, norm = ctx.saved_tensors
        x = _dense(x)
        out = torch.empty_like(x)
        groups, channels, pixels, strides, dense = _sizes(x, ctx.geometry)
        images = x.shape[0] if dense else 1
        if grad_x is not None and grad_x.stride() != x.stride():
            grad_x = out.copy_(grad_x)  # in the memory order of x
        blocks = {"BLOCK_C": block(channels, CHANNELS), "BLOCK_P": block(pixels, PIXELS)}
        windows, sizes = _windows(x, norm, ctx.size, ctx.geometry)
        launch(
            spread_kernel,
            (images * groups * math.ceil(pixels / blocks["BLOCK_P"]),),
            x,
            *(x, x if grad_x is None else grad_x, norm, grad_norm.contiguous(), out),
            *(groups, channels, pixels, *strides, *windows),
            HAS_GRAD=grad_x is not None,
            **sizes,
            **blocks,
        )
        return out, None, None


def _norms(x: Tensor, size: tuple[int, ...], geometry: Geometry | None) -> Tensor:
    groups, channels, pixels, strides, dense = _sizes(x, geometry)
    images = x.shape[0] if dense else 1
    squares = torch.empty(x.shape[0], groups, *x.shape[2:], dtype=torch.float32, device=x.device)
    blocks = {"BLOCK_C": block(channels, CHANNELS), "BLOCK_P": block(pixels, PIXELS)}
    grid = (images * groups * math.ceil(pixels / blocks["BLOCK_P"]),)
    numbers = (groups, channels, pixels, *strides)
    launch(squares_kernel, grid, x, x, squares, *numbers, ROOT=geometry is None, **blocks)
    if geometry is None:
        return squares
    reach = [gap * (n - 1) + 1 for n, gap in zip(size, geometry.dilation, strict=True)]
    lengths = zip(x.shape[2:], geometry.padding, reach, geometry.stride, strict=True)
    shape = [(n + 2 * pad - far) // step + 1 for n, pad, far, step in lengths]
    norm = torch.empty(x.shape[0], groups, *shape, dtype=torch.float32, device=x.device)
    windows, sizes = _windows(x, norm, size, geometry)
    total = norm.numel()
    grid = (math.ceil(total / 256),)
    launch(windows_kernel, grid, x, squares, norm, *windows, total, **sizes, BLOCK=256)
    return norm


def _sizes(
    x: Tensor, geometry: Geometry | None
) -> tuple[int, int, int, tuple[int, int, int], bool]:
    """Groups, channels of a group, pixels, and strides; rows are the pixels of one image."""
    if geometry is None:
        return 1, x.shape[1], x.shape[0], (0, x.stride(1), x.stride(0)), False
    flat = x.flatten(2)
    image, channel, pixel = flat.stride()
    groups = geometry.groups
    return groups, x.shape[1] // groups, flat.shape[2], (image, channel, pixel), True


def _windows(
    x: Tensor, norm: Tensor, size: tuple[int, ...], geometry: Geometry | None
) -> tuple[tuple[int, ...], dict[str, int]]:
    """Sizes of input and output, steps, paddings and gaps in three dimensions."""
    if geometry is None:  # every row is its own window
        ones = (1, 1, 1)
        rows = (1, 1, x.shape[0])
        return (*rows, *rows, *ones, 0, 0, 0, *ones), {"SIZE_D": 1, "SIZE_H": 1, "SIZE_W": 1}
    fill = 3 - len(size)

    def three(values: Any, missing: int) -> tuple[int, ...]:
        return (missing,) * fill + tuple(values)

    numbers = (
        *three(x.shape[2:], 1),
        *three(norm.shape[2:], 1),
        *three(geometry.stride, 1),
        *three(geometry.padding, 0),
        *three(geometry.dilation, 1),
    )
    return numbers, dict(zip(("SIZE_D", "SIZE_H", "SIZE_W"), three(size, 1), strict=True))


def _dense(x: Tensor) -> Tensor:
    formats = {4: torch.channels_last, 5: torch.channels_last_3d}
    kind = formats.get(x.ndim)
    if x.is_contiguous() or (kind is not None and x.is_contiguous(memory_format=kind)):
        return x
    return x.contiguous()
