"""Angular activations as modules: what an operator keeps about its g(theta)."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Literal, TypeAlias

from torch import Tensor, nn

from ..functional.angular import ANGULAR_KINDS, DEFAULT_K
from ..functional.angular import Angular as AngularFunction
from ..functional.angular import angular as angular_function
from .positive import PositiveParameter

__all__ = [
    "Angular",
    "CosineAngular",
    "CustomAngular",
    "LinearAngular",
    "SigmoidAngular",
    "SquareCosineAngular",
    "make_angular",
]

Share: TypeAlias = Literal["filter", "layer", "network"]


class Angular(nn.Module):
    """g(theta) as a function of cos(theta); `kind` is its name or function, `k()` its curvature."""

    kind: AngularFunction = "cosine"

    def k(self) -> Tensor | float | None:
        """Curvature of the sigmoid: one number, or one a filter (C,); None for the others."""
        return None

    def bind(self, filters: int) -> Angular:
        """The activation as a layer of so many filters holds it: its own copy."""
        return copy.deepcopy(self)

    def forward(self, cos: Tensor) -> Tensor:
        """g of cosines whose second dimension is the filter's, as in a layer's output."""
        k = self.k()
        if isinstance(k, Tensor) and k.numel() > 1:
            k = k.reshape(-1, *[1] * (cos.ndim - 2))
        return angular_function(cos, self.kind, k)

    def extra_repr(self) -> str:
        return ""


class LinearAngular(Angular):
    """g = 1 - 2 theta / pi, Eq. 4.11."""

    kind = "linear"


class CosineAngular(Angular):
    """g = cos(theta), Eq. 4.12."""

    kind = "cosine"


class SquareCosineAngular(Angular):
    """g = sign(cos(theta)) cos^2(theta), Eq. 4.14."""

    kind = "square_cosine"


class CustomAngular(Angular):
    """Any g, as a function of cos(theta): a plain callable or a module.

    A module's parameters are trained with the layer.

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
    def kind(self) -> AngularFunction:  # type: ignore[override]
        return self.function

    def extra_repr(self) -> str:
        return "" if isinstance(self.function, nn.Module) else repr(self.function)


class SigmoidAngular(Angular):
    """g of Eq. 4.13, with curvature k fixed or learned (3.2.5, 3.4.3).

    share: with learnable=True, one k a filter, one a "layer", or one for the whole "network". For
    the last, hand the same object to every layer (as `convert` does): they share its parameter.
    A learned k stays positive by construction. The released code starts at 0.7 and takes
    |k| + 0.05; here it starts at k.

    >>> SigmoidAngular(learnable=True).bind(3).k()
    tensor([0.5000, 0.5000, 0.5000], grad_fn=<AddBackward0>)
    """

    kind = "sigmoid"

    def __init__(
        self, k: float = DEFAULT_K, learnable: bool = False, share: Share = "filter"
    ) -> None:
        super().__init__()
        if share not in ("filter", "layer", "network"):
            raise ValueError(f"share must be 'filter', 'layer' or 'network', got {share!r}")
        if not k > 0:
            raise ValueError(f"SigmoidAngular expects k > 0 (Eq. 4.13), got k={k}")
        self.start, self.learnable, self.share = float(k), learnable, share
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


_BY_NAME: dict[str, type[Angular]] = {
    "linear": LinearAngular,
    "cosine": CosineAngular,
    "sigmoid": SigmoidAngular,
    "square_cosine": SquareCosineAngular,
}


def make_angular(angular: str | Angular | Callable[[Tensor], Tensor]) -> Angular:
    """An activation from its name, from any callable of cos(theta), or as it is."""
    if isinstance(angular, Angular):
        return angular
    if isinstance(angular, str):
        if angular not in _BY_NAME:
            raise ValueError(
                f"unknown angular activation {angular!r}; expected one of "
                f"{', '.join(ANGULAR_KINDS)}, an instance such as SigmoidAngular(k=0.3), or a "
                f"callable of cos(theta)"
            )
        return _BY_NAME[angular]()
    if callable(angular):
        return CustomAngular(angular)
    raise TypeError(f"angular must be a name, an Angular or a callable, got {angular!r}")
