"""Angular activations as the fused operator uses them: in place, in as few passes as they take.

The same formulas as in angular.py, for cosines that are clamped already and without a graph:
g(c) = factor value(c) and g'(c) = slope_factor slope(c). The factors are constants of a filter,
which the operator multiplies with its other factors before they meet the large tensors.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

from .angular import Angular, sigmoid_constants

__all__ = ["Activation"]


class Activation:
    """k: None, or the sigmoid's curvature, one number or one a filter, ready to broadcast.

    stored: the type the cosines are kept in, be they widened before they come here: an angle
    below its rounding error says nothing of the slope there.
    """

    def __init__(self, kind: Angular, k: Tensor | None, like: Tensor, stored: torch.dtype) -> None:
        self.kind, self.eps = kind, torch.finfo(stored).eps
        self.one = like.new_ones(())
        self.factor, self.slope_factor = self.one, self.one
        if kind == "linear":
            self.factor = self.slope_factor = self.one * (2 / math.pi)
        elif kind == "square_cosine":
            self.slope_factor = 2 * self.one
        elif kind == "sigmoid":
            self.half_over_k, self.end = sigmoid_constants(k, like)
            self.factor, self.slope_factor = 1 / self.end, self.half_over_k / self.end

    def value(self, c: Tensor) -> Tensor:
        """g(c) / factor, in a new tensor."""
        if self.kind == "square_cosine":
            return c.abs().mul_(c)
        angle = torch.asin(c)
        return angle if self.kind == "linear" else angle.mul_(self.half_over_k).tanh_()

    def slope(self, c: Tensor, value: Tensor | None = None) -> Tensor:
        """g'(c) / slope_factor, in a new tensor; finite at c = +-1. value: value(c) if known."""
        if self.kind == "square_cosine":
            return c.abs()
        inverse_sine = self._inverse_sine(c)
        if self.kind == "linear":
            return inverse_sine
        value = self.value(c) if value is None else value
        return inverse_sine.mul_(self._one_minus_square(value))

    def slopes(self, c: Tensor) -> tuple[Tensor, Tensor]:
        """slope(c) and dg / dk of the sigmoid, which share most of their work."""
        angle = torch.asin(c)
        tanh = (angle * self.half_over_k).tanh_()
        slope = self._one_minus_square(tanh)
        factor = 2 * self.half_over_k * self.half_over_k / self.end
        constant = factor * (math.pi / 2) * (1 - self.end * self.end) / self.end
        of_k = tanh.mul_(constant).sub_(angle.mul_(slope).mul_(factor))
        return slope.mul_(self._inverse_sine(c)), of_k

    def _one_minus_square(self, x: Tensor) -> Tensor:
        return torch.addcmul(self.one, x, x, value=-1)

    def _inverse_sine(self, c: Tensor) -> Tensor:
        return self._one_minus_square(c).clamp_min_(self.eps).rsqrt_()
