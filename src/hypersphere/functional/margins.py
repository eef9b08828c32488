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

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import TypeAlias, cast

import torch
from torch import Tensor

from .angles import arccos
from .angular import (
    Angular,
    AngularKind,
    angular,
    angular_derivative,
    check_kind,
    sigmoid_constants,
)

__all__ = ["Margin", "Psi", "anneal", "is_trivial", "margin", "margin_derivative"]


def margin(
    cos: Tensor,
    m: float = 1.0,
    shift: float = 0.0,
    subtract: float = 0.0,
    kind: Angular = "cosine",
    k: float | Tensor | None = None,
) -> Tensor:
    """psi(theta) from cos(theta): g(m theta + shift - k pi) - 2k - subtract, k = floor(. / pi).

    cos: any shape, values in [-1, 1]. m >= 1 (integer or real), shift in [0, pi) in radians,
    subtract >= 0. kind and k: the angular activation g and its curvature, as in `angular`.
    Differentiable in cos (finite at theta = 0 and pi) and in k. For m = 1 without shift and
    subtraction it is g itself, bit for bit.

    Deviation: the text has integer m and the cosine (2.6); this is 2.6 there. For the additive
    angular margin the text has cos(theta + m) alone, which turns upwards beyond pi - m; see
    Note [Beyond pi - m].

    >>> margin(torch.tensor([1.0, 0.5, 0.0, -1.0]), m=2)
    tensor([ 1.0000, -0.5000, -1.0000, -3.0000])
    >>> margin(torch.tensor([0.6, 0.0]), subtract=0.35)
    tensor([ 0.2500, -0.3500])
    """
    _check(m, shift, subtract)
    if m == 1 and shift == 0:
        return angular(cos, kind, k) - subtract
    wide = cos.float() if cos.dtype in (torch.float16, torch.bfloat16) else cos
    theta = arccos(wide)
    inside, turns = _fold(theta, m, shift)
    psi = _by_angle(inside, kind, k) - 2 * turns
    if m == 1:
        end = _by_angle(torch.full_like(theta, math.pi - shift), kind, k)
        psi = torch.where(turns > 0, _by_angle(theta, kind, k) - end - 1, psi)
    return (psi - subtract).to(cos.dtype)


def margin_derivative(
    cos: Tensor,
    m: float = 1.0,
    shift: float = 0.0,
    kind: AngularKind = "cosine",
    k: float | Tensor | None = None,
) -> Tensor:
    """d psi / d cos(theta), finite everywhere, for backward passes written by hand.

    At theta = 0 and pi it is the value at the smallest angle that a cosine resolves: the limit
    m^2 for the cosine without shift, a large number where the limit is infinite.

    >>> margin_derivative(torch.tensor([1.0, 0.5]), m=2).round()  # 4 cos(theta)
    tensor([4., 2.])
    """
    _check(m, shift, 0.0)
    if m == 1 and shift == 0:
        return angular_derivative(cos, kind, k)
    wide = cos.float() if cos.dtype in (torch.float16, torch.bfloat16) else cos
    smallest = math.sqrt(torch.finfo(wide.dtype).eps)
    theta = wide.clamp(-1, 1).acos().clamp(smallest, math.pi - smallest)
    inside, turns = _fold(theta, m, shift)
    if m == 1:  # parallel to g once folded
        inside = torch.where(turns > 0, theta, inside)
    return (-m * _slope_by_angle(inside, kind, k) / theta.sin()).to(cos.dtype)


@dataclass(frozen=True)
class Margin:
    """The numbers of a margin as one object, callable: psi = Margin(m=4); psi(cos).

    >>> Margin(subtract=0.35)(torch.tensor([0.6]))
    tensor([0.2500])
    """

    m: float = 1.0
    shift: float = 0.0
    subtract: float = 0.0

    def __post_init__(self) -> None:
        _check(self.m, self.shift, self.subtract)

    def __call__(
        self, cos: Tensor, kind: Angular = "cosine", k: float | Tensor | None = None
    ) -> Tensor:
        return margin(cos, self.m, self.shift, self.subtract, kind, k)

    def derivative(
        self, cos: Tensor, kind: AngularKind = "cosine", k: float | Tensor | None = None
    ) -> Tensor:
        return margin_derivative(cos, self.m, self.shift, kind, k)

    @property
    def trivial(self) -> bool:
        """Whether psi is g itself."""
        return self.m == 1 and self.shift == 0 and self.subtract == 0


Psi: TypeAlias = Margin | Callable[[Tensor], Tensor] | None


def is_trivial(psi: Psi) -> bool:
    """Whether psi is known to leave the target's score as it is."""
    return psi is None or (isinstance(psi, Margin) and psi.trivial)


def anneal(psi: Tensor, plain: Tensor, lam: float | Tensor) -> Tensor:
    """(lambda g(theta) + psi(theta)) / (1 + lambda), sections 2.2.7 and A.7.

    lambda large is the loss without margin, lambda = 0 the margin alone.

    >>> anneal(torch.tensor(-1.0), torch.tensor(0.5), 5.0)
    tensor(0.2500)
    """
    return (lam * plain + psi) / (1 + lam)


def _fold(theta: Tensor, m: float, shift: float) -> tuple[Tensor, Tensor]:
    """m theta + shift brought into [0, pi], and how many half turns that took."""
    phi = m * theta + shift
    most = math.ceil(m + shift / math.pi) - 1  # theta = pi belongs to the last branch
    turns = torch.floor(phi.detach() / math.pi).clamp(0, most)
    return phi - turns * math.pi, turns


def _by_angle(phi: Tensor, kind: Angular, k: float | Tensor | None) -> Tensor:
    # g from the angle itself: through cos(phi) the activations that need arccos would lose half
    # their digits at every fold.
    if callable(kind):
        return kind(phi.cos())
    check_kind(kind, k)
    if kind == "linear":
        return 1 - 2 / math.pi * phi
    if kind == "sigmoid":
        half_over_k, end = sigmoid_constants(k, phi)
        return torch.tanh((math.pi / 2 - phi) * half_over_k) / end
    return angular(phi.cos(), kind)


def _slope_by_angle(phi: Tensor, kind: AngularKind, k: float | Tensor | None) -> Tensor:
    check_kind(kind, k)
    if kind == "linear":
        return torch.full_like(phi, -2 / math.pi)
    if kind == "sigmoid":
        half_over_k, end = sigmoid_constants(k, phi)
        tanh = torch.tanh((math.pi / 2 - phi) * half_over_k)
        return (tanh * tanh - 1) * (half_over_k / end)
    cos = phi.cos()
    return -phi.sin() * angular_derivative(cos, cast(AngularKind, kind))


def _check(m: float, shift: float, subtract: float) -> None:
    for value in (m, shift, subtract):
        if not isinstance(value, (int, float)):
            raise TypeError(f"a margin is a number, got {value!r} ({type(value).__name__})")
    if not m >= 1:
        raise ValueError(f"a multiplicative margin needs m >= 1 (1 is no margin), got m={m}")
    if not 0 <= shift < math.pi:
        raise ValueError(
            f"an additive angular margin is in radians, in [0, pi); got {shift}"
            + (
                f" - did you mean radians({shift:g}) = {math.radians(shift):.3f}?"
                if shift > 3
                else ""
            )
        )
    if not subtract >= 0:
        raise ValueError(f"an additive cosine margin needs m >= 0, got {subtract}")
