"""Angular activations by name: g(theta), its slopes, and the register they are found in.

The formulas are in angular_functions.py; see the table there.
"""

from __future__ import annotations

from typing import Any, cast

import torch
from torch import Tensor, nn

from ..registry import entry
from .angular_functions import Angular, AngularFunction, CallableAngular, SigmoidActivation
from .arcsin import arcsin

__all__ = [
    "Angular",
    "AngularFunction",
    "angular",
    "angular_derivative",
    "angular_derivative_k",
    "angular_function",
    "arcsin",
    "check_angular",
    "held_angular",
    "is_cosine",
]


def angular(cos: Tensor, kind: Angular = "cosine", k: float | Tensor | None = None) -> Tensor:
    """g(theta) from cos(theta), Eq. 4.11-4.14; differentiable in cos and in k.

    float16 and bfloat16 are computed in float32 and returned in their own type.

    Args:
        cos: any shape, values in [-1, 1]; values beyond by rounding count as +-1.
        kind: "linear", "cosine", "sigmoid", "square_cosine", another registered name, an
            `AngularFunction`, or any callable of cos.
        k: curvature of the sigmoid, > 0, a number or a tensor that broadcasts against cos. Small k
            approaches the step function, large k the linear activation. Default: 0.5.

    Returns:
        g, shaped like cos.

    Raises:
        ValueError: if the name is unknown, with the nearest one, or if k is not positive.

    >>> angular(torch.tensor([1.0, 0.5, 0.0, -1.0]), "linear")
    tensor([ 1.0000,  0.3333,  0.0000, -1.0000])
    >>> angular(torch.tensor([1.0, 0.5, -1.0]), "sigmoid", k=0.3)
    tensor([ 1.0000,  0.7102, -1.0000])
    >>> angular(torch.tensor([0.5, -0.5]), torch.relu)
    tensor([0.5000, 0.0000])
    """
    g = check_angular(kind, k)
    if isinstance(g, CallableAngular) and not isinstance(kind, str):
        return g.value(cos)
    return g.value(_widen(cos), k, _rounding(cos)).to(cos.dtype)


def angular_derivative(
    cos: Tensor, kind: Angular = "cosine", k: float | Tensor | None = None
) -> Tensor:
    """dg / dcos(theta), finite everywhere, for backward passes written by hand.

    The activations that go through the angle (linear, sigmoid) have an infinite slope in cos at
    theta = 0 and pi; there sin^2(theta) is floored at the rounding error of cos.

    Args:
        cos: as in :func:`angular`.
        kind: as in :func:`angular`.
        k: as in :func:`angular`.

    Returns:
        The derivative, shaped like cos.

    >>> angular_derivative(torch.tensor([0.0, 0.6, 1.0]), "square_cosine")
    tensor([0.0000, 1.2000, 2.0000])
    """
    return check_angular(kind, k).slope(_widen(cos), k, _rounding(cos)).to(cos.dtype)


def angular_derivative_k(
    cos: Tensor, k: float | Tensor | None = None, kind: Angular = "sigmoid"
) -> Tensor:
    """dg / dk, for backward passes written by hand.

    For the sigmoid, Eq. 4.13, it vanishes at theta = 0, pi / 2 and pi, where g does not depend
    on k.

    Args:
        cos: as in :func:`angular`.
        k: as in :func:`angular`.
        kind: an activation that has a parameter k.

    Returns:
        The derivative, shaped like cos.

    >>> angular_derivative_k(torch.tensor([0.0, 0.5, 1.0]), k=0.3).round(decimals=4)
    tensor([ 0.0000, -1.3562,  0.0000])
    """
    return check_angular(kind, k).parameter_slope(_widen(cos), k, _rounding(cos)).to(cos.dtype)


def angular_function(kind: Angular) -> AngularFunction:
    """The formulas of an activation, from its name or from a callable.

    Args:
        kind: as in :func:`angular`.

    Returns:
        The one object that has its value and slopes.

    Raises:
        ValueError: if the name is unknown, with the nearest one.
        TypeError: if it is neither a name nor callable, or if a name stands for a class with
            parameters of its own, which somebody has to hold.

    >>> angular_function("sigmoid").default_k
    0.5
    """
    if isinstance(kind, AngularFunction):
        return kind
    if isinstance(kind, str):
        return _named(kind)
    if callable(kind):
        return CallableAngular(kind)
    raise TypeError(
        f"an angular activation is a name, an AngularFunction or a callable of cos(theta); "
        f"got {kind!r}"
    )


def check_angular(kind: Angular, k: float | Tensor | None = None) -> AngularFunction:
    """As :func:`angular_function`, with a refusal of a k that is not positive.

    Args:
        kind: as in :func:`angular`.
        k: as in :func:`angular`.

    Returns:
        The one object that has value and slopes of the activation.
    """
    g = angular_function(kind)
    g.check(k)
    return g


def held_angular(kind: Angular) -> Angular:
    """What a module should keep of its argument `angular`.

    Args:
        kind: as in :func:`angular`.

    Returns:
        A new object, if kind names a registered class of modules, so that its parameters are
        trained with those of the module that keeps it; otherwise kind itself.
    """
    if not isinstance(kind, str):
        return kind
    target: Any = entry("angular", kind).target
    if isinstance(target, type) and not issubclass(target, AngularFunction):
        made: Any = target()
        return cast(Angular, made)
    return kind


def is_cosine(kind: Angular) -> bool:
    """Whether g(theta) = cos(theta), for which scores are plain inner products.

    Args:
        kind: as in :func:`angular`.
    """
    return isinstance(kind, (str, AngularFunction)) and angular_function(kind).is_cosine


# What was made of each name, and from which registered target.
_FUNCTIONS: dict[str, tuple[object, AngularFunction]] = {}


def _named(name: str) -> AngularFunction:
    target = entry("angular", name).target
    known = _FUNCTIONS.get(name)
    if known is None or known[0] is not target:
        known = _FUNCTIONS[name] = (target, _function_of(name, target))
        known[1].name = name
    return known[1]


def _function_of(name: str, target: object) -> AngularFunction:
    made = target() if isinstance(target, type) else target
    if isinstance(made, nn.Module) and any(True for _ in made.parameters()):
        raise TypeError(
            f"the angular activation {name!r} has parameters of its own: make one, "
            f"{getattr(target, '__name__', name)}(), and hand that object over"
        )
    if isinstance(made, AngularFunction):
        return made
    if callable(made):
        return CallableAngular(made)
    raise TypeError(
        f"the angular activation {name!r} is registered as {target!r}, which is not callable"
    )


def _rounding(cos: Tensor) -> float:
    return torch.finfo(cos.dtype).eps


def _widen(x: Tensor) -> Tensor:
    if not x.is_floating_point():
        raise TypeError(f"cos(theta) must be floating-point, got {x.dtype}; convert with .float()")
    return x.float() if x.dtype in (torch.float16, torch.bfloat16) else x


DEFAULT_K: float = SigmoidActivation.default_k
