"""Magnitudes by name: h(|x|), its ratio and slope, and the register they are found in.

The formulas are in magnitude_functions.py; see the table there.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeAlias

from torch import Tensor, nn

from ..registry import entries, entry
from . import magnitude_functions as _registered  # noqa: F401 - they enter the register
from .elementwise import apply_elementwise
from .magnitude_base import MagnitudeFunction, Radius

__all__ = [
    "CallableMagnitude",
    "Magnitude",
    "MagnitudeFunction",
    "check_magnitude",
    "magnitude",
    "magnitude_function",
    "magnitude_ratio",
    "magnitude_slope",
    "names_with_radius",
]


class CallableMagnitude(MagnitudeFunction):
    """Any callable of |x| as a magnitude; it may hold parameters.

    If it has a method ``slope(norm)``, that is its derivative.

    Args:
        function: the callable; maps norms to values of the same shape, which alpha multiplies.
    """

    is_fused = False  # autograd has to see the parameters that it may hold

    def __init__(self, function: Callable[[Tensor], Tensor]) -> None:
        self.function = function
        self.own_slope: Callable[[Tensor], Tensor] | None = getattr(function, "slope", None)

    def value(self, norm: Tensor, alpha: float = 1, beta: float = 0, radius: Radius = 1) -> Tensor:
        return alpha * apply_elementwise(self.function, norm)

    def slope(self, norm: Tensor, alpha: float = 1, beta: float = 0, radius: Radius = 1) -> Tensor:
        if self.own_slope is None:
            return super().slope(norm, alpha, beta, radius)
        return alpha * self.own_slope(norm)


Magnitude: TypeAlias = str | MagnitudeFunction | Callable[[Tensor], Tensor]


def magnitude(
    norm: Tensor,
    kind: Magnitude = "sphere",
    alpha: float = 1.0,
    beta: float | None = None,
    radius: float | Tensor = 1.0,
) -> Tensor:
    """h(|x|), Eq. 4.4-4.10; differentiable in norm and radius.

    A zero input has no direction, so the sphere's h is 0 there, not alpha.

    Args:
        norm: |x| >= 0, any shape.
        kind: "sphere", "ball", "tanh", "linear", "segmented", "log", "mixed", another registered
            name, a `MagnitudeFunction`, or any callable of |x|.
        alpha: scales h, or is its slope; > 0.
        beta: second slope of "segmented" (default: 0.5) or weight of the logarithm in "mixed"
            (default: 1).
        radius: rho > 0 of "ball", "tanh" and "segmented", a number or a tensor that broadcasts
            against norm.

    Returns:
        h, of the shape to which norm and radius broadcast.

    Raises:
        ValueError: if the name is unknown, with the nearest one, or a constant out of range.

    >>> import torch
    >>> n = torch.tensor([0.0, 0.5, 1.0, 3.0])
    >>> magnitude(n, "ball")
    tensor([0.0000, 0.5000, 1.0000, 1.0000])
    >>> magnitude(n, "segmented", beta=0.5)
    tensor([0.0000, 0.5000, 1.0000, 2.0000])
    """
    h, beta = check_magnitude(kind, alpha, beta, radius)
    return h.value(norm, alpha, beta, radius)


def magnitude_slope(
    norm: Tensor,
    kind: Magnitude = "sphere",
    alpha: float = 1.0,
    beta: float | None = None,
    radius: float | Tensor = 1.0,
) -> Tensor:
    """dh / d|x|, for backward passes written by hand.

    Args:
        norm: as in :func:`magnitude`.
        kind: as in :func:`magnitude`.
        alpha: as in :func:`magnitude`.
        beta: as in :func:`magnitude`.
        radius: as in :func:`magnitude`.

    Returns:
        The derivative, shaped like h.

    >>> import torch
    >>> magnitude_slope(torch.tensor([0.5, 3.0]), "segmented", radius=2.0)
    tensor([1.0000, 0.5000])
    """
    h, beta = check_magnitude(kind, alpha, beta, radius)
    return h.slope(norm, alpha, beta, radius)


def magnitude_ratio(
    norm: Tensor,
    kind: Magnitude = "sphere",
    alpha: float = 1.0,
    beta: float | None = None,
    radius: float | Tensor = 1.0,
) -> Tensor:
    """h(|x|) / |x|: with the cosine activation f(w, x) = h(|x|) / |x| (w / |w|)^T x.

    At |x| = 0 it is the limit, the slope of h, so that no small number is divided by another; for
    the sphere, whose limit is infinite, it is 0.

    Args:
        norm: as in :func:`magnitude`.
        kind: as in :func:`magnitude`.
        alpha: as in :func:`magnitude`.
        beta: as in :func:`magnitude`.
        radius: as in :func:`magnitude`.

    Returns:
        The ratio, shaped like h.

    >>> import torch
    >>> magnitude_ratio(torch.tensor([0.0, 0.5, 3.0]), "ball", radius=2.0)
    tensor([0.5000, 0.5000, 0.3333])
    """
    h, beta = check_magnitude(kind, alpha, beta, radius)
    return h.ratio(norm, alpha, beta, radius)


def magnitude_function(kind: Magnitude) -> MagnitudeFunction:
    """The formulas of a magnitude, from its name or from a callable.

    Args:
        kind: as in :func:`magnitude`.

    Returns:
        The one object that has its value, ratio and slopes.

    Raises:
        ValueError: if the name is unknown, with the nearest one.
        TypeError: if it is neither a name nor callable, or if a name stands for a class with
            parameters of its own, which somebody has to hold.

    >>> magnitude_function("ball").has_radius
    True
    """
    if isinstance(kind, MagnitudeFunction):
        return kind
    if isinstance(kind, str):
        return _named(kind)
    if callable(kind):
        return CallableMagnitude(kind)
    raise TypeError(
        f"a magnitude is a name, a MagnitudeFunction or a callable of |x|; got {kind!r}"
    )


def check_magnitude(
    kind: Magnitude,
    alpha: float = 1.0,
    beta: float | None = None,
    radius: float | Tensor = 1.0,
) -> tuple[MagnitudeFunction, float]:
    """As :func:`magnitude_function`, with a refusal of constants outside their range.

    Args:
        kind: as in :func:`magnitude`.
        alpha: as in :func:`magnitude`.
        beta: as in :func:`magnitude`.
        radius: as in :func:`magnitude`.

    Returns:
        The one object that has the formulas, and beta or its default (0 where h has none).
    """
    h = magnitude_function(kind)
    return h, h.check(alpha, beta, radius)


def names_with_radius() -> list[str]:
    """The names of the registered magnitudes that have a radius."""
    return [e.name for e in entries("magnitude") if getattr(e.target, "has_radius", False)]


# What was made of each name, and from which registered target.
_FUNCTIONS: dict[str, tuple[object, MagnitudeFunction]] = {}


def _named(name: str) -> MagnitudeFunction:
    target = entry("magnitude", name).target
    known = _FUNCTIONS.get(name)
    if known is None or known[0] is not target:
        known = _FUNCTIONS[name] = (target, _function_of(name, target))
        known[1].name = name
    return known[1]


def _function_of(name: str, target: object) -> MagnitudeFunction:
    made = target() if isinstance(target, type) else target
    if isinstance(made, nn.Module) and any(True for _ in made.parameters()):
        raise TypeError(
            f"the magnitude {name!r} has parameters of its own: make one, "
            f"{getattr(target, '__name__', name)}(), and hand that object over"
        )
    if isinstance(made, MagnitudeFunction):
        return made
    if callable(made):
        return CallableMagnitude(made)
    raise TypeError(f"the magnitude {name!r} is registered as {target!r}, which is not callable")
