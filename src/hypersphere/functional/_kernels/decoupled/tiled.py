"""The decoupled operator as one step with its own backward.

f = scale h(n) g(c) + shift, with s = w^T x for a unit filter w, n = |x| and c = cos(theta) = s / n.
Autograd through these operations would save half a dozen tensors of the size of the output; this
saves one, c, and the patch norms, which have one channel per group, and computes the rest again in
the backward, a few images at a time:

    df/ds = scale r(n) g'(c)                        r(n) = h(n) / n
    df/dn = scale (h'(n) g(c) - r(n) g'(c) c)       n reaches x through the box filter
    df/drho = scale g(c) dh/drho,   df/dk = scale h(n) dg/dk,   df/dscale = h(n) g(c)

See Note [Zero patches] in plain.py.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
from torch import Tensor

from .accelerated import accelerated_operator
from .activation import TiledActivation
from .backward import takes_saved, wants_plain_gradients
from .compiled import compiled_operator
from .convolution import (
    convolution_gradients,
    correlate,
    inverse_norm,
    is_compiled,
    is_traced,
    memory_for_gradient,
)
from .lengths import Lengths, SharedLengths
from .native.for_compiler import compiled_native_operator
from .native.operator import native_operator
from .plain import (
    Inputs,
    OperatorSettings,
    differentiable_gradients,
    filter_shapes,
    plain_operator,
    shaped_inputs,
)
from .routes import route
from .workspace import Workspace, tiles

__all__ = ["apply_operator"]


def apply_operator(inputs: Inputs, op: OperatorSettings, own_norm: bool = False) -> Tensor:
    """f(w, x): fused where autograd runs eagerly, in plain operations where something traces it.

    With `own_norm` the norms are those that `with_norms` has of x, and not a user's.
    """
    if not (op.angular.is_fused and op.magnitude.is_fused):
        return plain_operator(inputs, op)
    if is_compiled():
        out = compiled_native_operator(inputs, op)
        return compiled_operator(inputs, op) if out is None else out
    if is_traced():
        return plain_operator(inputs, op)
    if route(inputs.x) != "tiled":
        return accelerated_operator(inputs, op)
    native = native_operator(inputs, op, own_norm)
    if native is not None:
        return native
    fused: Tensor = _Fused.apply(op, *inputs)  # type: ignore[no-untyped-call]
    return fused


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
    def forward(ctx: Any, op: OperatorSettings, *tensors: Tensor | None) -> Tensor:
        inputs = Inputs(*tensors)  # type: ignore[arg-type]
        c = correlate(inputs.x, inputs.kernel, op.geometry)
        shaped = shaped_inputs(inputs, op)
        k = op.k if shaped.k is None else shaped.k
        # An angle below the rounding error of the cosines says nothing of the slope there.
        act = op.angular.tiled(k, inputs.norm, torch.finfo(c.dtype).eps)
        parts = _Parts(inputs, shaped, act, op)
        inverse = inverse_norm(parts.norm)
        # Rounding may lead a little beyond 1.
        clamps = op.bound is not None or not op.angular.is_cosine
        out, new = torch.empty_like(c), Workspace(inputs.norm.dtype)
        for rows in tiles(c):
            part, value = parts.shapes.split(c[rows]), parts.shapes.split(out[rows])
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
        ctx.op, ctx.act, ctx.spent = op, act, False
        ctx.save_for_backward(*tensors, c)
        return out

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        *tensors, c = ctx.saved_tensors
        op, inputs, needed = ctx.op, Inputs(*tensors), ctx.needs_input_grad[1:]
        if wants_plain_gradients(grad):
            return None, *differentiable_gradients(grad, inputs, needed, op)
        c = c.data if takes_saved(ctx) else _cosines(inputs, op)  # the gradient in s is put there
        return None, *_Backward(grad, inputs, c, _Need(*needed), ctx.act, op).run()


class _Parts:
    """What forward and backward are made of: shapes, the activation, the magnitude."""

    def __init__(
        self, inputs: Inputs, shaped: Inputs, act: TiledActivation, op: OperatorSettings
    ) -> None:
        self.shapes, self.shaped, self.act = filter_shapes(inputs.x, op), shaped, act
        self.norm = self.shapes.over_filters(inputs.norm)
        kind = SharedLengths if shares_radius(inputs, op) else op.magnitude.filter_lengths
        self.lengths: Lengths = kind(
            op.magnitude, self.norm, shaped.radius, *op.constants, self.shapes, *act.factors
        )

    def value(self, c: Tensor, new: Workspace) -> Tensor:
        """g(c), up to the number that the lengths multiply it with."""
        value, factors = self.act.value(c, new), self.act.per_filter_factors
        return value if factors is None else value.mul_(factors[0])


def shares_radius(inputs: Inputs, op: OperatorSettings) -> bool:
    """Whether h is the same function of |x| for all filters."""
    return inputs.radius.ndim == 0 or not op.magnitude.has_radius


class _Backward:
    """The gradients of one call, tile by tile; the one in s takes the place of the cosines."""

    def __init__(
        self,
        grad: Tensor,
        inputs: Inputs,
        c: Tensor,
        need: _Need,
        act: TiledActivation,
        op: OperatorSettings,
    ) -> None:
        self.grad, self.inputs, self.c, self.need, self.op = grad, inputs, c, need, op
        self.parts = _Parts(inputs, shaped_inputs(inputs, op), act, op)
        self.new = Workspace(inputs.norm.dtype)
        per_filter = not shares_radius(inputs, op)
        self.through_norm = need.norm or need.radius or per_filter
        self.through_h = self.through_norm and not op.magnitude.is_constant  # else h' is 0
        # Sums over the patches, from which the gradients of k, scale and shift are made.
        self.k_sums = _zeros(inputs.k, self.parts.act.k_sums if need.k else 0)
        self.scale_sum = _zeros(inputs.scale, 1 if need.scale else 0)
        self.shift_sum = _zeros(inputs.shift, 1 if need.shift else 0)

    def run(self) -> tuple[Tensor | None, ...]:
        inputs, need, op, parts = self.inputs, self.need, self.op, self.parts
        grad_s = memory_for_gradient(self.c, inputs.kernel, op.geometry)
        for rows in tiles(self.c):
            self.tile(rows, parts.shapes.split(grad_s[rows]))
        grad_x, grad_kernel = convolution_gradients(
            grad_s, inputs.x, inputs.kernel, op.geometry, need.x, need.kernel
        )
        grad_norm, grad_radius, grad_k = None, None, None
        if self.through_norm:
            grad_norm, grad_radius = parts.lengths.gradients()
            grad_norm = grad_norm.view_as(inputs.norm)
        if grad_radius is not None:
            grad_radius = grad_radius.view_as(inputs.radius)
        if inputs.k is not None and need.k:
            grad_k = parts.act.k_gradient(inputs.k, self.k_sums)
            grad_k = grad_k * op.alpha if op.magnitude.is_constant else grad_k
        return (
            grad_x,
            grad_norm if need.norm else None,
            grad_kernel,
            grad_radius if need.radius else None,
            grad_k,
            self.scale_sum[0] if need.scale else None,
            self.shift_sum[0] if need.shift else None,
        )

    def tile(self, rows: slice, out: Tensor) -> None:
        """t = go g(c), a = go g'(c) and a c of some images, for the lengths to go on with."""
        parts, act, need = self.parts, self.parts.act, self.need
        go, n = parts.shapes.split(self.grad[rows]), parts.norm[rows]
        part, new = parts.shapes.split(self.c[rows]), self.new
        new.start(part)
        c = part.to(n.dtype)
        if need.shift:
            self.add(self.shift_sum, go)
        if need.scale:
            unscaled = new()
            parts.lengths.forward(parts.value(c, new), rows, unscaled, new)
            self.add(self.scale_sum, unscaled.mul_(go))
        if parts.shaped.scale is not None:
            go = torch.mul(go, parts.shaped.scale, out=new())
        value = act.value(c, new) if self.through_h else None
        if need.k:
            a, k_terms = act.through_slope_and_k(go, c, new)
            if not self.op.magnitude.is_constant:  # a constant h multiplies the sums instead
                h = self.op.magnitude.value(n, *self.op.constants, parts.shaped.radius)
                k_terms = tuple(term.mul_(h) for term in k_terms)
            self.add(self.k_sums, *k_terms)
        else:
            a = act.through_slope(go, c, value, new)
        t = None if value is None else torch.mul(go, value, out=new())
        if act.per_filter_factors is not None:
            a.mul_(act.per_filter_factors[1])
            t = None if t is None else t.mul_(act.per_filter_factors[0])
        ac = t  # of the cosine, go g(c) is go g'(c) c
        if self.through_norm and (t is None or not self.op.angular.is_cosine):
            ac = torch.mul(a, c, out=new())
        parts.lengths.backward(t, a, ac, rows, out, new)

    def add(self, sums: list[Tensor], *terms: Tensor) -> None:
        """Add the sum over the patches of each term to its total."""
        for total, term in zip(sums, terms, strict=True):
            total += self.parts.shapes.sum_patches(term, total)


def _zeros(like: Tensor | None, count: int) -> list[Tensor]:
    return [] if like is None else [torch.zeros_like(like) for _ in range(count)]


def _cosines(inputs: Inputs, op: OperatorSettings) -> Tensor:
    """What the forward saves."""
    c, shapes = correlate(inputs.x, inputs.kernel, op.geometry), filter_shapes(inputs.x, op)
    shapes.split(c).mul_(inverse_norm(shapes.over_filters(inputs.norm))).clamp_(-1, 1)
    return c
