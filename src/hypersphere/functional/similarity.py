"""Similarities between a feature and a class that later objectives put in place of the cosine."""

from __future__ import annotations

import torch
from torch import Tensor

from .angles import arccos
from .angular_functions import AngularFunction, Parameter
from .arcsin import inverse_sine

__all__ = ["StretchedCosine", "WidenedCosine"]


class _Similarity(AngularFunction):
    """A similarity whose gradient may be that of the cosine ("characteristic gradient detachment").

    Then its value is a constant added to the cosine, as in the released OpenSphere code.
    """

    def __init__(self, parameter: float | Tensor, least: float, detached: bool) -> None:
        if not isinstance(parameter, Tensor) and not parameter >= least:
            raise ValueError(
                f"{type(self).__name__} expects a number >= {least:g}; got {parameter}"
            )
        self.parameter, self.detached = parameter, detached

    def value(self, cos: Tensor, k: Parameter = None, eps: float | None = None) -> Tensor:
        if not self.detached:
            return self._exact(cos, eps)
        return cos + (self._exact(cos.detach(), eps) - cos.detach())

    def slope(self, cos: Tensor, k: Parameter = None, eps: float | None = None) -> Tensor:
        return torch.ones_like(cos) if self.detached else self._exact_slope(cos, eps)

    def _exact(self, cos: Tensor, eps: float | None) -> Tensor:
        """g with its own gradient."""
        raise NotImplementedError

    def _exact_slope(self, cos: Tensor, eps: float | None) -> Tensor:
        """dg / dcos."""
        raise NotImplementedError

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.parameter})"


class WidenedCosine(_Similarity):
    """g = 2 ((cos(theta) + 1) / 2)^t - 1: the similarity of SphereFace2.

    It spreads the cosines near 1, where features of one class lie, over a wider range.

    Args:
        t: exponent, >= 1; 1 is the cosine.
        detached: let the gradient be that of the cosine.

    >>> WidenedCosine(3.0)(torch.tensor([1.0, 0.0, -1.0]))
    tensor([ 1.0000, -0.7500, -1.0000])
    """

    def __init__(self, t: float = 3.0, detached: bool = False) -> None:
        super().__init__(t, 1.0, detached)

    def _exact(self, cos: Tensor, eps: float | None) -> Tensor:
        return 2 * ((cos + 1) / 2).clamp_min(0).pow(self.parameter) - 1

    def _exact_slope(self, cos: Tensor, eps: float | None) -> Tensor:
        return self.parameter * ((cos + 1) / 2).clamp_min(0).pow(self.parameter - 1)


class StretchedCosine(_Similarity):
    """g = cos(theta / m): the similarity to the other classes in SphereFace-R v2.

    Args:
        m: what the angle is divided by, >= 1; a number or a scalar tensor.
        detached: let the gradient be that of the cosine.

    >>> StretchedCosine(2.0)(torch.tensor([1.0, -0.5]))  # cos(0), cos(60 degrees)
    tensor([1.0000, 0.5000])
    """

    def __init__(self, m: float | Tensor = 1.5, detached: bool = False) -> None:
        super().__init__(m, 1.0, detached)

    def _exact(self, cos: Tensor, eps: float | None) -> Tensor:
        return torch.cos(arccos(cos) / self.parameter)

    def _exact_slope(self, cos: Tensor, eps: float | None) -> Tensor:
        m, theta = self.parameter, cos.clamp(-1, 1).acos()
        eps = torch.finfo(cos.dtype).eps if eps is None else eps
        # sin(theta / m) / (m sin(theta)), whose limit at 0 is 1 / m^2
        ratio = torch.sin(theta / m) * inverse_sine(cos, eps) / m
        small = theta < 1e-3
        return torch.where(small, torch.ones_like(ratio) / (m * m), ratio)
