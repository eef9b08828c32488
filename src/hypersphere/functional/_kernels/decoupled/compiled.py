"""The decoupled operator for torch.compile: the formulas of tiled.py in plain operations.

    df/ds = r(n) g'(c)                            df/drho = g(c) dh/drho
    df/dn = h'(n) g(c) - r(n) g'(c) c             df/dk = h(n) dg/dk

A compiler fuses elementwise operations by itself, so there are no tiles and no workspace here. The
backward is written out because autograd's would save and compute more: masks of the clamps, each
function once for its value and once for its slope. Saved are w^T x, which the convolution has
stored anyway, and the patch norms.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from ..autograd import runs_eagerly
from .convolution import convolution_gradients, correlate, inverse_norm
from .plain import Inputs, OperatorSettings, filter_shapes, plain_operator, shaped_inputs

__all__ = ["compiled_operator"]


def compiled_operator(inputs: Inputs, op: OperatorSettings) -> Tensor:
    """f(w, x) for a compiler; g and h have slopes of their own, and g is 0 at a right angle."""
    if runs_eagerly():
        return plain_operator(inputs, op)
    shapes, shaped = filter_shapes(inputs.x, op), shaped_inputs(inputs, op)
    out = shapes.split(_Compiled.apply(op, *inputs[:5]))  # type: ignore[no-untyped-call]
    if shaped.scale is not None:
        out = out * shaped.scale
    if shaped.shift is not None:
        out = out + shaped.shift
    return shapes.join(out).to(inputs.x.dtype)


class _Compiled(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any,
        op: OperatorSettings,
        x: Tensor,
        norm: Tensor,
        kernel: Tensor,
        radius: Tensor,
        k: Tensor | None,
    ) -> Tensor:
        s = correlate(x, kernel, op.geometry)
        ctx.op = op
        ctx.save_for_backward(x, norm, kernel, radius, k, s)
        inputs = Inputs(x, norm, kernel, radius, k)
        shapes, shaped = filter_shapes(x, op), shaped_inputs(inputs, op)
        n = shapes.over_filters(norm)
        ratio = op.magnitude.ratio_and_slopes(n, *op.constants, shaped.radius)[0]
        if op.angular.is_cosine:
            out = shapes.split(s) * ratio
            out = out if op.bound is None else out.clamp(-op.bound, op.bound)
        else:
            c = (shapes.split(s) * inverse_norm(n)).clamp(-1, 1)
            eps = torch.finfo(s.dtype).eps
            g = op.angular.value(c, op.k if shaped.k is None else shaped.k, eps)
            if op.magnitude.is_constant:
                out = g * op.alpha
            else:
                h = ratio * n
                out = g * (h if op.bound is None else h.clamp_max(op.bound))  # n / n may exceed 1
        return shapes.join(out).to(s.dtype)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        x, norm, kernel, radius, k, s = ctx.saved_tensors
        op, need = ctx.op, ctx.needs_input_grad[1:]
        inputs = Inputs(x, norm, kernel, radius, k)
        shapes, shaped = filter_shapes(x, op), shaped_inputs(inputs, op)
        n, go = shapes.over_filters(norm), shapes.split(grad)
        c = (shapes.split(s) * inverse_norm(n)).clamp(-1, 1)
        value, slope, of_k = op.angular.value_and_slopes(
            c, op.k if shaped.k is None else shaped.k, torch.finfo(s.dtype).eps
        )
        ratio, of_norm, of_radius = op.magnitude.ratio_and_slopes(n, *op.constants, shaped.radius)
        t, a = go * value, go * slope
        grad_norm = grad_radius = grad_k = None
        if need[1]:
            if ratio.shape == n.shape:  # sums over the filters come before the maps of the patches
                through = -(a * c).sum(shapes.channel, keepdim=True) * ratio
                if not op.magnitude.is_constant:
                    through = through + t.sum(shapes.channel, keepdim=True) * of_norm
            else:
                through = (t * of_norm - a * c * ratio).sum(shapes.channel, keepdim=True)
            grad_norm = through.view_as(norm)
        if need[3] and of_radius is not None:
            grad_radius = shapes.sum_patches(t * of_radius, radius)
        if need[4] and k is not None and of_k is not None:
            grad_k = shapes.sum_patches(go * of_k * (ratio * n), k)
        grad_s = shapes.join(a * ratio).to(s.dtype)
        grad_x, grad_kernel = convolution_gradients(
            grad_s, x, kernel, op.geometry, need[0], need[2]
        )
        return None, grad_x, grad_norm, grad_kernel, grad_radius, grad_k
