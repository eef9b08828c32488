"""The kernel f_s of the hyperspherical energy, as a function of the cosine between two neurons.

With d^2 = 2 - 2 cos, or (beta_i - beta_j)^2 + beta_i beta_j (2 - 2 cos) for weighted neurons,

    f_s = (d^2)^(-s/2),   f_0 = -log(d^2) / 2;   geodesic: f_s = theta^-s,   f_0 = -log(theta).

Note [Distance floor]: equal directions would have infinite energy. Distances are floored at
:func:`~hypersphere.functional.distance_floor`, which depends on s and the floating type but not on
the lengths of the neurons; a pair below it has the floor's energy and no gradient. For weighted
neurons (D.10) the floor is scaled by the pair's sqrt(beta_i beta_j).
"""

from __future__ import annotations

import math
from typing import NamedTuple

import torch
from torch import Tensor

from ...angles import arccos
from ...host import known

__all__ = ["Potential"]


class Potential(NamedTuple):
    """c(cos), the energy of a pair of neurons; see Note [Distance floor].

    In the half space it is that of all four pairs from {w, -w}^2, halved: f_s(cos) + f_s(-cos).
    `gap` = (beta_i - beta_j)^2 and `product` = beta_i beta_j belong to weighted neurons.
    """

    s: float
    geodesic: bool
    half_space: bool
    floor: float

    def mirror(self) -> float:
        """f_s between w and -w."""
        distance = math.pi if self.geodesic else 2.0
        return -math.log(distance) if self.s == 0 else distance**-self.s

    def energy(
        self, cos: Tensor, gap: Tensor | None = None, product: Tensor | None = None
    ) -> Tensor:
        """c(cos), differentiable twice (Eq. 5.1, 5.3.4, 5.5, D.10)."""
        value = self.one_side(cos, gap, product)
        return value + self.one_side(-cos, gap, product) if self.half_space else value

    def one_side(self, cos: Tensor, gap: Tensor | None, product: Tensor | None) -> Tensor:
        """f_s between one pair of points."""
        if self.geodesic:
            distance = arccos(cos).clamp_min(self.floor)
            return -distance.log() if self.s == 0 else distance.pow(-self.s)
        return self._of_square(self._square(cos, gap, product))

    def energy_and_slope(
        self, cos: Tensor, gap: Tensor | None = None, product: Tensor | None = None
    ) -> tuple[Tensor, Tensor, float]:
        """c(cos), and c'(cos) divided by the third value, in few passes over the matrix."""
        if self.half_space and self.s in (0, 2) and not self.geodesic and gap is None:
            return self._from_sine(cos)
        value, slope = self._side_and_slope(cos, gap, product)
        if self.half_space:
            mirrored, back = self._side_and_slope(-cos, gap, product)
            value, slope = value.add_(mirrored), slope.sub_(back)
        return value, slope, self.s or 1.0

    def _from_sine(self, cos: Tensor) -> tuple[Tensor, Tensor, float]:
        """Both sides at once: (2 - 2c)(2 + 2c) = 4 (1 - c^2), the sum of the two 1/(1 - c^2)."""
        floor = self.floor**2 * (1 - self.floor**2 / 4)
        one = torch.ones((), dtype=cos.dtype, device=cos.device)
        sine = torch.addcmul(one, cos, cos, value=-1)
        close = _below(sine, floor)
        if close is not None:
            sine.clamp_min_(floor)
        if self.s == 0:
            slope = cos / sine
            value = sine.log_().add_(2 * math.log(2)).mul_(-0.5)
        else:
            value = sine.reciprocal_()
            slope = (cos * value).mul_(value)
        if close is not None:
            slope.masked_fill_(close, 0)
        return value, slope, self.s or 1.0

    def _side_and_slope(
        self, cos: Tensor, gap: Tensor | None, product: Tensor | None
    ) -> tuple[Tensor, Tensor]:
        """f_s and its slope over (s or 1)."""
        if self.geodesic:
            theta = arccos(cos)
            held = theta.clamp_min(self.floor)
            value = -held.log() if self.s == 0 else held.pow(-self.s)
            # sin(theta) vanishes at pi too, where the direction along which the angle falls is lost
            sine = torch.addcmul(torch.ones_like(cos[..., :1]), cos, cos, value=-1)
            slope = held.mul_(sine.clamp_min_(self.floor**2).sqrt_()).reciprocal_()
            slope = slope.mul_(value) if self.s else slope
            return value, slope.masked_fill_(theta <= self.floor, 0)
        square = self._square(cos, gap, product)
        value = self._of_square(square)
        if self.s == 2:
            slope = value * value
        else:
            slope = square.reciprocal() if self.s == 0 else value / square
        if product is not None:
            close: Tensor | None = square <= self.floor**2 * product
            slope.mul_(product)
        else:
            close = _below(square, self.floor**2)
        return value, slope if close is None else slope.masked_fill_(close, 0)

    def _square(self, cos: Tensor, gap: Tensor | None, product: Tensor | None) -> Tensor:
        if gap is None or product is None:
            return (2 - 2 * cos).clamp_min(self.floor**2)
        # The rounding error of 2 - 2 cos is scaled by the pair's own weights, so the floor is too.
        return torch.maximum(torch.addcmul(gap, product, 2 - 2 * cos), self.floor**2 * product)

    def _of_square(self, square: Tensor) -> Tensor:
        if self.s == 0:
            return -0.5 * square.log()
        if self.s == 1:
            return square.rsqrt()
        return square.reciprocal() if self.s == 2 else square.pow(-self.s / 2)


def _below(x: Tensor, floor: float) -> Tensor | None:
    """Where x <= floor; None if nowhere, which saves the passes that would deal with it."""
    lowest = known(x.amin())
    if lowest is not None and lowest > floor:
        return None
    return x <= floor
