"""The decoupled operator for accelerators without Triton: whole tensors, few launches.

The formulas are those of tiled.py, whose forms of g (activation.py) and h (lengths.py) work here on
the batch in one piece. Where tiles save memory traffic, this saves launches: sums are written where
they end, and factors of 1 are left out. The number of launches does not depend on the batch.
"""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor

from .convolution import convolution_gradients, correlate
from .lengths import FilterLengths, SharedLengths
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
        out = parts.forward(c)
        ctx.op, ctx.parts = op, parts.detached()
        ctx.save_for_backward(*tensors, c)
        return out.to(s.dtype) if out.dtype != s.dtype else out

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        *tensors, c = ctx.saved_tensors
        op, inputs, needed = ctx.op, Inputs(*tensors), ctx.needs_input_grad[1:]
        if torch.is_grad_enabled():  # a second derivative will be asked of the result
            return None, *differentiable_gradients(grad, inputs, needed, op)
        return None, *_Pass(inputs, c, op, ctx.parts).backward(grad, c, Inputs(*needed))


class _Pass:
    """One call, forward or backward.

    Args:
        inputs: the tensors of the operator.
        like: a tensor of the size of the output.
        op: what is fixed about it.
        kept: what the forward has computed of the patches and of the filters, see `detached`.
    """

    def __init__(
        self, inputs: Inputs, like: Tensor, op: OperatorSettings, kept: dict[str, Any] | None = None
    ) -> None:
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
        if kept is not None:
            self.lengths.__dict__.update(kept["lengths"])
        self.new = Workspace(self.wide)

    def detached(self) -> dict[str, Any]:
        """What the backward need not compute again: numbers per patch and per filter."""
        names = ("inverse", "inverse_radius", "floored")
        found = self.lengths.__dict__
        return {"lengths": {name: found[name] for name in names if name in found}}

    def cosines(self, s: Tensor) -> Tensor:
        """cos(theta) in the place of s = w^T x."""
        parts = self.shapes.split(s)
        # In a zero patch s is 0, and so is s over any number.
        parts.div_(self.lengths.floored)
        # Rounding may lead a little beyond 1.
        if self.op.bound is not None or not self.op.angular.is_cosine:
            parts.clamp_(-1, 1)
        return s

    def forward(self, cosines: Tensor) -> Tensor:
        """scale h(n) g(c) + shift."""
        c = self.widened(self.shapes.split(cosines))
        out = self.unscaled(c)
        if self.shaped.scale is not None:
            out = out * self.shaped.scale
        if self.shaped.shift is not None:
            out = out + self.shaped.shift
        return self.shapes.join(out)

    def unscaled(self, c: Tensor) -> Tensor:
        """h(n) g(c)."""
        self.new.start(c)
        value, factor = self.act.value(c, self.new), self.factor
        if self.act.per_filter_factors is not None:
            value = value.mul_(self.act.per_filter_factors[0])
        if not isinstance(self.lengths, SharedLengths):
            out = value * self.lengths.h(ALL, self.new)
        elif self.op.magnitude.is_constant:  # g(c) is 0 in a zero patch, h need not be
            return value * (self.op.alpha * factor)
        else:
            out = value * self.lengths.h
        return _times(out, factor)

    def backward(self, grad: Tensor, cosines: Tensor, need: Any) -> tuple[Tensor | None, ...]:
        op, shapes, act, lengths, inputs = self.op, self.shapes, self.act, self.lengths, self.inputs
        c, go = self.widened(shapes.split(cosines)), self.widened(shapes.split(grad))
        self.new.start(c)
        grad_scale = grad_shift = grad_k = grad_radius = grad_norm = None
        through: Tensor | None = None
        if need.shift and inputs.shift is not None:
            grad_shift = shapes.sum_patches(go, inputs.shift)
        if need.scale and inputs.scale is not None:
            grad_scale = shapes.sum_patches(go * self.unscaled(c), inputs.scale)
        go = go if self.shaped.scale is None else go * self.shaped.scale
        constant = op.magnitude.is_constant
        through_norm = need.norm or need.radius or not self.shared
        value = act.value(c, self.new) if through_norm and not constant else None
        if need.k and inputs.k is not None:
            a, terms = act.through_slope_and_k(go, c, self.new)
            if not constant:
                h = op.magnitude.value(self.norm, *op.constants, self.shaped.radius)
                terms = tuple(term * h for term in terms)
            sums = [shapes.sum_patches(term, inputs.k) for term in terms]
            grad_k = _times(act.k_gradient(inputs.k, sums), op.alpha if constant else 1.0)
        else:
            a = act.through_slope(go, c, value, self.new)
        t = None if value is None else go * value
        if act.per_filter_factors is not None:
            a = a * act.per_filter_factors[1]
            t = None if t is None else t * act.per_filter_factors[0]
        if isinstance(lengths, FilterLengths):
            assert t is not None  # a radius per filter always needs it
            through, of_radius, ratio = lengths.terms(t, ALL, self.new)
            grad_radius = shapes.sum_patches(of_radius, inputs.radius)
            grad_radius = lengths.radius_gradient(grad_radius, inputs.radius, self.factor)
            grad_s = _times(ratio.mul_(a), self.slope_factor)
        else:
            settings = (self.norm, *op.constants, self.shaped.radius)
            if constant:
                nonzero = torch.threshold(self.norm, 0.0, math.inf)  # r(n) is 0 in a zero patch
                grad_s = _times(a / nonzero, self.slope_factor * op.alpha)
            else:
                grad_s = _times(a * op.magnitude.ratio(*settings), self.slope_factor)
            if t is not None:
                slope = op.magnitude.slope(*settings)
                through = t * slope
                if need.radius and op.magnitude.has_radius:
                    of_radius = op.magnitude.radius_slope(*settings, slope)
                    grad_radius = _times((t * of_radius).sum(), self.factor)
        if need.norm:  # t h'(n) - a r(n) c, summed over the filters
            if through is None:
                grad_norm = torch.mul(grad_s, c).sum(shapes.channel, keepdim=True).neg_()
            else:
                through = torch.addcmul(through, grad_s, c, value=-1 / self.factor)
                grad_norm = _times(through.sum(shapes.channel, keepdim=True), self.factor)
            grad_norm = grad_norm.view_as(inputs.norm)
        grad_s = shapes.join(grad_s)
        grad_s = grad_s if grad_s.dtype == inputs.x.dtype else grad_s.to(inputs.x.dtype)
        grad_x, grad_kernel = convolution_gradients(
            grad_s, inputs.x, inputs.kernel, op.geometry, need.x, need.kernel
        )
        grad_radius = grad_radius if need.radius else None
        return grad_x, grad_norm, grad_kernel, grad_radius, grad_k, grad_scale, grad_shift

    def widened(self, value: Tensor) -> Tensor:
        """In the type of the norms, float32 or wider."""
        return value if value.dtype == self.wide else value.to(self.wide)


def _times(value: Tensor, factor: float) -> Tensor:
    return value if factor == 1 else value * factor
