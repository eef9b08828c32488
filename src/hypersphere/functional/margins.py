"""Margin functions psi(theta): what the target class has to reach instead of g(theta).

One rule serves every margin. With phi = m theta + shift and k = floor(phi / pi),

    psi(theta) = g(phi - k pi) - 2k - subtract

is continuous and decreasing on [0, pi] for every g that falls from g(0) = 1 to g(pi) = -1.

=================================  =========================================
m theta                            Eq. 2.6, 2.20, 3.11 (L-, A-, GA-Softmax)
theta + shift                      L_a2 (ArcFace); see Note [Beyond pi - m]
cos(theta) - subtract              L_a1, D.11 (AM-Softmax, CosFace)
=================================  =========================================

Note [Beyond pi - m]: an additive angular margin alone (m = 1) goes on parallel to g there, as
g(theta) - g(pi - shift) - 1. The rule above would do, but starts with slope 0, and features that
begin opposite to their class then leave more slowly.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Literal, TypeAlias

import torch
from torch import Tensor

from ..registry import entry, register
from .angles import arccos
from .angular import Angular, angular, angular_derivative, angular_function
from .elementwise import apply_elementwise

__all__ = [
    "Margin",
    "Psi",
    "anneal",
    "is_trivial",
    "make_margin",
    "margin",
    "margin_derivative",
    "psi_slope",
    "psi_value",
]

# Cosines differ by 2 at most: a larger margin is a mistake, and its folds cannot be counted.
LARGEST = 1000.0
# Each number of a margin: from the first, below the second.
MARGIN_RANGES = {"m": (1.0, LARGEST), "shift": (0.0, math.pi), "subtract": (0.0, LARGEST)}


@register("margin", "margin", source="Eq. 2.6, 2.20, 3.11, D.11")
@dataclass(frozen=True)
class Margin:
    """psi(theta) = g(phi - k pi) - 2k - subtract, with phi = m theta + shift, k = floor(phi / pi).

    Deviation: the dissertation has integer m and the cosine (2.6); this is 2.6 there. For the
    additive angular margin it has cos(theta + m) alone, which turns upwards beyond pi - m; see
    Note [Beyond pi - m].

    Each number may also be a tensor that broadcasts against the angles, (B,) for a margin per
    sample; there a shift below 0 is allowed, and phi below 0 counts as 0.

    Args:
        m: multiplicative margin, >= 1, integer or real. Default: 1, no margin.
        shift: additive angular margin in radians, in [0, pi). Default: 0.
        subtract: additive margin on g, >= 0. Default: 0.
        beyond: what psi does where phi is above pi: "falling" as above, or "flat" for g(pi), as in
            SphereFace-R v1.

    >>> Margin(subtract=0.35)(torch.tensor([0.6]))
    tensor([0.2500])
    """

    m: float | Tensor = 1.0
    shift: float | Tensor = 0.0
    subtract: float | Tensor = 0.0
    beyond: Literal["falling", "flat"] = field(default="falling", repr=False)

    def __post_init__(self) -> None:
        _check(self.m, self.shift, self.subtract)
        if self.beyond not in ("falling", "flat"):
            raise ValueError(f"beyond is 'falling' or 'flat'; got {self.beyond!r}")

    def __call__(
        self, cos: Tensor, kind: Angular = "cosine", k: float | Tensor | None = None
    ) -> Tensor:
        """psi from cos(theta); see :func:`margin`.

        Args:
            cos: any shape, values in [-1, 1].
            kind: the angular activation g.
            k: curvature of g.

        Returns:
            psi, shaped like cos.
        """
        if self._keeps_angle:
            return angular(cos, kind, k) - _like(self.subtract, cos)
        wide = cos.float() if cos.dtype in (torch.float16, torch.bfloat16) else cos
        return self.of_angle(arccos(wide), kind, k).to(cos.dtype)

    def of_angle(
        self, theta: Tensor, kind: Angular = "cosine", k: float | Tensor | None = None
    ) -> Tensor:
        """psi from the angle itself.

        Args:
            theta: angles in radians, any shape, values in [0, pi].
            kind: the angular activation g.
            k: curvature of g.

        Returns:
            psi, shaped like theta.
        """
        g = angular_function(kind)
        # g of the angle: through cos(phi) the activations that need arccos would lose half their
        # digits at every fold.
        inside, turns = self._fold(theta)
        psi = g.of_angle(inside, k) - 2 * turns
        if self._only_shifts:
            end = math.pi - _like(self.shift, theta)
            end = end.clamp_max(math.pi) if isinstance(end, Tensor) else end
            last = g.of_angle(torch.ones_like(theta) * end, k)
            psi = torch.where(turns > 0, g.of_angle(theta, k) - last - 1, psi)
        return psi - _like(self.subtract, theta)

    def derivative(
        self, cos: Tensor, kind: Angular = "cosine", k: float | Tensor | None = None
    ) -> Tensor:
        """d psi / d cos(theta), finite everywhere; see :func:`margin_derivative`.

        Args:
            cos: any shape, values in [-1, 1].
            kind: the angular activation g.
            k: curvature of g.

        Returns:
            The derivative, shaped like cos.
        """
        if self._keeps_angle:
            return angular_derivative(cos, kind, k)
        g = angular_function(kind)
        wide = cos.float() if cos.dtype in (torch.float16, torch.bfloat16) else cos
        smallest = math.sqrt(torch.finfo(wide.dtype).eps)
        theta = wide.clamp(-1, 1).acos().clamp(smallest, math.pi - smallest)
        inside, turns = self._fold(theta)
        if self._only_shifts:  # parallel to g once folded
            inside = torch.where(turns > 0, theta, inside)
        phi = _like(self.m, theta) * theta + _like(self.shift, theta)
        moves = (phi >= 0) & ((phi <= math.pi) | (self.beyond == "falling"))
        slope = -_like(self.m, theta) * g.slope_of_angle(inside, k) / theta.sin()
        return torch.where(moves, slope, torch.zeros_like(slope)).to(cos.dtype)

    @property
    def trivial(self) -> bool:
        """Whether psi is g itself."""
        return self._keeps_angle and _is(self.subtract, 0)

    @property
    def _keeps_angle(self) -> bool:
        """Whether phi = theta."""
        return _is(self.m, 1) and _is(self.shift, 0)

    @property
    def _only_shifts(self) -> bool:
        """Whether Note [Beyond pi - m] applies."""
        return _is(self.m, 1) and self.beyond == "falling"

    def _fold(self, theta: Tensor) -> tuple[Tensor, Tensor]:
        """m theta + shift brought into [0, pi], and how many half turns that took."""
        m, shift = _like(self.m, theta), _like(self.shift, theta)
        phi = m * theta + shift
        if isinstance(shift, Tensor):
            phi = phi.clamp_min(0)
        if self.beyond == "flat":
            return phi.clamp_max(math.pi), torch.zeros_like(phi)
        turns = torch.floor(phi.detach() / math.pi)
        most = m + shift / math.pi  # theta = pi is in the last branch
        if isinstance(most, Tensor):
            turns = turns.clamp_min(0).minimum((most.detach().ceil() - 1).clamp_min(0))
        else:
            turns = turns.clamp(0, math.ceil(most) - 1)
        return phi - turns * math.pi, turns


def _like(value: float | Tensor, other: Tensor) -> float | Tensor:
    return value.to(other) if isinstance(value, Tensor) else value


def _is(value: float | Tensor, number: float) -> bool:
    return not isinstance(value, Tensor) and value == number


Psi: TypeAlias = Margin | Callable[[Tensor], Tensor] | None


def margin(
    cos: Tensor,
    m: float = 1.0,
    shift: float = 0.0,
    subtract: float = 0.0,
    kind: Angular = "cosine",
    k: float | Tensor | None = None,
) -> Tensor:
    """psi(theta) from cos(theta), by the one rule of :class:`Margin`.

    Differentiable in cos (finite at theta = 0 and pi) and in k. For m = 1 without shift and
    subtraction it is g itself, bit for bit.

    Args:
        cos: any shape, values in [-1, 1].
        m: multiplicative margin, >= 1, integer or real.
        shift: additive angular margin in radians, in [0, pi).
        subtract: additive margin on g, >= 0.
        kind: the angular activation g, as in :func:`angular`.
        k: curvature of g, as in :func:`angular`.

    Returns:
        psi, shaped like cos.

    Raises:
        ValueError: if a number is out of its range.

    >>> margin(torch.tensor([1.0, 0.5, 0.0, -1.0]), m=2)
    tensor([ 1.0000, -0.5000, -1.0000, -3.0000])
    >>> margin(torch.tensor([0.6, 0.0]), subtract=0.35)
    tensor([ 0.2500, -0.3500])
    """
    return Margin(m, shift, subtract)(cos, kind, k)


def margin_derivative(
    cos: Tensor,
    m: float = 1.0,
    shift: float = 0.0,
    kind: Angular = "cosine",
    k: float | Tensor | None = None,
) -> Tensor:
    """d psi / d cos(theta), finite everywhere, for backward passes written by hand.

    At theta = 0 and pi it is the value at the smallest angle that a cosine resolves: the limit
    m^2 for the cosine without shift, a large number where the limit is infinite.

    Args:
        cos: as in :func:`margin`.
        m: as in :func:`margin`.
        shift: as in :func:`margin`.
        kind: as in :func:`margin`.
        k: as in :func:`margin`.

    Returns:
        The derivative, shaped like cos.

    >>> margin_derivative(torch.tensor([1.0, 0.5]), m=2).round()  # 4 cos(theta)
    tensor([4., 2.])
    """
    return Margin(m, shift).derivative(cos, kind, k)


def make_margin(psi: Psi | str | Mapping[str, Any]) -> Psi:
    """A margin from what a config says of it.

    Args:
        psi: a registered name; a mapping with the key "name" (default: "margin") and the settings
            of that margin; or a margin, which is returned as it is.

    Returns:
        A `Margin`, another callable psi of cos(theta), or None.

    Raises:
        ValueError: if the name is unknown, with the nearest one.

    >>> make_margin({"m": 4})
    Margin(m=4, shift=0.0, subtract=0.0)
    """
    if isinstance(psi, str):
        psi = {"name": psi}
    if not isinstance(psi, Mapping):
        return psi
    settings = dict(psi)
    target = entry("margin", settings.pop("name", "margin")).target
    made: Psi
    if isinstance(target, type):
        made = target(**settings)
    else:
        made = functools.partial(target, **settings) if settings else target
    return made


def psi_value(
    psi: Psi, cos: Tensor, kind: Angular = "cosine", k: float | Tensor | None = None
) -> Tensor:
    """psi(theta) of any margin: a `Margin` on top of g, a callable of cos alone, None for g.

    Args:
        psi: the margin.
        cos: any shape, values in [-1, 1].
        kind: the angular activation g.
        k: curvature of g.

    Returns:
        psi, shaped like cos.
    """
    if psi is None:
        return angular(cos, kind, k)
    return psi(cos, kind, k) if isinstance(psi, Margin) else apply_elementwise(psi, cos)


def psi_slope(
    psi: Psi, cos: Tensor, kind: Angular = "cosine", k: float | Tensor | None = None
) -> Tensor:
    """d psi / d cos(theta) of any margin: its method `derivative` if it has one, else by autograd.

    Args:
        psi: the margin.
        cos: any shape, values in [-1, 1].
        kind: the angular activation g.
        k: curvature of g.

    Returns:
        The derivative, shaped like cos.
    """
    if psi is None:
        return angular_derivative(cos, kind, k)
    if isinstance(psi, Margin):
        return psi.derivative(cos, kind, k)
    own: Callable[[Tensor], Tensor] | None = getattr(psi, "derivative", None)
    if own is not None:
        return own(cos)
    derivative: Tensor = torch.func.vjp(psi, cos)[1](torch.ones_like(cos))[0]
    return derivative


def is_trivial(psi: Psi) -> bool:
    """Whether psi is known to leave the target's score as it is.

    Args:
        psi: the margin.
    """
    return psi is None or (isinstance(psi, Margin) and psi.trivial)


def anneal(psi: Tensor, plain: Tensor, lam: float | Tensor) -> Tensor:
    """(lambda g(theta) + psi(theta)) / (1 + lambda), sections 2.2.7 and A.7.

    Args:
        psi: scores with the margin, any shape.
        plain: scores without it, the same shape.
        lam: lambda >= 0. A large lambda is the loss without margin, 0 the margin alone.

    Returns:
        The mixed scores.

    >>> anneal(torch.tensor(-1.0), torch.tensor(0.5), 5.0)
    tensor(0.2500)
    """
    return (lam * plain + psi) / (1 + lam)


def _check(m: Any, shift: Any, subtract: Any) -> None:
    for value in (m, shift, subtract):
        if not isinstance(value, (int, float, Tensor)):
            raise TypeError(
                f"a margin is a number, got {value!r} ({type(value).__name__}); or a tensor"
            )
    # Tensors are checked where they are made: a look at their values would wait for the device.
    m, shift, subtract = (
        usual if isinstance(value, Tensor) else value
        for value, usual in ((m, 1), (shift, 0), (subtract, 0))
    )
    if not 1 <= m < LARGEST:
        raise ValueError(
            f"a multiplicative margin needs m >= 1 (1 is no margin) and < {LARGEST:g}, got m={m}"
        )
    if not 0 <= shift < math.pi:
        raise ValueError(
            f"an additive angular margin is in radians, in [0, pi); got {shift}"
            + (
                f" - did you mean radians({shift:g}) = {math.radians(shift):.3f}?"
                if shift > 3
                else ""
            )
        )
    if not 0 <= subtract < LARGEST:
        raise ValueError(
            f"an additive cosine margin needs m >= 0 and < {LARGEST:g}, got {subtract}"
        )
