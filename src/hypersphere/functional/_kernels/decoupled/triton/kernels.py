"""One kernel forward, one backward: f = scale h(n) g(c) + shift on s = w^T x and n = |x|.

    df/ds = scale r(n) g'(c)                        r(n) = h(n) / n,  c = s / n
    df/dn = scale (h'(n) g(c) - r(n) g'(c) c)       summed over the filters of a group
    df/drho = scale g(c) dh/drho,   df/dk = scale h(n) dg/dk,   df/dscale = h(n) g(c)

A program takes BLOCK_P patches of one image and one group, the backward with all filters of the
group in turn, so that the sums over filters end in it. Of the sums over patches each program writes
its share; torch adds up the shares, in the same order every time. Forward: reads s, writes f.
Backward: reads s and the gradient, writes the gradient in s. Everything is computed in float32.
"""

from __future__ import annotations

import triton
import triton.language as tl

__all__ = ["backward_kernel", "forward_kernel"]


@triton.jit
def _per_filter(pointer, filters, mask, PER_FILTER: tl.constexpr):
    """A number per filter (BLOCK_C, 1), or the one that all filters share."""
    if PER_FILTER:
        value = tl.load(pointer + filters, mask=mask, other=1.0)[:, None]
    else:
        value = tl.load(pointer)
    return value.to(tl.float32)


@triton.jit
def _value(
    s, n, c, k, radius, g: tl.constexpr, h: tl.constexpr,
    BOUND: tl.constexpr, COSINE: tl.constexpr, ALPHA: tl.constexpr,
):  # fmt: skip
    """h(n) g(c), held below its bound where rounding would lead beyond."""
    ratio, _, _ = h(n, radius)
    if COSINE:
        out = s * ratio
        if BOUND is not None:
            out = tl.where(out > BOUND, BOUND, tl.where(out < -BOUND, -BOUND, out))
    elif ALPHA is not None:  # h = alpha wherever there is a direction, and g(0) = 0
        value, _, _ = g(c, k)
        out = value * ALPHA
    else:
        value, _, _ = g(c, k)
        length = ratio * n
        if BOUND is not None:
            length = tl.where(length > BOUND, BOUND, length)
        out = value * length
    return out


@triton.jit
def _cosine(s, n):
    """s / n in [-1, 1], 0 in a zero patch; NaN stays NaN."""
    c = tl.where(n > 0, s / tl.where(n > 0, n, 1.0), s * 0.0)
    return tl.where(c > 1.0, 1.0, tl.where(c < -1.0, -1.0, c))


