"""The decoupled operator for accelerators without Triton: whole tensors, few launches.

The formulas are those of tiled.py, whose forms of g (activation.py) and h (lengths.py) work here on
the batch in one piece. Where tiles save memory traffic, this saves launches: factors join products,
and g(c) and h(n) are kept for the backward pass, if they are as large as the outputs, beside the
cosines. The number of launches does not depend on the batch.
"""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor

from .convolution import convolution_gradients, correlate
from .lengths import FilterLengths, SharedLengths
from .numbers import shared_number
from .plain import (
    Inputs,
    OperatorSettings,
    differentiable_gradients,
    filter_shapes,
    shaped_inputs,
)
from .workspace import Workspace

__all__ = ["whole_operator"]

ALL = slice(None)


def whole_operator(inputs: Inputs, op: OperatorSettings) -> Tensor:
    """f(w, x); g and h have slopes of their own, and g is 0 at a right angle."""
    out: Tensor = _Whole.apply(op, *inputs)  # type: ignore[no-untyped-call]
    return out


class _Whole(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, op: OperatorSettings, *tensors: Tensor | None) -> Tensor:
        inputs = Inputs(*tensors)  # type: ignore[arg-type]
        s = correlate(inputs.x, inputs.kernel, op.geometry)
        parts = _Pass(inputs, s, op)
        c = parts.cosines(s)
        wide = parts.widened(c)
        value, h = parts.act.value(wide, parts.new), parts.filter_lengths()
        out = parts.output(value, h)
        ctx.op, ctx.floored = op, parts.lengths.floored
        # Of the cosine, g(c) is c.
        ctx.save_for_backward(*tensors, c, None if value is wide else value, h)
        return out.to(s.dtype) if out.dtype != s.dtype else out

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        *tensors, c, value, h = ctx.saved_tensors
        op, inputs, needed = ctx.op, Inputs(*tensors), ctx.needs_input_grad[1:]
        if torch.is_grad_enabled():  # a second derivative will be asked of the result
            return None, *differentiable_gradients(grad, inputs, needed, op)
        parts = _Pass(inputs, c, op)
        parts.lengths.floored = ctx.floored
        wide = parts.widened(c)
        value = wide if value is None else value
        return None, *parts.backward(grad, wide, value, h, Inputs(*needed))


class _Pass:
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

    def filter_lengths(self) -> Tensor | None:
        """h(n) of a radius per filter, over its factor; None if the filters share it."""
        if isinstance(self.lengths, SharedLengths):
            return None
        return self.lengths.h(ALL, self.new)

    def output(self, value: Tensor, h: Tensor | None) -> Tensor:
        """scale h(n) g(c) + shift."""
        out = self.unscaled(value, h)
        if self.shaped.scale is not None:
            out = out * self.shaped.scale
        if self.shaped.shift is not None:
            out = out + self.shaped.shift
        return self.shapes.join(out)

    def unscaled(self, value: Tensor, h: Tensor | None) -> Tensor:
        """h(n) g(c)."""
        if self.act.per_filter_factors is not None:
            value = value * self.act.per_filter_factors[0]
        if h is None and self.op.magnitude.is_constant:
            # g(c) is 0 in a zero patch, h need not be.
            return value * (self.op.alpha * self.factor)
        if h is None:
            h = self.op.magnitude.value(self.norm, *self.op.constants, self.shaped.radius)
        return _product(value, h, self.factor)

    def backward(
        self, grad: Tensor, c: Tensor, value: Tensor, h: Tensor | None, need: Any
    ) -> tuple[Tensor | None, ...]:
        """The gradients in all inputs, of what the forward has kept."""
        op, shapes, act, lengths, inputs = self.op, self.shapes, self.act, self.lengths, self.inputs
        go = self.widened(grad)
        grad_scale = grad_shift = grad_k = grad_radius = grad_norm = None
        through: Tensor | None = None
        if need.shift and inputs.shift is not None:
            grad_shift = shapes.sum_patches(go, inputs.shift)
        if need.scale and inputs.scale is not None:
            grad_scale = shapes.sum_patches(go * self.unscaled(value, h), inputs.scale)
        go = go if self.shaped.scale is None else go * self.shaped.scale
        constant_h = op.magnitude.is_constant
        settings = (self.norm, *op.constants, self.shaped.radius)
        if need.k and inputs.k is not None:
            a, terms = act.through_slope_and_k(go, c, self.new)
            if not constant_h:
                length = op.magnitude.value(*settings)
                terms = tuple(term * length for term in terms)
            sums = [shapes.sum_patches(term, inputs.k) for term in terms]
            grad_k = _times(act.k_gradient(inputs.k, sums), op.alpha if constant_h else 1.0)
        else:
            a = act.through_slope(go, c, value, self.new)
        t = None
        if (need.norm or need.radius or not self.shared) and not constant_h:
            t = _product(go, value, self.factor)
        if act.per_filter_factors is not None:
            a = a * act.per_filter_factors[1]
            t = None if t is None else t * act.per_filter_factors[0]
        if isinstance(lengths, FilterLengths):
            assert t is not None  # a radius per filter always needs it
            through, of_radius, ratio = lengths.terms(t, ALL, self.new, h)
            grad_radius = shapes.sum_patches(of_radius, inputs.radius)
            grad_radius = lengths.radius_gradient(grad_radius, inputs.radius, 1.0)
            grad_s = _product(a, ratio, self.slope_factor)
        else:
            if constant_h:
                nonzero = torch.threshold(self.norm, 0.0, math.inf)  # r(n) is 0 in a zero patch
                grad_s = _times(a / nonzero, self.slope_factor * op.alpha)
            else:
                grad_s = _product(a, op.magnitude.ratio(*settings), self.slope_factor)
            if t is not None:
                slope = op.magnitude.slope(*settings)
                through = t * slope
                if need.radius and op.magnitude.has_radius:
                    grad_radius = (t * op.magnitude.radius_slope(*settings, slope)).sum()
        if need.norm:  # t h'(n) - a r(n) c, summed over the filters
            if through is None:
                grad_norm = torch.mul(grad_s, c).sum(shapes.channel, keepdim=True).neg_()
            else:
                through = torch.addcmul(through, grad_s, c, value=-1)
                grad_norm = through.sum(shapes.channel, keepdim=True)
            grad_norm = grad_norm.view_as(inputs.norm)
        grad_s = shapes.join(grad_s)
        grad_s = grad_s if grad_s.dtype == inputs.x.dtype else grad_s.to(inputs.x.dtype)
        grad_x, grad_kernel = convolution_gradients(
            grad_s, inputs.x, inputs.kernel, op.geometry, need.x, need.kernel
        )
        grad_radius = grad_radius if need.radius else None
        return grad_x, grad_norm, grad_kernel, grad_radius, grad_k, grad_scale, grad_shift


def _product(value: Tensor, other: Tensor, factor: float) -> Tensor:
    """factor value other in one launch."""
    if factor == 1:
        return value * other
    return torch.addcmul(shared_number(0.0, value.device, value.dtype), value, other, value=factor)


def _times(value: Tensor, factor: float) -> Tensor:
    return value if factor == 1 else value * factor
