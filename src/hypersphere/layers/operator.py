"""The operator a decoupled layer applies: magnitude, angular activation, weighting, rescaling."""

from __future__ import annotations

import copy
from collections.abc import Sequence
from typing import Any, TypeAlias

import torch
from torch import Tensor, nn

from ..functional.decoupled import Weighted, check_weighted
from .angular import AngularLike, make_angular
from .magnitude import MagnitudeLike, make_magnitude

__all__ = ["Operator", "Rescale", "RescaleLike"]


class Rescale(nn.Module):
    """beta F + gamma, the rescaling of SphereNorm (3.2.5); learned for each filter, or fixed.

    Args:
        beta: the factor, or where learning starts.
        gamma: the summand, or where learning starts.
        learnable: whether both are parameters.
    """

    def __init__(self, beta: float = 1.0, gamma: float = 0.0, learnable: bool = True) -> None:
        super().__init__()
        self.start, self.learnable = (float(beta), float(gamma)), learnable
        self.beta: Tensor
        self.gamma: Tensor
        if learnable:
            self.beta = nn.Parameter(torch.tensor(self.start[0]))
            self.gamma = nn.Parameter(torch.tensor(self.start[1]))
        else:
            self.register_buffer("beta", torch.tensor(self.start[0]), persistent=False)
            self.register_buffer("gamma", torch.tensor(self.start[1]), persistent=False)

    def reset_parameters(self) -> None:
        """Set beta and gamma to where they started."""
        with torch.no_grad():
            self.beta.fill_(self.start[0])
            self.gamma.fill_(self.start[1])

    def bind(self, filters: int) -> Rescale:
        """The rescaling as a layer holds it: a copy with a beta and a gamma per filter.

        Args:
            filters: number of filters of the layer.

        Returns:
            The copy.
        """
        bound = copy.deepcopy(self)
        for name in ("beta", "gamma"):
            value = getattr(bound, name).detach().expand(filters).clone()
            setattr(bound, name, nn.Parameter(value) if self.learnable else value)
        return bound

    def extra_repr(self) -> str:
        return f"beta={self.start[0]:g}, gamma={self.start[1]:g}, learnable={self.learnable}"


RescaleLike: TypeAlias = bool | Sequence[float] | Rescale


def make_rescale(rescale: RescaleLike) -> Rescale | None:
    """True: learned; two numbers: fixed; False: none."""
    if isinstance(rescale, Rescale):
        return rescale
    if isinstance(rescale, bool):
        return Rescale() if rescale else None
    if not isinstance(rescale, Sequence) or isinstance(rescale, str) or len(rescale) != 2:
        raise TypeError(
            f"rescale must be True, False, two numbers (beta, gamma) or a Rescale; got {rescale!r}"
        )
    return Rescale(rescale[0], rescale[1], learnable=False)


class Operator(nn.Module):
    """h(|w|, |x|) g(theta), Eq. 4.3, as the objects that make it and their few parameters.

    Args:
        filters: number of filters of the layer.
        magnitude: h, a name or an instance.
        angular: g, a name, an instance or any callable of cos(theta).
        weighted: None, "linear" (4.3.5), "nonlinear" (4.15), "nonlinear_separate" (4.16).
        rescale: False; True for learned beta and gamma from 1 and 0; a pair of fixed numbers
            (beta, gamma); or a Rescale.
    """

    no_weight_decay = True  # k, radius, rescaling

    def __init__(
        self,
        filters: int,
        magnitude: MagnitudeLike = "sphere",
        angular: AngularLike = "cosine",
        weighted: Weighted | None = None,
        rescale: RescaleLike = False,
    ) -> None:
        super().__init__()
        self.magnitude = make_magnitude(magnitude).bind(filters)
        self.angular = make_angular(angular).bind(filters)
        check_weighted(weighted, self.magnitude.formula)
        self.weighted = weighted
        chosen = make_rescale(rescale)
        self.rescale = None if chosen is None else chosen.bind(filters)

    def h(self) -> dict[str, Any]:
        """h and its constants, as `functional.decoupled_conv` and `decoupled_linear` take them.

        Returns:
            Keyword arguments: the formula, alpha, beta, the radius and the way |w| enters.
        """
        h = self.magnitude
        radius, mean_norm = h.rho_and_mean
        length = {"alpha": h.alpha, "beta": h.beta, "radius": radius, "mean_norm": mean_norm}
        return {"magnitude": h.formula, **length, "weighted": self.weighted}

    def g(self) -> dict[str, Any]:
        """g and its parameter, as `functional.decoupled_conv` and `decoupled_linear` take them.

        Returns:
            Keyword arguments: the formula and k.
        """
        return {"angular": self.angular.formula, "k": self.angular.k()}

    def affine(self, bias: Tensor | None) -> dict[str, Any]:
        """The factor and the summand per filter: beta (f + bias) + gamma (3.2.5).

        Args:
            bias: (C,), the bias of the layer, or None.

        Returns:
            Keyword arguments: scale and bias, each (C,) or None.
        """
        if self.rescale is None:
            return {"scale": None, "bias": bias}
        beta, gamma = self.rescale.beta, self.rescale.gamma
        return {"scale": beta, "bias": gamma if bias is None else beta * bias + gamma}

    @property
    def bounded(self) -> bool:
        """Whether |f(w, x)| stays below a constant for all w and x, given |g| <= 1 (4.3.2)."""
        return self.magnitude.bounded and self.weighted != "linear"

    @property
    def smooth(self) -> bool:
        """Whether the magnitude is differentiable for all |x| > 0 (4.3.2)."""
        return self.magnitude.smooth

    @property
    def radius(self) -> Tensor | float:
        """The operator radius in units of |x|, per filter if learned; 0 for none (4.3.2)."""
        return self.magnitude.radius

    def extra_repr(self) -> str:
        return "" if self.weighted is None else f"weighted={self.weighted!r}"
