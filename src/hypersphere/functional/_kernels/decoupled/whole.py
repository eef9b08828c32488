"""The decoupled operator for accelerators without Triton: whole tensors, few launches.

The formulas are those of tiled.py, whose forms of g (activation.py) and h (lengths.py) work here on
the batch in one piece. Where tiles save memory traffic, this saves launches: factors join products,
and g(c) and h(n) are kept for the backward pass, if they are as large as the outputs, beside the
cosines. The number of launches does not depend on the batch.
"""

from __future__ import annotations

import math
from typing import Any, NamedTuple

import torch
from torch import Tensor

from .backward import wants_plain_gradients
from .convolution import convolution_gradients, correlate
from .lengths import FilterLengths, SharedLengths
from .numbers import product, quotient
from .plain import (
    Inputs,
    OperatorSettings,
    differentiable_gradients,
    filter_shapes,
    shaped_inputs,
)
from .whole_sums import sum_products
from .workspace import Workspace

__all__ = ["Gradients", "Pass", "whole_operator"]


def whole_operator(inputs: Inputs, op: OperatorSettings) -> Tensor:
    """f(w, x); g and h have slopes of their own, and g is 0 at a right angle."""
    out: Tensor = _Whole.apply(op, *inputs)  # type: ignore[no-untyped-call]
    return out


class _Whole(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, op: OperatorSettings, *tensors: Tensor | None) -> Tensor:
        inputs = Inputs(*tensors)  # type: ignore[arg-type]
        s = correlate(inputs.x, inputs.kernel, op.geometry)
        parts = Pass(inputs, s, op)
        out, *kept = parts.forward(s)
        ctx.op, ctx.floored = op, parts.lengths.floored
        ctx.save_for_backward(*tensors, *kept)
        return out

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        *tensors, c, value, h = ctx.saved_tensors
        op, inputs, needed = ctx.op, Inputs(*tensors), ctx.needs_input_grad[1:]
        if wants_plain_gradients(grad):
            return None, *differentiable_gradients(grad, inputs, needed, op)
        parts = Pass(inputs, c, op)
        need: Any = Inputs(*needed)
        parts.lengths.floored = ctx.floored
        found = parts.backward(grad, c, value, h, need)
        grad_x, grad_kernel = convolution_gradients(
            found.s, inputs.x, inputs.kernel, op.geometry, need.x, need.kernel
        )
        grad_norm = None if found.norm is None else _times(found.norm, found.norm_factor)
        grad_radius = found.radius
        if grad_radius is not None and found.radius_is_relative:
            grad_radius = quotient(grad_radius, inputs.radius, -1.0)
        return None, grad_x, grad_norm, grad_kernel, grad_radius, found.k, found.scale, found.shift


class Gradients(NamedTuple):
    """What flows back into the parts of one call.

    Args:
        s: the gradient in w^T x.
        norm: that in the patch norms, over `norm_factor`.
        norm_factor: a number.
        radius: that in the radius, or, if it is relative, minus that times the radius.
        radius_is_relative: see `FilterLengths.is_relative`.
        k: the gradient in k.
        scale: that in the factor per filter.
        shift: that in the summand per filter.
    """

    s: Tensor
    norm: Tensor | None = None
    norm_factor: float = 1.0
    radius: Tensor | None = None
    radius_is_relative: bool = False
    k: Tensor | None = None
    scale: Tensor | None = None
    shift: Tensor | None = None


