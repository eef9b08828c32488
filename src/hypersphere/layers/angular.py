"""Angular activations as modules: what an operator keeps about its g(theta)."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any, Literal, TypeAlias

from torch import Tensor, nn

from ..functional.angular import Angular as AngularKind
from ..functional.angular import AngularFunction, angular_function
from ..functional.angular_functions import CallableAngular, SigmoidActivation
from ..registry import entry
from .own_formula import require_value
from .positive import PositiveParameter

__all__ = [
    "NAMED_ANGULARS",
    "Angular",
    "AngularLike",
    "CosineAngular",
    "CustomAngular",
    "LinearAngular",
    "ParametricAngular",
    "SigmoidAngular",
    "SquareCosineAngular",
    "make_angular",
]

Share: TypeAlias = Literal["filter", "layer", "network"]


class Angular(nn.Module):
    """g(theta) as a function of cos(theta): a module whose `formula` has value and slopes.

    To write an own one, subclass it and define ``value(self, cos)``, which maps cosines of any
    shape to g; if ``slope(self, cos)``, the derivative in cos, is defined too, backward passes that
    are written by hand use it. Parameters of the module are trained with the layer.

    Input: cosines whose second dimension is the filter's, as in the output of a layer; the result
    has the same shape.

    Args:
        kind: a registered name, whose formulas the module has. Default: the subclass's own.

    >>> import torch
    >>> class Cubic(Angular):
    ...     def value(self, cos):
    ...         return cos**3
    >>> Cubic()(torch.tensor([[0.5]]))
    tensor([[0.1250]])
    """

    _name: str | None = None
    _formula: AngularFunction | None = None

    def __init__(self, kind: str | None = None) -> None:
        super().__init__()
        if kind is not None:
            self._name = kind
        if self._name is None:
            require_value(self, Angular, "cos", "its g as a function of cos(theta)")
        # Named formulas are looked up once; they have no state to share.
        self._formula = None if self._name is None else angular_function(self._name)

    @property
    def kind(self) -> AngularKind:
        """The registered name of g, or g itself where it has none."""
        if self._name is not None:
            return self._name
        if type(self).forward is not Angular.forward:
            return self
        return _OwnAngular(self)

    @property
    def formula(self) -> AngularFunction:
        """The one object that has value and slopes of g."""
        return angular_function(self.kind) if self._formula is None else self._formula

    def k(self) -> Tensor | float | None:
        """The parameter of g: a number, or one per filter (C,); None if it has none.

        Returns:
            The value that `formula` takes for k.
        """
        return None

    def value(self, cos: Tensor) -> Tensor:
        """g of cosines; what a subclass defines.

        Args:
            cos: cosines, any shape.

        Returns:
            g, shaped like cos.
        """
        raise NotImplementedError

    def bind(self, filters: int) -> Angular:
        """The activation as a layer holds it: its own copy.

        Args:
            filters: number of filters of the layer.

        Returns:
            The copy.
        """
        return copy.deepcopy(self)

    def forward(self, cos: Tensor) -> Tensor:
        k = self.k()
        if isinstance(k, Tensor) and k.numel() > 1:
            k = k.reshape(-1, *[1] * (cos.ndim - 2))
        return self.formula.value(cos, k)

    def extra_repr(self) -> str:
        return repr(self._name) if type(self) is Angular else ""


class _OwnAngular(CallableAngular):
    """The g that a subclass of Angular defines by `value`."""

    def __init__(self, module: Angular) -> None:
        super().__init__(module.value)
        self.own_slope = getattr(module, "slope", None)
        self.__name__ = type(module).__name__


class LinearAngular(Angular):
    """g = 1 - 2 theta / pi, Eq. 4.11."""

    _name = "linear"

    def __init__(self) -> None:
        super().__init__()


class CosineAngular(Angular):
    """g = cos(theta), Eq. 4.12."""

    _name = "cosine"

    def __init__(self) -> None:
        super().__init__()


class SquareCosineAngular(Angular):
    """g = sign(cos(theta)) cos^2(theta), Eq. 4.14."""

    _name = "square_cosine"

    def __init__(self) -> None:
        super().__init__()


class CustomAngular(Angular):
    """Any g, as a function of cos(theta): a plain callable or a module.

    A module's parameters are trained with the layer.

    Args:
        function: maps cosines to values of the same shape.

    >>> import torch
    >>> CustomAngular(torch.relu)(torch.tensor([[0.5, -0.5]]))
    tensor([[0.5000, 0.0000]])
    """

    def __init__(self, function: Callable[[Tensor], Tensor]) -> None:
        super().__init__()
        if not callable(function):
            raise TypeError(f"CustomAngular expects a callable of cos(theta), got {function!r}")
        self.function = function

    @property
    def kind(self) -> AngularKind:
        return self.function

    def extra_repr(self) -> str:
        return "" if isinstance(self.function, nn.Module) else repr(self.function)


class ParametricAngular(Angular):
    """A registered g with a parameter k, fixed or learned (3.2.5, 3.4.3).

    A learned k stays positive by construction.

    Args:
        kind: a registered name, whose formulas have a parameter.
        k: its value, or where learning starts, > 0. Default: that of the formulas.
        learnable: whether k is a parameter.
        share: with learnable=True, a k per "filter", per "layer", or one for the whole "network".
            For the last, hand the same object to every layer (as `convert` does).
    """

    def __init__(
        self,
        kind: str,
        k: float | None = None,
        learnable: bool = False,
        share: Share = "filter",
    ) -> None:
        super().__init__(kind)
        if share not in ("filter", "layer", "network"):
            raise ValueError(f"share must be 'filter', 'layer' or 'network', got {share!r}")
        start = self.formula.default_k if k is None else k
        if start is None:
            raise ValueError(f"the angular activation {kind!r} has no parameter k")
        if not start > 0:
            raise ValueError(f"{type(self).__name__} expects k > 0 (Eq. 4.13), got k={k}")
        self.start, self.learnable, self.share = float(start), learnable, share
        self.curvature = PositiveParameter(self.start) if learnable else None

    def k(self) -> Tensor | float:
        return self.start if self.curvature is None else self.curvature()

    def bind(self, filters: int) -> Angular:
        if self.learnable and self.share == "network":
            return self
        bound = copy.deepcopy(self)
        if bound.curvature is not None and self.share == "filter":
            bound.curvature = bound.curvature.expand(filters)
        return bound

    def extra_repr(self) -> str:
        return f"k={self.start}, learnable={self.learnable}, share={self.share!r}"


class SigmoidAngular(ParametricAngular):
    """g of Eq. 4.13, with curvature k fixed or learned (3.2.5, 3.4.3).

    A learned k stays positive by construction. The released code starts at 0.7 and takes
    |k| + 0.05; here it starts at k.

    Args:
        k: the curvature, or where learning starts, > 0. Default: 0.5.
        learnable: whether k is a parameter.
        share: with learnable=True, a k per "filter", per "layer", or one for the whole "network".
            For the last, hand the same object to every layer (as `convert` does).

    >>> SigmoidAngular(learnable=True).bind(3).k()
    tensor([0.5000, 0.5000, 0.5000], grad_fn=<AddBackward0>)
    """

    _name = "sigmoid"

    def __init__(
        self,
        k: float = SigmoidActivation.default_k,
        learnable: bool = False,
        share: Share = "filter",
    ) -> None:
        super().__init__("sigmoid", k, learnable, share)


AngularLike: TypeAlias = str | Angular | Callable[[Tensor], Tensor]

# The modules of the named activations that have a class of their own.
NAMED_ANGULARS: dict[str, type[Angular]] = {
    "linear": LinearAngular,
    "cosine": CosineAngular,
    "sigmoid": SigmoidAngular,
    "square_cosine": SquareCosineAngular,
}


def make_angular(angular: AngularLike, **settings: Any) -> Angular:
    """An activation from its registered name, from any callable of cos(theta), or as it is.

    Args:
        angular: a name, an Angular or a callable.
        settings: arguments of the named activation, such as k of the sigmoid.

    Returns:
        The module.

    Raises:
        ValueError: if the name is unknown, with the nearest one.
        TypeError: if it is neither a name nor callable.

    >>> make_angular("sigmoid", k=0.3)
    SigmoidAngular(k=0.3, learnable=False, share='filter')
    """
    if isinstance(angular, str):
        return _by_name(angular, settings)
    if settings:
        raise TypeError(f"settings belong to a name, got {settings} and {angular!r}")
    if isinstance(angular, Angular):
        return angular
    if callable(angular):
        return CustomAngular(angular)
    raise TypeError(f"angular must be a name, an Angular or a callable, got {angular!r}")


def _by_name(name: str, settings: dict[str, Any]) -> Angular:
    try:
        target = entry("angular", name).target
    except ValueError as error:
        raise ValueError(
            f"{error}, an instance such as SigmoidAngular(k=0.3), or a callable of cos(theta)"
        ) from None
    if name in NAMED_ANGULARS:
        return NAMED_ANGULARS[name](**settings)
    if isinstance(target, type) and issubclass(target, Angular):
        return target(**settings)
    if isinstance(target, type) and not issubclass(target, AngularFunction):
        made: Any = target(**settings)
        return CustomAngular(made)
    if angular_function(name).default_k is not None:
        return ParametricAngular(name, **settings)
    return Angular(name, **settings)
