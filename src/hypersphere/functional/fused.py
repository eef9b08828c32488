"""The decoupled operator as one step with its own backward, and the same in plain operations.

f = scale h(n) g(c) + shift, with s = w^T x for a unit filter w, n = |x| and c = cos(theta) = s / n.
Autograd through these operations would save half a dozen tensors of the size of the output; this
saves one (s for the cosine activation, c for the others) and the patch norms, which have one
channel a group, and works out the rest again in the backward:

    df/ds = scale r(n) g'(c)                        r(n) = h(n) / n
    df/dn = scale (h'(n) g(c) - r(n) g'(c) c)       n reaches x through the box filter
    df/drho = scale g(c) dh/drho,   df/dk = scale h(n) dg/dk,   df/dscale = h(n) g(c)

Note [Zero patches]: a zero patch has no direction. Its cosine is 0, so its output is 0 (before the
bias), and nothing flows through its norm. r(0) is the slope of h at 0, and 0 for the sphere,
whose slope there is infinite.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
from torch import Tensor

from .angular import Angular, angular, angular_derivative, angular_derivative_k
from .magnitude import (
    MagnitudeKind,
    magnitude,
    magnitude_radius_slope,
    magnitude_ratio,
    magnitude_slope,
)
from .patches import (
    Geometry,
    box_filter,
    box_filter_transposed,
    convolution_gradients,
    project,
    root,
    squared_sum,
)

__all__ = ["Inputs", "Operator", "apply_operator", "plain_operator"]


class Operator(NamedTuple):
    """What is fixed about an operator; its tensors are in Inputs."""

    magnitude: MagnitudeKind
    angular: Angular
    alpha: float
    beta: float | None
    geometry: Geometry | None

    @property
    def bounded(self) -> bool:
        return self.magnitude in ("sphere", "ball", "tanh")


class Inputs(NamedTuple):
    """x: (B, C_in, ...); kernel: unit filters (C, C_in / groups, ...); norm: |x| if known already.

    radius, k, scale, shift: one number, or one a filter (C,).
    """

    x: Tensor
    kernel: Tensor
    radius: Tensor
    k: Tensor | None = None
    scale: Tensor | None = None
    shift: Tensor | None = None
    norm: Tensor | None = None


class _Layout(NamedTuple):
    """Shapes in which filters (C,), patch norms (B, G, ...) and outputs (B, C, ...) broadcast."""

    groups: int
    spatial: int

    @property
    def channel(self) -> int:
        return 1 if self.groups == 1 else 2

    def split(self, output: Tensor) -> Tensor:
        return output if self.groups == 1 else output.unflatten(1, (self.groups, -1))

    def join(self, output: Tensor) -> Tensor:
        return output if self.groups == 1 else output.flatten(1, 2)

    def over_channels(self, norm: Tensor) -> Tensor:
        return norm if self.groups == 1 else norm.unsqueeze(2)

    def over_patches(self, value: Tensor) -> Tensor:
        if value.numel() == 1:
            return value.reshape(())
        group = () if self.groups == 1 else (self.groups,)
        return value.reshape(*group, -1, *[1] * self.spatial)

    def sum_channels(self, value: Tensor, factor: Tensor) -> Tensor:
        """Sum of value * factor over the filters of a group, shaped like over_channels(norm)."""
        if factor.ndim == 0 or factor.shape[self.channel] == 1:
            return value.sum(self.channel, keepdim=True) * factor
        return (value * factor).sum(self.channel, keepdim=True)

    def sum_patches(self, value: Tensor, like: Tensor) -> Tensor:
        """Sum over all patches, shaped like the filters' parameter."""
        if like.numel() == 1:
            return value.sum().reshape(like.shape).to(like.dtype)
        kept = {self.channel} | ({1} if self.groups > 1 else set())
        return (
            value.sum([d for d in range(value.ndim) if d not in kept])
            .reshape(like.shape)
            .to(like.dtype)
        )


def apply_operator(inputs: Inputs, op: Operator) -> Tensor:
    """f(w, x): fused where autograd runs eagerly, in plain operations where something traces it."""
    traced = (
        torch.compiler.is_compiling()
        or torch.jit.is_tracing()
        or torch._C._are_functorch_transforms_active()
        or torch.autograd.forward_ad._current_level >= 0
    )
    if traced or callable(op.angular):
        return plain_operator(inputs, op)
    return _Fused.apply(op, *inputs)


def plain_operator(inputs: Inputs, op: Operator) -> Tensor:
    """f(w, x) in differentiable operations: for compilers, exporters, second derivatives, any g."""
    x, kernel = inputs.x, inputs.kernel
    lay = _layout(x, op)
    s = lay.split(project(x, kernel, op.geometry))
    norm = root(_squares(x, kernel, op)) if inputs.norm is None else inputs.norm
    n, radius = lay.over_channels(norm), lay.over_patches(inputs.radius)
    if op.angular == "cosine":
        out = s * magnitude_ratio(n, op.magnitude, op.alpha, op.beta, radius)
        out = out.clamp(-op.alpha, op.alpha) if op.bounded else out
    else:
        nonzero = n > 0
        c = (s / torch.where(nonzero, n, torch.ones_like(n))).clamp(-1, 1)
        g = angular(c, op.angular, None if inputs.k is None else lay.over_patches(inputs.k))
        if callable(op.angular):  # the named activations are 0 at c = 0 by themselves
            g = g * (nonzero & lay.over_patches(kernel.detach().flatten(1).ne(0).any(1)))
        out = g * magnitude(n, op.magnitude, op.alpha, op.beta, radius)
    if inputs.scale is not None:
        out = out * lay.over_patches(inputs.scale)
    if inputs.shift is not None:
        out = out + lay.over_patches(inputs.shift)
    return lay.join(out).to(s.dtype)


