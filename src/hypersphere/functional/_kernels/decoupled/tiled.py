"""The decoupled operator as one step with its own backward.

f = scale h(n) g(c) + shift, with s = w^T x for a unit filter w, n = |x| and c = cos(theta) = s / n.
Autograd through these operations would save half a dozen tensors of the size of the output; this
saves one, c, and the patch norms, which have one channel a group, and works out the rest again in
the backward, a few images at a time:

    df/ds = scale r(n) g'(c)                        r(n) = h(n) / n
    df/dn = scale (h'(n) g(c) - r(n) g'(c) c)       n reaches x through the box filter
    df/drho = scale g(c) dh/drho,   df/dk = scale h(n) dg/dk,   df/dscale = h(n) g(c)

See Note [Zero patches] in operator.py.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor

from ...magnitude import magnitude
from .activation import Activation
from .compiled import compiled_operator
from .lengths import FilterLengths, Lengths, SharedLengths, shares_radius
from .patches import (
    convolution_gradients,
    inverse_norm,
    is_compiled,
    is_traced,
    memory_for_gradient,
    project,
)
from .plain import Inputs, Operator, layout, plain_operator, shaped_inputs
from .workspace import Workspace, tiles

__all__ = ["Inputs", "Operator", "apply_operator", "plain_operator"]


def apply_operator(inputs: Inputs, op: Operator) -> Tensor:
    """f(w, x): fused where autograd runs eagerly, in plain operations where something traces it."""
    if is_compiled() and not callable(op.angular):
        return compiled_operator(inputs, op)
    if is_traced() or callable(op.angular):
        return plain_operator(inputs, op)
    return _Fused.apply(op, *inputs)


class _Need(NamedTuple):
    """Which of the inputs need a gradient, in the order of Inputs."""

    x: bool
    norm: bool
    kernel: bool
    radius: bool
    k: bool
    scale: bool
    shift: bool


class _Fused(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, op: Operator, *tensors: Tensor | None) -> Tensor:  # type: ignore[override]
        inputs = Inputs(*tensors)  # type: ignore[arg-type]
        c = project(inputs.x, inputs.kernel, op.geometry)
        parts = _Parts(inputs, op, c.dtype)
        inverse = inverse_norm(parts.norm)
        clamps = op.bounded or op.angular != "cosine"  # rounding may lead a little beyond 1
        out, new = torch.empty_like(c), Workspace(inputs.norm.dtype)
        for rows in tiles(c):
            part, value = parts.lay.split(c[rows]), parts.lay.split(out[rows])
            new.start(part)
            part.mul_(inverse[rows])
            if clamps:
                part.clamp_(-1, 1)
            g = parts.value(part.to(new.dtype), new)
            parts.lengths.forward(g, rows, value, new)
            if parts.shaped.scale is not None:
                value *= parts.shaped.scale
            if parts.shaped.shift is not None:
                value += parts.shaped.shift
        ctx.op, ctx.spent = op, False
        ctx.save_for_backward(*tensors, c)
        return out

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:  # type: ignore[override]
        *tensors, c = ctx.saved_tensors
        op, inputs, needed = ctx.op, Inputs(*tensors), ctx.needs_input_grad[1:]
        if torch.is_grad_enabled():  # a second derivative will be asked of the result
            return None, *_differentiable_gradients(grad, inputs, needed, op)
        # The gradient in s takes the place of c, which spares an output-sized tensor. Should a
        # retained graph come here again, its c is worked out anew.
        if ctx.spent:
            c = _cosines(inputs, op)
        ctx.spent = True
        with torch.autograd._unsafe_preserve_version_counter(c):
            return None, *_Backward(grad, inputs, c, _Need(*needed), op).run()


def _differentiable_gradients(
    grad: Tensor, inputs: Inputs, needed: Sequence[bool], op: Operator
) -> Iterator[Tensor | None]:
    wanted = [t for t, need in zip(inputs, needed, strict=True) if need and t is not None]
    out = plain_operator(inputs, op)
    found = iter(torch.autograd.grad(out, wanted, grad, create_graph=True, allow_unused=True))
    return (next(found) if need else None for need in needed)


class _Parts:
    """What forward and backward are made of: shapes, the activation, the magnitude.

    left: factors of g and g' that the magnitude cannot take over, being one a filter.
    """

    def __init__(self, inputs: Inputs, op: Operator, stored: torch.dtype) -> None:
        self.lay, self.shaped = layout(inputs.x, op), shaped_inputs(inputs, op)
        self.norm = self.lay.over_channels(inputs.norm)
        k = op.k if self.shaped.k is None else self.shaped.k
        self.act = act = Activation(op.angular, k, self.norm, stored)
        self.left = act.filter_factors
        kind = SharedLengths if shares_radius(op, inputs.radius) else FilterLengths
        self.lengths: Lengths = kind(self.norm, self.shaped.radius, op, self.lay, *act.factors)

    def value(self, c: Tensor, new: Workspace) -> Tensor:
        """g(c), up to what the lengths multiply it with."""
        value = self.act.value(c, new)
        return value if self.left is None else value.mul_(self.left[0])


class _Backward:
    """The gradients of one call, tile by tile; the one in s takes the place of the cosines."""

    def __init__(self, grad: Tensor, inputs: Inputs, c: Tensor, need: _Need, op: Operator) -> None:
        self.grad, self.inputs, self.c, self.need, self.op = grad, inputs, c, need, op
        self.parts, self.new = _Parts(inputs, op, c.dtype), Workspace(inputs.norm.dtype)
        each = not shares_radius(op, inputs.radius)
        self.through_norm = need.norm or need.radius or each
        self.through_h = self.through_norm and op.magnitude != "sphere"  # where h' is 0
        sums = {"k": need.k, "k_angle": need.k, "scale": need.scale, "shift": need.shift}
        self.sums = {
            name: torch.zeros_like(getattr(inputs, name.split("_")[0]))
            for name, needed in sums.items()
            if needed
        }

    def run(self) -> tuple[Tensor | None, ...]:
        inputs, need, op, parts = self.inputs, self.need, self.op, self.parts
        grad_s = memory_for_gradient(self.c, inputs.kernel, op.geometry)
        for rows in tiles(self.c):
            self.tile(rows, parts.lay.split(grad_s[rows]))
        grad_x, grad_kernel = convolution_gradients(
            grad_s, inputs.x, inputs.kernel, op.geometry, need.x, need.kernel
        )
        grad_norm, grad_radius, grad_k = None, None, None
        if self.through_norm:
            grad_norm, grad_radius = parts.lengths.gradients()
            grad_norm = grad_norm.view_as(inputs.norm)
            grad_radius = grad_radius.view_as(inputs.radius)
        if inputs.k is not None and need.k:
            grad_k = Activation.k_gradient(inputs.k, self.sums["k"], self.sums["k_angle"])
            grad_k = grad_k * op.alpha if op.magnitude == "sphere" else grad_k
        return (
            grad_x,
            grad_norm if need.norm else None,
            grad_kernel,
            grad_radius if need.radius else None,
            grad_k,
            self.sums.get("scale"),
            self.sums.get("shift"),
        )

    def tile(self, rows: slice, out: Tensor) -> None:
        """t = go g(c), a = go g'(c) and a c of some images, for the lengths to go on with."""
        parts, act, need = self.parts, self.parts.act, self.need
        go, n = parts.lay.split(self.grad[rows]), parts.norm[rows]
        part, new = parts.lay.split(self.c[rows]), self.new
        new.start(part)
        c = part.to(n.dtype)
        if need.shift:
            self.add("shift", go)
        if need.scale:
            unscaled = new()
            parts.lengths.forward(parts.value(c, new), rows, unscaled, new)
            self.add("scale", unscaled.mul_(go))
        if parts.shaped.scale is not None:
            go = torch.mul(go, parts.shaped.scale, out=new())
        value = act.value(c, new) if self.through_h else None
        if need.k:
            a, of_tanh, of_angle = act.through_slope_and_k(go, c, new)
            if self.op.magnitude != "sphere":  # whose constant h waits for the sums
                h = magnitude(n, *self.op.settings, parts.shaped.radius)
                of_tanh, of_angle = of_tanh.mul_(h), of_angle.mul_(h)
            self.add("k", of_tanh)
            self.add("k_angle", of_angle)
        else:
            a = act.through_slope(go, c, value, new)
        t = None if value is None else torch.mul(go, value, out=new())
        if parts.left is not None:
            a.mul_(parts.left[1])
            t = None if t is None else t.mul_(parts.left[0])
        ac = t
        if self.through_norm and (t is None or self.op.angular != "cosine"):
            ac = torch.mul(a, c, out=new())
        parts.lengths.backward(t, a, ac, rows, out, new)

    def add(self, name: str, value: Tensor) -> None:
        self.sums[name] += self.parts.lay.sum_patches(value, self.sums[name])


def _cosines(inputs: Inputs, op: Operator) -> Tensor:
    """What the forward saves."""
    c, lay = project(inputs.x, inputs.kernel, op.geometry), layout(inputs.x, op)
    lay.split(c).mul_(inverse_norm(lay.over_channels(inputs.norm))).clamp_(-1, 1)
    return c
