"""Angular activations as the fused operator uses them: in place, in as few passes as they take.

The same formulas as in angular.py, for cosines that are clamped already and without a graph:
g(c) = value(c) and g'(c) = slope(c), each times a factor. `factors` are numbers, which the operator
multiplies with its others before they meet the large tensors, `filter_factors` one a filter.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

from ...angular import Angular, sigmoid_constants
from .workspace import Workspace

__all__ = ["Activation"]


class Activation:
    """k: the sigmoid's curvature, a number, or one a filter ready to broadcast.

    stored: the type the cosines are kept in, be they widened before they come here: an angle
    below its rounding error says nothing of the slope there.
    """

    def __init__(self, kind: Angular, k: Tensor | float, like: Tensor, stored: torch.dtype) -> None:
        self.kind = kind
        self.above_one = like.new_full((), 1 + torch.finfo(stored).eps)
        self.factors = (1.0, 1.0)
        self.filter_factors: tuple[Tensor, Tensor] | None = None
        self.half_over_k: Tensor | float = 1.0
        if kind == "linear":
            self.factors = (2 / math.pi, 2 / math.pi)
        elif kind == "square_cosine":
            self.factors = (1.0, 2.0)
        elif kind == "sigmoid" and isinstance(k, Tensor):
            half_over_k, end = sigmoid_constants(k, like)
            self.half_over_k, self.filter_factors = half_over_k, (1 / end, half_over_k / end)
        elif kind == "sigmoid" and not isinstance(k, Tensor):
            number, last = 0.5 / k, math.tanh(math.pi / 4 / k)
            self.half_over_k, self.factors = number, (1 / last, number / last)

    def value(self, c: Tensor, new: Workspace) -> Tensor:
        """g(c) over its factor; the cosine activation returns c itself."""
        if self.kind == "cosine":
            return c
        if self.kind == "square_cosine":
            return torch.abs(c, out=new()).mul_(c)
        angle = torch.asin(c, out=new())
        return angle if self.kind == "linear" else self._bend(angle)

    def through_slope(
        self, grad: Tensor, c: Tensor, value: Tensor | None, new: Workspace
    ) -> Tensor:
        """grad g'(c) over its factor, finite at c = +-1; the cosine activation returns grad itself.

        value: value(c), if it is known already.
        """
        if self.kind == "cosine":
            return grad
        if self.kind == "square_cosine":
            return torch.abs(c, out=new()).mul_(grad)
        inverse_sine = self._inverse_sine(c, new)
        if self.kind == "linear":
            return inverse_sine.mul_(grad)
        value = self.value(c, new) if value is None else value
        return inverse_sine.mul_(_times_one_minus_square(grad, value, new))

    def through_slope_and_k(
        self, grad: Tensor, c: Tensor, new: Workspace
    ) -> tuple[Tensor, Tensor, Tensor]:
        """through_slope of the sigmoid, and what dg / dk is a sum of, see k_gradient."""
        angle = torch.asin(c, out=new())
        tanh = torch.mul(angle, self.half_over_k, out=new()).tanh_()
        slope = _times_one_minus_square(grad, tanh, new)
        return self._inverse_sine(c, new).mul_(slope), tanh.mul_(grad), angle.mul_(slope)

    @staticmethod
    def k_gradient(k: Tensor | float, tanh: Tensor, angle: Tensor) -> Tensor:
        """The gradient in k from the sums over the patches of through_slope_and_k, times h."""
        half_over_k, end = sigmoid_constants(k, tanh)
        factor = 2 * half_over_k * half_over_k / end
        return factor * (math.pi / 2 * (1 - end * end) / end * tanh - angle)

    def _bend(self, angle: Tensor) -> Tensor:
        # k = 1/2 needs no factor.
        one = isinstance(self.half_over_k, float) and self.half_over_k == 1
        return angle.tanh_() if one else angle.mul_(self.half_over_k).tanh_()

    def _inverse_sine(self, c: Tensor, new: Workspace) -> Tensor:
        # sin^2 = 1 - c^2 is known up to the rounding of c; so much is added, and it cannot be 0.
        return torch.addcmul(self.above_one, c, c, value=-1, out=new()).rsqrt_()


def _times_one_minus_square(grad: Tensor, value: Tensor, new: Workspace) -> Tensor:
    """grad (1 - value^2) in one pass: the derivative of tanh in terms of its value."""
    return torch.ops.aten.tanh_backward.grad_input(grad, value, grad_input=new())
