"""Angular activations g(theta), Eq. 4.11-4.14, as functions of cos(theta).

A neuron answers with g of the angle between its direction and the input's. All four fall from
g(0) = 1 through g(pi / 2) = 0 to g(pi) = -1. With c = cos(theta), arcsin(c) = pi / 2 - theta:

==============  =====  ==============================================
kind            Eq.    g
==============  =====  ==============================================
linear          4.11   (2 / pi) arcsin(c)
cosine          4.12   c
sigmoid         4.13   tanh(arcsin(c) / 2k) / tanh(pi / 4k)
square_cosine   4.14   c |c|
==============  =====  ==============================================

The quotient of exponentials in Eq. 3.4 and 4.13 is that quotient of hyperbolic tangents, which
neither overflows for small k nor cancels for large k.

Each is one class below: layers, heads, margins and all kernels take value and slope from there.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any, TypeAlias

import torch
from torch import Tensor

from ..registry import register
from ._kernels.decoupled.activation import (
    TiledActivation,
    TiledArcsin,
    TiledCosine,
    TiledFunction,
    TiledSquareCosine,
    TiledTanh,
)
from .arcsin import arcsin, inverse_sine, one_minus_square
from .elementwise import apply_elementwise

__all__ = [
    "Angular",
    "AngularFunction",
    "CallableAngular",
    "CosineActivation",
    "LinearActivation",
    "SigmoidActivation",
    "SquareCosineActivation",
]

Parameter: TypeAlias = float | Tensor | None


class AngularFunction:
    """An angular activation g without state: everything that any path asks of it.

    Only `value` has to be written; the other methods follow from it. To be used by name, a
    subclass is registered with ``@register("angular", name)``. Attributes of the class:

    - ``default_k``: value of the parameter k if none is given; None if g has no parameter.
    - ``zero_at_right_angle``: whether g(pi / 2) = 0. With this and a `slope` of its own, g is
      computed by the fused kernels, which keep one tensor for the backward; otherwise by autograd.
    - ``is_cosine``: whether g(theta) = cos(theta), for which kernels have shortcuts.

    >>> class Cubic(AngularFunction):
    ...     def value(self, cos, k=None, eps=None):
    ...         return cos**3
    >>> Cubic().slope(torch.tensor([0.5]))
    tensor([0.7500])
    """

    name: str = ""  # the registered name, once it was looked up
    default_k: float | None = None
    zero_at_right_angle: bool = False
    is_cosine: bool = False
    is_fused: bool = False

    def __init_subclass__(cls, **options: Any) -> None:
        super().__init_subclass__(**options)
        if "is_fused" not in cls.__dict__:
            cls.is_fused = cls.zero_at_right_angle and cls.slope is not AngularFunction.slope

    def value(self, cos: Tensor, k: Parameter = None, eps: float | None = None) -> Tensor:
        """g as a differentiable function of cos(theta).

        Args:
            cos: cosines in float32 or float64, any shape, values in [-1, 1].
            k: the parameter of g, a number or a tensor that broadcasts against cos. Default:
                `default_k`.
            eps: rounding error of cos, if it was computed in a narrower type than it has; matters
                only where the slope is infinite. Default: the rounding error of its type.

        Returns:
            g, shaped like cos.
        """
        raise NotImplementedError(f"{type(self).__name__} has to define value(cos, k, eps)")

    def __call__(self, cos: Tensor, k: Parameter = None) -> Tensor:
        return self.value(cos, k)

    def slope(self, cos: Tensor, k: Parameter = None, eps: float | None = None) -> Tensor:
        """dg / dcos(theta), finite everywhere.

        Args:
            cos: as in `value`.
            k: as in `value`.
            eps: as in `value`.

        Returns:
            The derivative, shaped like cos.
        """
        return _derivative(lambda c: self.value(c, k, eps), cos)

    def parameter_slope(self, cos: Tensor, k: Parameter = None, eps: float | None = None) -> Tensor:
        """dg / dk.

        Args:
            cos: as in `value`.
            k: as in `value`.
            eps: as in `value`.

        Returns:
            The derivative, shaped like cos.
        """
        if self.default_k is None:
            raise TypeError(f"{type(self).__name__} has no parameter k")
        own = torch.as_tensor(self.default_k if k is None else k).to(cos).expand_as(cos)
        return _derivative(lambda k: self.value(cos, k, eps), own)

    def value_and_slopes(
        self, cos: Tensor, k: Parameter = None, eps: float | None = None
    ) -> tuple[Tensor, Tensor, Tensor | None]:
        """g, dg / dcos and dg / dk at once, for activations where they share work.

        Args:
            cos: as in `value`.
            k: as in `value`.
            eps: as in `value`.

        Returns:
            Three tensors shaped like cos; the last is None if g has no parameter.
        """
        of_k = None if self.default_k is None else self.parameter_slope(cos, k, eps)
        return self.value(cos, k, eps), self.slope(cos, k, eps), of_k

    def of_angle(self, theta: Tensor, k: Parameter = None) -> Tensor:
        """g as a differentiable function of the angle itself.

        Through the cosine, activations that need arccos lose half their digits at 0 and pi.

        Args:
            theta: angles in radians, any shape, values in [0, pi].
            k: as in `value`.

        Returns:
            g, shaped like theta.
        """
        return self.value(theta.cos(), k)

    def slope_of_angle(self, theta: Tensor, k: Parameter = None) -> Tensor:
        """dg / dtheta.

        Args:
            theta: as in `of_angle`.
            k: as in `value`.

        Returns:
            The derivative, shaped like theta.
        """
        return -theta.sin() * self.slope(theta.cos(), k)

    def tiled(self, k: Parameter, like: Tensor, eps: float) -> TiledActivation:
        """The form that works on tiles of clamped cosines in place, without a graph.

        Args:
            k: the parameter, a number or a tensor that broadcasts over the outputs.
            like: a tensor of the type and device of the tiles.
            eps: rounding error of the cosines.

        Returns:
            The tiled form; by default one that calls `value` and `slope`.
        """
        return TiledFunction(self, k, eps)

    def check(self, k: Parameter) -> None:
        """Refuse a parameter that is not positive.

        Args:
            k: as in `value`.

        Raises:
            ValueError: if k is a number and not positive.
        """
        if isinstance(k, (int, float)) and not k > 0:
            name = self.name or type(self).__name__
            raise ValueError(f"the {name} activation expects k > 0 (Eq. 4.13), got k={k}")

    def __repr__(self) -> str:
        return f"{type(self).__name__}()"


@register("angular", "linear", source="Eq. 4.11")
class LinearActivation(AngularFunction):
    """g = 1 - 2 theta / pi, Eq. 4.11."""

    zero_at_right_angle = True

    def value(self, cos: Tensor, k: Parameter = None, eps: float | None = None) -> Tensor:
        return 2 / math.pi * arcsin(cos, eps)

    def slope(self, cos: Tensor, k: Parameter = None, eps: float | None = None) -> Tensor:
        return 2 / math.pi * inverse_sine(cos, _rounding(cos, eps))

    def of_angle(self, theta: Tensor, k: Parameter = None) -> Tensor:
        return 1 - 2 / math.pi * theta

    def slope_of_angle(self, theta: Tensor, k: Parameter = None) -> Tensor:
        return torch.full_like(theta, -2 / math.pi)

    def tiled(self, k: Parameter, like: Tensor, eps: float) -> TiledActivation:
        return TiledArcsin(like, eps)


@register("angular", "cosine", source="Eq. 4.12")
class CosineActivation(AngularFunction):
    """g = cos(theta), Eq. 4.12."""

    zero_at_right_angle = True
    is_cosine = True

    def value(self, cos: Tensor, k: Parameter = None, eps: float | None = None) -> Tensor:
        return cos

    def slope(self, cos: Tensor, k: Parameter = None, eps: float | None = None) -> Tensor:
        return torch.ones_like(cos)

    def tiled(self, k: Parameter, like: Tensor, eps: float) -> TiledActivation:
        return TiledCosine()


@register("angular", "sigmoid", source="Eq. 4.13")
class SigmoidActivation(AngularFunction):
    """g = tanh((pi / 2 - theta) / 2k) / tanh(pi / 4k), Eq. 3.4 and 4.13; k bends it."""

    default_k: float = 0.5  # where the learnable k starts (3.4.3)
    zero_at_right_angle = True

    def value(self, cos: Tensor, k: Parameter = None, eps: float | None = None) -> Tensor:
        half_over_k, end = self._constants(k, cos)
        return torch.tanh(arcsin(cos, eps) * half_over_k) / end

    def slope(self, cos: Tensor, k: Parameter = None, eps: float | None = None) -> Tensor:
        half_over_k, end = self._constants(k, cos)
        tanh = torch.tanh(arcsin(cos) * half_over_k)
        sine = inverse_sine(cos, _rounding(cos, eps))
        return one_minus_square(tanh) * sine * (half_over_k / end)

    def parameter_slope(self, cos: Tensor, k: Parameter = None, eps: float | None = None) -> Tensor:
        half_over_k, end = self._constants(k, cos)
        angle = arcsin(cos)
        tanh = torch.tanh(angle * half_over_k)
        return self._of_k(tanh, angle * one_minus_square(tanh), half_over_k, end)

    def value_and_slopes(
        self, cos: Tensor, k: Parameter = None, eps: float | None = None
    ) -> tuple[Tensor, Tensor, Tensor | None]:
        half_over_k, end = self._constants(k, cos)
        angle = arcsin(cos)
        tanh = torch.tanh(angle * half_over_k)
        bend = one_minus_square(tanh)
        slope = bend * inverse_sine(cos, _rounding(cos, eps)) * (half_over_k / end)
        return tanh / end, slope, self._of_k(tanh, angle * bend, half_over_k, end)

    def of_angle(self, theta: Tensor, k: Parameter = None) -> Tensor:
        half_over_k, end = self._constants(k, theta)
        return torch.tanh((math.pi / 2 - theta) * half_over_k) / end

    def slope_of_angle(self, theta: Tensor, k: Parameter = None) -> Tensor:
        half_over_k, end = self._constants(k, theta)
        tanh = torch.tanh((math.pi / 2 - theta) * half_over_k)
        return (tanh * tanh - 1) * (half_over_k / end)

    def tiled(self, k: Parameter, like: Tensor, eps: float) -> TiledActivation:
        return TiledTanh(self.default_k if k is None else k, like, eps)

    @staticmethod
    def _of_k(tanh: Tensor, angle: Tensor, half_over_k: Tensor, end: Tensor) -> Tensor:
        # d(1/2k)/dk = -2 (1/2k)^2, and the argument of `end` is (pi/2) (1/2k).
        factor = 2 * half_over_k * half_over_k / end
        return tanh * (factor * math.pi / 2 * (1 - end * end) / end) - angle * factor

    def _constants(self, k: Parameter, like: Tensor) -> tuple[Tensor, Tensor]:
        """1 / 2k and tanh(pi / 4k), in the type of `like`."""
        value = self.default_k if k is None else k
        if isinstance(value, (int, float)):
            k = like.new_full((), value)  # not by way of float32
        else:
            k = value.to(dtype=like.dtype, device=like.device)
        half_over_k = 0.5 / k
        return half_over_k, torch.tanh(math.pi / 2 * half_over_k)


@register("angular", "square_cosine", source="Eq. 4.14")
class SquareCosineActivation(AngularFunction):
    """g = sign(cos(theta)) cos^2(theta), Eq. 4.14."""

    zero_at_right_angle = True

    def value(self, cos: Tensor, k: Parameter = None, eps: float | None = None) -> Tensor:
        return cos * cos.abs()

    def slope(self, cos: Tensor, k: Parameter = None, eps: float | None = None) -> Tensor:
        return 2 * cos.abs()

    def tiled(self, k: Parameter, like: Tensor, eps: float) -> TiledActivation:
        return TiledSquareCosine()


class CallableAngular(AngularFunction):
    """Any callable of cos(theta) as an activation; it may hold parameters.

    If it has a method ``slope(cos)``, that is its derivative.

    Args:
        function: the callable; maps cosines to values of the same shape.
    """

    is_fused = False  # autograd has to see the parameters that it may hold

    def __init__(self, function: Callable[[Tensor], Tensor]) -> None:
        self.function = function
        self.own_slope: Callable[[Tensor], Tensor] | None = getattr(function, "slope", None)

    def value(self, cos: Tensor, k: Parameter = None, eps: float | None = None) -> Tensor:
        return apply_elementwise(self.function, cos)

    def slope(self, cos: Tensor, k: Parameter = None, eps: float | None = None) -> Tensor:
        return _derivative(self.function, cos) if self.own_slope is None else self.own_slope(cos)


Angular: TypeAlias = str | AngularFunction | Callable[[Tensor], Tensor]


def _derivative(function: Callable[[Tensor], Tensor], at: Tensor) -> Tensor:
    """The derivative of an elementwise function; torch.func, because torch.compile follows it."""
    derivative: Tensor = torch.func.vjp(function, at)[1](torch.ones_like(at))[0]
    return derivative


def _rounding(cos: Tensor, eps: float | None) -> float:
    return torch.finfo(cos.dtype).eps if eps is None else eps
