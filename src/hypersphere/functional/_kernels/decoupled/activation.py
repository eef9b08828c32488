"""Angular activations on tiles: in place, in as few passes as they take.

    g(c) = factors[0] value(c),    grad g'(c) = factors[1] through_slope(grad, c)

The formulas are those of functional/angular.py, for cosines that are clamped already and without a
graph. Each activation there names its tiled form here. Constant factors are left out of the passes
over the large tensors: the operator multiplies them into its own.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from .numbers import shared_number
from .workspace import Workspace

if TYPE_CHECKING:
    from ...angular_functions import AngularFunction

__all__ = [
    "TiledActivation",
    "TiledArcsin",
    "TiledCosine",
    "TiledFunction",
    "TiledSquareCosine",
    "TiledTanh",
]


class TiledActivation:
    """What the tiled operator asks of g.

    `factors` are numbers by which value and slope are still to be multiplied, `per_filter_factors`
    are tensors that broadcast over the outputs. `k_sums` counts the sums over the patches from
    which `k_gradient` makes the gradient in k.
    """

    factors: tuple[float, float] = (1.0, 1.0)
    per_filter_factors: tuple[Tensor, Tensor] | None = None
    k_sums: int = 0

    def value(self, c: Tensor, new: Workspace) -> Tensor:
        """g(c) over its factor. The result may be c itself."""
        raise NotImplementedError

    def through_slope(
        self, grad: Tensor, c: Tensor, value: Tensor | None, new: Workspace
    ) -> Tensor:
        """grad g'(c) over its factor, finite at c = +-1; value is value(c) if known already."""
        raise NotImplementedError

    def through_slope_and_value(
        self, grad: Tensor, c: Tensor, value: Tensor, new: Workspace
    ) -> tuple[Tensor, Tensor]:
        """through_slope, and grad value(c), both of whole tensors."""
        return self.through_slope(grad, c, value, new), grad * value

    def through_slope_and_k(
        self, grad: Tensor, c: Tensor, new: Workspace
    ) -> tuple[Tensor, tuple[Tensor, ...]]:
        """through_slope, and the terms whose sums over the patches `k_gradient` takes."""
        raise NotImplementedError

    def k_gradient(self, k: Tensor, sums: list[Tensor]) -> Tensor:
        """The gradient in k from the sums over the patches, each term times h."""
        raise NotImplementedError


class TiledFunction(TiledActivation):
    """Any g that has value and slope: no passes are saved, but all memory between them."""

    k_sums = 1

    def __init__(self, function: AngularFunction, k: Tensor | float | None, eps: float) -> None:
        self.function, self.k, self.eps = function, k, eps

    def value(self, c: Tensor, new: Workspace) -> Tensor:
        return self.function.value(c, self.k, self.eps)

    def through_slope(
        self, grad: Tensor, c: Tensor, value: Tensor | None, new: Workspace
    ) -> Tensor:
        return torch.mul(self.function.slope(c, self.k, self.eps), grad, out=new())

    def through_slope_and_k(
        self, grad: Tensor, c: Tensor, new: Workspace
    ) -> tuple[Tensor, tuple[Tensor, ...]]:
        _, slope, of_k = self.function.value_and_slopes(c, self.k, self.eps)
        if of_k is None:
            raise TypeError(f"{type(self.function).__name__} has no parameter k")
        return torch.mul(slope, grad, out=new()), (torch.mul(of_k, grad, out=new()),)

    def k_gradient(self, k: Tensor, sums: list[Tensor]) -> Tensor:
        return sums[0]


class TiledCosine(TiledActivation):
    """g = c."""

    def value(self, c: Tensor, new: Workspace) -> Tensor:
        return c

    def through_slope(
        self, grad: Tensor, c: Tensor, value: Tensor | None, new: Workspace
    ) -> Tensor:
        return grad


class TiledSquareCosine(TiledActivation):
    """g = c |c|, g' = 2 |c|."""

    factors = (1.0, 2.0)

    def value(self, c: Tensor, new: Workspace) -> Tensor:
        return torch.abs(c, out=new()).mul_(c)

    def through_slope(
        self, grad: Tensor, c: Tensor, value: Tensor | None, new: Workspace
    ) -> Tensor:
        return torch.abs(c, out=new()).mul_(grad)