class Pass:
    """One call, forward or backward.

    Args:
        inputs: the tensors of the operator.
        like: a tensor of the size of the output.
        op: what is fixed about it.
    """

    def __init__(self, inputs: Inputs, like: Tensor, op: OperatorSettings) -> None:
        self.inputs, self.op = inputs, op
        self.shapes, self.shaped = filter_shapes(inputs.x, op), shaped_inputs(inputs, op)
        self.norm = self.shapes.over_filters(inputs.norm)
        self.wide = inputs.norm.dtype
        self.shared = inputs.radius.ndim == 0 or not op.magnitude.has_radius
        # An angle below the rounding error of the cosines says nothing of the slope there.
        k = op.k if self.shaped.k is None else self.shaped.k
        self.act = op.angular.tiled(k, inputs.norm, torch.finfo(like.dtype).eps)
        kind = SharedLengths if self.shared else op.magnitude.filter_lengths
        self.lengths = kind(
            op.magnitude, self.norm, self.shaped.radius, *op.constants, self.shapes, 1.0, 1.0
        )
        self.factor, self.slope_factor = self.act.factors
        if not self.shared:  # some forms leave alpha to the factors
            self.factor *= self.lengths.factor
            self.slope_factor *= self.lengths.slope_factor
        self.new = Workspace(self.wide)
        self.new.start(self.shapes.split(like))

    def forward(self, s: Tensor) -> tuple[Tensor, Tensor, Tensor | None, Tensor | None]:
        """The output, and what `backward` takes: the cosines in the place of s, g(c), and of h."""
        c = self.cosines(s)
        wide = self.widened(c)
        value = self.act.value(wide, self.new)
        kept = self.lengths.keep() if isinstance(self.lengths, FilterLengths) else None
        out = self.output(value, kept)
        out = out.to(s.dtype) if out.dtype != s.dtype else out
        return out, c, None if value is wide else value, kept  # of the cosine, g(c) is c

    def widened(self, value: Tensor) -> Tensor:
        """Seen by groups, and in the type of the norms, float32 or wider."""
        value = self.shapes.split(value)
        return value if value.dtype == self.wide else value.to(self.wide)

    def cosines(self, s: Tensor) -> Tensor:
        """cos(theta) in the place of s = w^T x."""
        parts = self.shapes.split(s)
        # In a zero patch s is 0, and so is s over any number.
        parts.div_(self.lengths.floored)
        # Rounding may lead a little beyond 1.
        if self.op.bound is not None or not self.op.angular.is_cosine:
            parts.clamp_(-1, 1)
        return s

    def output(self, value: Tensor, kept: Tensor | None) -> Tensor:
        """scale h(n) g(c) + shift."""
        out = self.unscaled(value, kept)
        if self.shaped.scale is not None:
            out = out * self.shaped.scale
        if self.shaped.shift is not None:
            out = out + self.shaped.shift
        return self.shapes.join(out)

    def unscaled(self, value: Tensor, kept: Tensor | None) -> Tensor:
        """h(n) g(c)."""
        if self.act.per_filter_factors is not None:
            value = value * self.act.per_filter_factors[0]
        if kept is not None and isinstance(self.lengths, FilterLengths):
            return product(value, self.lengths.from_kept(kept), self.factor)
        if self.op.magnitude.is_constant:
            # g(c) is 0 in a zero patch, h need not be.
            return value * (self.op.alpha * self.factor)
        h = self.op.magnitude.value(self.norm, *self.op.constants, self.shaped.radius)
        return product(value, h, self.factor)

    def backward(
        self, grad: Tensor, c: Tensor, value: Tensor | None, kept: Tensor | None, need: Any
    ) -> Gradients:
        """What flows back, from what `forward` gave."""
        op, shapes, act, inputs = self.op, self.shapes, self.act, self.inputs
        c = self.widened(c)
        value = c if value is None else value
        go = self.widened(grad)
        grad_scale = grad_shift = grad_k = None
        if need.shift and inputs.shift is not None:
            grad_shift = shapes.sum_patches(go, inputs.shift)
        if need.scale and inputs.scale is not None:
            grad_scale = shapes.sum_patches(go * self.unscaled(value, kept), inputs.scale)
        go = go if self.shaped.scale is None else go * self.shaped.scale
        constant_h = op.magnitude.is_constant
        needs_t = (need.norm or need.radius or not self.shared) and not constant_h
        t: Tensor | None = None  # go g(c), over the factor of g and h
        if need.k and inputs.k is not None:
            a, terms = act.through_slope_and_k(go, c, self.new)
            if not constant_h:
                length = op.magnitude.value(self.norm, *op.constants, self.shaped.radius)
                terms = tuple(term * length for term in terms)
            sums = [shapes.sum_patches(term, inputs.k) for term in terms]
            grad_k = _times(act.k_gradient(inputs.k, sums), op.alpha if constant_h else 1.0)
        elif kept is not None:
            a, t = act.through_slope_and_value(go, c, value, self.new)
        else:
            a = act.through_slope(go, c, value, self.new)
        if needs_t and t is None:
            t = go * value
        if act.per_filter_factors is not None:
            a = a * act.per_filter_factors[1]
            t = None if t is None else t * act.per_filter_factors[0]
        through = self.through_filters if kept is not None else self.through_patches
        found = through(a, t, c, kept, need)
        grad_s = shapes.join(found.s)
        grad_s = grad_s if grad_s.dtype == inputs.x.dtype else grad_s.to(inputs.x.dtype)
        if found.norm is not None:
            found = found._replace(norm=found.norm.view_as(inputs.norm))
        return found._replace(s=grad_s, k=grad_k, scale=grad_scale, shift=grad_shift)

    def through_filters(
        self, a: Tensor, t: Tensor | None, c: Tensor, kept: Tensor | None, need: Any
    ) -> Gradients:
        """The gradients in w^T x, n and rho of a radius per filter."""
        lengths, shapes = self.lengths, self.shapes
        assert isinstance(lengths, FilterLengths) and t is not None and kept is not None
        grad_s = lengths.through_ratio(a, kept, self.slope_factor)
        through, first, second = lengths.whole_terms(t, kept)
        factor = self.factor * lengths.radius_factor
        grad_radius = grad_norm = None
        if need.radius:
            grad_radius = sum_products(first, second, factor, shapes, self.inputs.radius)
        if need.norm:  # t h'(n) - a r(n) c, summed over the filters
            through.addcmul_(grad_s, c, value=-1 / self.factor)
            grad_norm = through.sum(shapes.channel, keepdim=True)
        return Gradients(grad_s, grad_norm, self.factor, grad_radius, lengths.is_relative)

    def through_patches(
        self, a: Tensor, t: Tensor | None, c: Tensor, kept: Tensor | None, need: Any
    ) -> Gradients:
        """The gradients in w^T x, n and rho of a length that all filters share."""
        h, settings = self.op.magnitude, (self.norm, *self.op.constants, self.shaped.radius)
        grad_norm = grad_radius = None
        if h.is_constant:
            nonzero = torch.threshold(self.norm, 0.0, math.inf)  # r(n) is 0 in a zero patch
            grad_s = _times(a / nonzero, self.slope_factor * self.op.alpha)
        else:
            grad_s = product(a, h.ratio(*settings), self.slope_factor)
        if t is None:
            if need.norm:
                grad_norm = (grad_s * c).sum(self.shapes.channel, keepdim=True).neg_()
            return Gradients(grad_s, grad_norm)
        slope = h.slope(*settings)
        if need.radius and h.has_radius:
            of_radius = h.radius_slope(*settings, slope)
            grad_radius = _times((t * of_radius).sum(), self.factor)
        if need.norm:
            through = torch.addcmul(t * slope, grad_s, c, value=-1 / self.factor)
            grad_norm = through.sum(self.shapes.channel, keepdim=True)
        return Gradients(grad_s, grad_norm, self.factor, grad_radius)


def _times(value: Tensor, factor: float) -> Tensor:
    return value if factor == 1 else value * factor