@triton.jit
def forward_kernel(
    s_pointer, norm_pointer, radius_pointer, k_pointer, scale_pointer, shift_pointer, out_pointer,
    groups, channels, patches,
    image_stride, channel_stride, patch_stride,
    g: tl.constexpr, h: tl.constexpr, ALPHA: tl.constexpr, BOUND: tl.constexpr,
    COSINE: tl.constexpr, RADIUS_PER_FILTER: tl.constexpr, K_PER_FILTER: tl.constexpr,
    SCALE: tl.constexpr, SCALE_PER_FILTER: tl.constexpr,
    SHIFT: tl.constexpr, SHIFT_PER_FILTER: tl.constexpr,
    BLOCK_C: tl.constexpr, BLOCK_P: tl.constexpr,
):  # fmt: skip
    patch_blocks = tl.cdiv(patches, BLOCK_P)
    program = tl.program_id(0)
    image_and_group = program // patch_blocks
    p = (program % patch_blocks) * BLOCK_P + tl.arange(0, BLOCK_P)
    group = image_and_group % groups
    image = (image_and_group // groups).to(tl.int64)
    inside = p < patches
    n = tl.load(norm_pointer + image_and_group.to(tl.int64) * patches + p, mask=inside, other=1.0)
    n = n[None, :].to(tl.float32)
    own = tl.program_id(1) * BLOCK_C + tl.arange(0, BLOCK_C)
    used = own < channels
    filters = group * channels + own
    mask = used[:, None] & inside[None, :]
    place = image * image_stride + filters[:, None].to(tl.int64) * channel_stride
    place = place + p[None, :].to(tl.int64) * patch_stride
    s = tl.load(s_pointer + place, mask=mask, other=0.0).to(tl.float32)
    radius = _per_filter(radius_pointer, filters, used, RADIUS_PER_FILTER)
    k = _per_filter(k_pointer, filters, used, K_PER_FILTER)
    f = _value(s, n, _cosine(s, n), k, radius, g, h, BOUND, COSINE, ALPHA)
    if SCALE:
        f = f * _per_filter(scale_pointer, filters, used, SCALE_PER_FILTER)
    if SHIFT:
        f = f + _per_filter(shift_pointer, filters, used, SHIFT_PER_FILTER)
    tl.store(out_pointer + place, f.to(out_pointer.dtype.element_ty), mask=mask)


@triton.jit
def backward_kernel(
    grad_pointer, s_pointer, norm_pointer, radius_pointer, k_pointer, scale_pointer,
    grad_s_pointer, grad_norm_pointer, sums_pointer,
    groups, channels, patches,
    image_stride, channel_stride, patch_stride,
    grad_image_stride, grad_channel_stride, grad_patch_stride, sum_stride,
    g: tl.constexpr, h: tl.constexpr, ALPHA: tl.constexpr, BOUND: tl.constexpr,
    COSINE: tl.constexpr, RADIUS_PER_FILTER: tl.constexpr, K_PER_FILTER: tl.constexpr,
    SCALE: tl.constexpr, SCALE_PER_FILTER: tl.constexpr,
    NEED_NORM: tl.constexpr, NEED_RADIUS: tl.constexpr, NEED_K: tl.constexpr,
    NEED_SCALE: tl.constexpr, NEED_SHIFT: tl.constexpr,
    BLOCK_C: tl.constexpr, BLOCK_P: tl.constexpr,
):  # fmt: skip
    patch_blocks = tl.cdiv(patches, BLOCK_P)
    program = tl.program_id(0)
    image_and_group = program // patch_blocks
    p = (program % patch_blocks) * BLOCK_P + tl.arange(0, BLOCK_P)
    group = image_and_group % groups
    image = (image_and_group // groups).to(tl.int64)
    inside = p < patches
    norm_place = image_and_group.to(tl.int64) * patches + p
    n = tl.load(norm_pointer + norm_place, mask=inside, other=1.0)[None, :].to(tl.float32)
    # Shares of the sums over patches: (quantities, images x blocks, filters).
    row = (image * patch_blocks + program % patch_blocks) * (groups * channels)
    through_norm = tl.zeros((BLOCK_P,), tl.float32)
    for start in range(0, channels, BLOCK_C):
        own = start + tl.arange(0, BLOCK_C)
        used = own < channels
        filters = group * channels + own
        mask = used[:, None] & inside[None, :]
        place = image * image_stride + filters[:, None].to(tl.int64) * channel_stride
        place = place + p[None, :].to(tl.int64) * patch_stride
        s = tl.load(s_pointer + place, mask=mask, other=0.0).to(tl.float32)
        come = image * grad_image_stride + filters[:, None].to(tl.int64) * grad_channel_stride
        come = come + p[None, :].to(tl.int64) * grad_patch_stride
        grad = tl.load(grad_pointer + come, mask=mask, other=0.0).to(tl.float32)
        radius = _per_filter(radius_pointer, filters, used, RADIUS_PER_FILTER)
        k = _per_filter(k_pointer, filters, used, K_PER_FILTER)
        c = _cosine(s, n)
        share = sums_pointer + row + filters
        if NEED_SHIFT:
            tl.store(share, tl.sum(grad, 1), mask=used)
            share += sum_stride
        if NEED_SCALE:
            f = _value(s, n, c, k, radius, g, h, BOUND, COSINE, ALPHA)
            tl.store(share, tl.sum(grad * f, 1), mask=used)
            share += sum_stride
        if SCALE:
            grad = grad * _per_filter(scale_pointer, filters, used, SCALE_PER_FILTER)
        value, slope, of_k = g(c, k)
        ratio, of_norm, of_radius = h(n, radius)
        grad_s = grad * slope * ratio
        tl.store(grad_s_pointer + place, grad_s.to(grad_s_pointer.dtype.element_ty), mask=mask)
        t = grad * value
        if NEED_NORM:
            through_norm += tl.sum(t * of_norm - grad_s * c, 0)
        if NEED_RADIUS:
            tl.store(share, tl.sum(t * of_radius, 1), mask=used)
            share += sum_stride
        if NEED_K:
            tl.store(share, tl.sum(grad * of_k * (ratio * n), 1), mask=used)
    if NEED_NORM:
        tl.store(grad_norm_pointer + norm_place, through_norm, mask=inside)