class TiledArcsin(TiledActivation):
    """g = (2 / pi) arcsin(c), g' = (2 / pi) / sin(theta)."""

    factors = (2 / math.pi, 2 / math.pi)

    def __init__(self, like: Tensor, eps: float) -> None:
        self.device, self.dtype, self.eps = like.device, like.dtype, eps

    def value(self, c: Tensor, new: Workspace) -> Tensor:
        return torch.asin(c, out=new())

    def through_slope(
        self, grad: Tensor, c: Tensor, value: Tensor | None, new: Workspace
    ) -> Tensor:
        return self._inverse_sine(c, new).mul_(self._outer_slope(grad, value, c, new))

    def through_slope_and_value(
        self, grad: Tensor, c: Tensor, value: Tensor, new: Workspace
    ) -> tuple[Tensor, Tensor]:
        inverse, outer = self._inverse_sine(c, new), self._outer_slope(grad, value, c, new)
        slope, product = torch._foreach_mul([inverse, grad], [outer, value])  # in one launch
        return slope, product

    def _outer_slope(self, grad: Tensor, value: Tensor | None, c: Tensor, new: Workspace) -> Tensor:
        """grad times the derivative of g in the angle, over its factor."""
        return grad

    def _inverse_sine(self, c: Tensor, new: Workspace, times: int = 1) -> Tensor:
        """times / sin(theta), where `times` is a power of 2."""
        # sin^2 = 1 - c^2 is known up to the rounding of c; so much is added, and it cannot be 0.
        part = 1 / times**2
        above_one = shared_number((1 + self.eps) * part, self.device, self.dtype)
        return torch.addcmul(above_one, c, c, value=-part, out=new()).rsqrt_()


class TiledTanh(TiledArcsin):
    """g = tanh(arcsin(c) / 2k) / e with e = tanh(pi / 4k).

    g' = (1 - tanh^2) / sin(theta) / (2k e),
    dg/dk = 2 / (2k)^2 / e ((pi / 2) (1 - e^2) / e tanh - arcsin(c) (1 - tanh^2)).
    """

    k_sums = 2

    def __init__(self, k: Tensor | float, like: Tensor, eps: float) -> None:
        super().__init__(like, eps)
        self.half_over_k: Tensor | float
        if isinstance(k, Tensor):
            self.half_over_k = 0.5 / k
            end = torch.tanh(math.pi / 2 * self.half_over_k)
            self.factors = (1.0, 1.0)
            self.per_filter_factors = (1 / end, self.half_over_k / end)
        else:
            self.half_over_k, last = 0.5 / k, math.tanh(math.pi / 4 / k)
            self.factors = (1 / last, self.half_over_k / last)
        self.over_k = 2 * self.half_over_k

    def value(self, c: Tensor, new: Workspace) -> Tensor:
        angle = torch.asin(c, out=new())
        if new.fresh:
            # k = 1/2 needs no factor.
            one = isinstance(self.half_over_k, float) and self.half_over_k == 1
            return (angle if one else angle.mul_(self.half_over_k)).tanh_()
        return _tanh_of_sigmoid(self._sigmoid(angle, angle))

    def _sigmoid(self, angle: Tensor, out: Tensor) -> Tensor:
        # tanh(x) = 2 sigmoid(2x) - 1, which takes a quarter of the time: the sigmoid has vector
        # instructions everywhere, the tangent only in some libraries on some processors.
        return torch.mul(angle, self.over_k, out=out).sigmoid_()

    def through_slope(
        self, grad: Tensor, c: Tensor, value: Tensor | None, new: Workspace
    ) -> Tensor:
        if value is None and not new.fresh:
            # 1 - tanh^2 = 4 sigmoid (1 - sigmoid)
            angle = torch.asin(c, out=new())
            sigmoid = self._sigmoid(angle, angle)
            torch.ops.aten.sigmoid_backward.grad_input(grad, sigmoid, grad_input=sigmoid)
            return self._inverse_sine(c, new, times=4).mul_(sigmoid)
        return super().through_slope(grad, c, value, new)

    def _outer_slope(self, grad: Tensor, value: Tensor | None, c: Tensor, new: Workspace) -> Tensor:
        value = self.value(c, new) if value is None else value
        return _times_one_minus_square(grad, value, new)

    def through_slope_and_k(
        self, grad: Tensor, c: Tensor, new: Workspace
    ) -> tuple[Tensor, tuple[Tensor, ...]]:
        angle = torch.asin(c, out=new())
        if new.fresh:
            tanh = torch.mul(angle, self.half_over_k, out=new()).tanh_()
        else:
            tanh = _tanh_of_sigmoid(self._sigmoid(angle, new()))
        slope = _times_one_minus_square(grad, tanh, new)
        return self._inverse_sine(c, new).mul_(slope), (tanh.mul_(grad), angle.mul_(slope))

    def k_gradient(self, k: Tensor, sums: list[Tensor]) -> Tensor:
        # Constants of k multiply the two sums, not the terms: k here has the shape of the sums.
        half_over_k = 0.5 / k
        end = torch.tanh(math.pi / 2 * half_over_k)
        factor = 2 * half_over_k * half_over_k / end
        return factor * (math.pi / 2 * (1 - end * end) / end * sums[0] - sums[1])


def _tanh_of_sigmoid(sigmoid: Tensor) -> Tensor:
    """2 sigmoid - 1 in its place, to the rounding error of numbers around 1."""
    minus_one = shared_number(-1.0, sigmoid.device, sigmoid.dtype)
    return torch.add(minus_one, sigmoid, alpha=2, out=sigmoid)


def _times_one_minus_square(grad: Tensor, value: Tensor, new: Workspace) -> Tensor:
    """grad (1 - value^2) in one pass: the derivative of tanh in terms of its value."""
    product: Tensor = torch.ops.aten.tanh_backward.grad_input(grad, value, grad_input=new())
    return product
