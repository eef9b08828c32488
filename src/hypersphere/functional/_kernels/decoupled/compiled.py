"""The decoupled operator for torch.compile: the formulas of fused.py in plain operations.

A compiler fuses elementwise operations by itself, so there are no tiles and no workspace here. The
backward is written out because autograd's would save and compute more: masks of the clamps, each
function once for its value and once for its slope. Saved are w^T x, which the convolution has
stored anyway, and the patch norms.
"""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor

from ...angular import sigmoid_constants
from ...magnitude import FLOOR, RADIUS_KINDS, magnitude_ratio, magnitude_slope
from .activation import Activation
from .patches import convolution_gradients, inverse_norm, project
from .plain import Inputs, Operator, layout, shaped_inputs

__all__ = ["compiled_operator"]


def compiled_operator(inputs: Inputs, op: Operator) -> Tensor:
    """f(w, x) for a compiler; op.angular is one of the named activations."""
    lay, shaped = layout(inputs.x, op), shaped_inputs(inputs, op)
    out = lay.split(_Compiled.apply(op, *inputs[:5]))
    if shaped.scale is not None:
        out = out * shaped.scale
    if shaped.shift is not None:
        out = out + shaped.shift
    return lay.join(out).to(inputs.x.dtype)


class _Compiled(torch.autograd.Function):
    @staticmethod
    def forward(  # type: ignore[override]
        ctx: Any,
        op: Operator,
        x: Tensor,
        norm: Tensor,
        kernel: Tensor,
        radius: Tensor,
        k: Tensor | None,
    ) -> Tensor:
        s = project(x, kernel, op.geometry)
        ctx.op = op
        ctx.save_for_backward(x, norm, kernel, radius, k, s)
        lay, shaped = layout(x, op), shaped_inputs(Inputs(x, norm, kernel, radius, k), op)
        n = lay.over_channels(norm)
        ratio = _lengths(n, shaped.radius, op)[0]
        if op.angular == "cosine":
            out = lay.split(s) * ratio
            out = out.clamp(-op.alpha, op.alpha) if op.bounded else out
        else:
            c = (lay.split(s) * inverse_norm(n)).clamp(-1, 1)
            g = _activation(c, op, shaped.k, s.dtype)[0]
            if op.magnitude == "sphere":
                out = g * op.alpha
            else:
                h = ratio * n
                out = g * (h.clamp_max(op.alpha) if op.bounded else h)  # n / n may exceed 1
        return lay.join(out).to(s.dtype)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:  # type: ignore[override]
        x, norm, kernel, radius, k, s = ctx.saved_tensors
        op, need = ctx.op, ctx.needs_input_grad[1:]
        lay, shaped = layout(x, op), shaped_inputs(Inputs(x, norm, kernel, radius, k), op)
        n, go = lay.over_channels(norm), lay.split(grad)
        c = (lay.split(s) * inverse_norm(n)).clamp(-1, 1)
        value, slope, of_k = _activation(c, op, shaped.k, s.dtype)
        ratio, of_norm, of_radius = _lengths(n, shaped.radius, op)
        t, a = go * value, go * slope
        grad_norm = grad_radius = grad_k = None
        if need[1]:
            if ratio.shape == n.shape:
                through = -(a * c).sum(lay.channel, keepdim=True) * ratio
                if op.magnitude != "sphere":
                    through = through + t.sum(lay.channel, keepdim=True) * of_norm
            else:
                through = (t * of_norm - a * c * ratio).sum(lay.channel, keepdim=True)
            grad_norm = through.view_as(norm)
        if need[3]:
            grad_radius = lay.sum_patches(t * of_radius, radius)
        if need[4] and k is not None and of_k is not None:
            grad_k = lay.sum_patches(go * of_k * (ratio * n), k)
        grad_s = lay.join(a * ratio).to(s.dtype)
        grad_x, grad_kernel = convolution_gradients(
            grad_s, x, kernel, op.geometry, need[0], need[2]
        )
        return None, grad_x, grad_norm, grad_kernel, grad_radius, grad_k


def _lengths(n: Tensor, radius: Tensor, op: Operator) -> tuple[Tensor, Tensor, Tensor]:
    """r(n) = h / n, h' and dh/drho, see lengths.py."""
    kind, alpha, beta = op.settings
    if kind not in RADIUS_KINDS:
        ratio = magnitude_ratio(n, kind, alpha, beta)
        return ratio, magnitude_slope(n, kind, alpha, beta), torch.zeros_like(n)
    inverse_radius = radius.reciprocal()
    if kind == "tanh":
        floored = n.clamp_min(FLOOR)
        tanh = torch.tanh(floored * inverse_radius)
        slope = (1 - tanh * tanh) * (alpha * inverse_radius)
        return tanh * (alpha * floored.reciprocal()), slope, slope * n * -inverse_radius
    if kind == "ball":
        slope = torch.where(n <= radius, alpha * inverse_radius, 0.0)
        return alpha / torch.maximum(n, radius), slope, slope * n * -inverse_radius
    beyond = torch.where(n > radius, alpha - (beta or 0.0), 0.0)
    ratio = magnitude_ratio(n, kind, alpha, beta, radius)
    return ratio, alpha - beyond, beyond


def _activation(
    c: Tensor, op: Operator, k: Tensor | None, stored: torch.dtype
) -> tuple[Tensor, Tensor, Tensor | None]:
    """g(c), dg/dc and, of the sigmoid, dg/dk; see activation.py."""
    if op.angular == "cosine":
        return c, torch.ones_like(c), None
    if op.angular == "square_cosine":
        return c * c.abs(), 2 * c.abs(), None
    angle = torch.asin(c)
    inverse_sine = (1 + torch.finfo(stored).eps - c * c).rsqrt()
    if op.angular == "linear":
        return 2 / math.pi * angle, 2 / math.pi * inverse_sine, None
    half_over_k, end = sigmoid_constants(op.k if k is None else k, c)
    tanh = torch.tanh(angle * half_over_k)
    slope = 1 - tanh * tanh
    of_k = Activation.k_gradient(op.k if k is None else k, tanh, angle * slope)
    return tanh / end, slope * inverse_sine * (half_over_k / end), of_k