class _Fused(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, op: Operator, *tensors: Tensor | None) -> Tensor:  # type: ignore[override]
        inputs = Inputs(*tensors)  # type: ignore[arg-type]
        lay = _layout(inputs.x, op)
        s = lay.split(project(inputs.x, inputs.kernel, op.geometry))
        norm = inputs.norm
        if norm is None:
            norm = _squares(inputs.x, inputs.kernel, op).sqrt_()
        n, radius = lay.over_channels(norm), lay.over_patches(inputs.radius)
        if op.angular == "cosine":
            saved = s
            out = s * magnitude_ratio(n, op.magnitude, op.alpha, op.beta, radius)
            if op.bounded:
                out.clamp_(-op.alpha, op.alpha)
        else:
            saved = (s * _inverse(n)).clamp_(-1, 1)
            g = angular(saved, op.angular, None if inputs.k is None else lay.over_patches(inputs.k))
            out = g * magnitude(n, op.magnitude, op.alpha, op.beta, radius)
        if inputs.scale is not None:
            out *= lay.over_patches(inputs.scale)
        if inputs.shift is not None:
            out += lay.over_patches(inputs.shift)
        ctx.op = op
        ctx.save_for_backward(*tensors, saved.to(s.dtype), norm)
        return lay.join(out).to(s.dtype)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:  # type: ignore[override]
        *tensors, saved, norm = ctx.saved_tensors
        op, inputs, needed = ctx.op, Inputs(*tensors), ctx.needs_input_grad[1:]
        if torch.is_grad_enabled():  # a second derivative will be asked of the result
            wanted = [t for t, need in zip(tensors, needed, strict=True) if need]
            found = iter(
                torch.autograd.grad(
                    plain_operator(inputs, op), wanted, grad, create_graph=True, allow_unused=True
                )
            )
            return None, *(next(found) if need else None for need in needed)
        gradients = _gradients(grad, inputs, saved, norm, needed, op)
        return None, *(g if need else None for g, need in zip(gradients, needed, strict=True))


def _gradients(
    grad: Tensor,
    inputs: Inputs,
    saved: Tensor,
    norm: Tensor,
    needed: tuple[bool, ...],
    op: Operator,
) -> Inputs:
    need = Inputs(*needed)  # type: ignore[arg-type]
    lay = _layout(inputs.x, op)
    grad, n, radius = lay.split(grad), lay.over_channels(norm), lay.over_patches(inputs.radius)
    settings = (op.magnitude, op.alpha, op.beta, radius)
    shift = lay.sum_patches(grad, inputs.shift) if need.shift else None
    cosine = op.angular == "cosine"
    k = None if inputs.k is None else lay.over_patches(inputs.k)
    inverse = _inverse(n)
    ratio = magnitude_ratio(n, *settings)
    scale = None
    if inputs.scale is not None:
        if need.scale:
            out = saved * ratio if cosine else angular(saved, op.angular, k) * (ratio * n)
            scale = lay.sum_patches(out.mul_(grad), inputs.scale)
        grad = grad * lay.over_patches(inputs.scale)
    if cosine:
        grad_s = grad * ratio
    else:
        grad_s = angular_derivative(saved.to(n.dtype), op.angular, k).mul_(grad).mul_(ratio)
    grad_k = None
    if need.k:
        grad_k = angular_derivative_k(saved.to(n.dtype), k).mul_(grad).mul_(ratio * n)
        grad_k = lay.sum_patches(grad_k, inputs.k)
    # df/dn = scale (h' g - r g' c), with c = s / n for the cosine activation.
    grad_radius = grad_x = grad_norm = None
    if need.x or need.norm or need.radius:
        grad_n = -(grad_s * saved).sum(lay.channel, keepdim=True)
        if cosine:
            grad_n *= inverse
        if op.magnitude != "sphere":
            g = saved * inverse if cosine else angular(saved.to(n.dtype), op.angular, k)
            g = g * grad
            grad_n += lay.sum_channels(g, magnitude_slope(n, *settings))
            if need.radius:
                grad_radius = lay.sum_patches(
                    magnitude_radius_slope(n, *settings) * g, inputs.radius
                )
    grad_x, grad_kernel = convolution_gradients(
        lay.join(grad_s).to(inputs.x.dtype),
        inputs.x,
        inputs.kernel,
        op.geometry,
        need.x,
        need.kernel,
    )
    if need.norm:
        grad_norm = grad_n.reshape(norm.shape)
    elif need.x:
        size = tuple(inputs.kernel.shape[2:])
        spread = (grad_n * inverse).reshape(norm.shape)
        shape = (*norm.shape[:2], *inputs.x.shape[2:])
        pixel = box_filter_transposed(spread, shape, size, op.geometry)
        lay.split(grad_x).addcmul_(lay.split(inputs.x), lay.over_channels(pixel))
    return Inputs(grad_x, grad_kernel, grad_radius, grad_k, scale, shift, grad_norm)


def _layout(x: Tensor, op: Operator) -> _Layout:
    if op.geometry is None:
        return _Layout(1, 0)
    return _Layout(op.geometry.groups, x.ndim - 2)


def _squares(x: Tensor, kernel: Tensor, op: Operator) -> Tensor:
    return box_filter(squared_sum(x, op.geometry), tuple(kernel.shape[2:]), op.geometry)


def _inverse(n: Tensor) -> Tensor:
    """1 / n, and 0 for a zero patch, see Note [Zero patches]."""
    return torch.where(n > 0, 1 / n, 0)
