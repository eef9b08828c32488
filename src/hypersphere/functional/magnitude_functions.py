"""Magnitudes h(|x|), Eq. 4.4-4.10: what a neuron makes of the length of its input.

==========  =====  =============================================================  =======  ======
kind        Eq.    h(n), n = |x|                                                  bounded  smooth
==========  =====  =============================================================  =======  ======
sphere      4.4    alpha                                                          yes      yes
ball        4.5    alpha min(n, rho) / rho                                        yes      no
tanh        4.6    alpha tanh(n / rho)                                            yes      yes
linear      4.7    alpha n                                                        no       yes
segmented   4.8    alpha n up to rho, then with slope beta                        no       no
log         4.9    alpha log(1 + n)                                               no       yes
mixed       4.10   alpha n + beta log(1 + n)                                      no       yes
==========  =====  =============================================================  =======  ======

rho is the operator radius, where the slope of h changes (4.3.2). Ball is the segmented magnitude
with slopes alpha / rho and 0, linear the one with beta = alpha.

Each is one class below: layers and all kernels take value, ratio and slopes from there.
"""

from __future__ import annotations

import torch
from torch import Tensor

from ..registry import register
from ._kernels.decoupled.lengths import (
    FLOOR,
    TiledBall,
    TiledSegmented,
    TiledTanhLength,
)
from .magnitude_base import MagnitudeFunction, Radius, as_tensor

__all__ = [
    "BallLength",
    "LinearLength",
    "LogLength",
    "MixedLength",
    "SegmentedLength",
    "SphereLength",
    "TanhLength",
]


class _StartsAtZero(MagnitudeFunction):
    """An h that goes to 0 with a finite slope, which h / |x| then has at the least norm, too."""

    def ratio(self, norm: Tensor, alpha: float = 1, beta: float = 0, radius: Radius = 1) -> Tensor:
        norm = norm.clamp_min(FLOOR)
        return self.value(norm, alpha, beta, radius) / norm


@register("magnitude", "sphere", source="Eq. 4.4")
class SphereLength(MagnitudeFunction):
    """h = alpha, Eq. 4.4; 0 for a zero input, which has no direction."""

    is_constant = True
    stays_below_alpha = True
    smooth = True

    def value(self, norm: Tensor, alpha: float = 1, beta: float = 0, radius: Radius = 1) -> Tensor:
        return _times(alpha, norm.sign())  # 1 for all lengths but 0, with gradient 0

    def slope(self, norm: Tensor, alpha: float = 1, beta: float = 0, radius: Radius = 1) -> Tensor:
        return torch.zeros_like(norm)

    def ratio(self, norm: Tensor, alpha: float = 1, beta: float = 0, radius: Radius = 1) -> Tensor:
        return alpha / torch.where(norm > 0, norm, torch.inf)


@register("magnitude", "ball", source="Eq. 4.5")
class BallLength(MagnitudeFunction):
    """h = alpha min(|x|, rho) / rho, Eq. 4.5."""

    has_radius = True
    stays_below_alpha = True
    filter_lengths = TiledBall

    def value(self, norm: Tensor, alpha: float = 1, beta: float = 0, radius: Radius = 1) -> Tensor:
        return _times(alpha, (norm / radius).clamp_max(1))

    def slope(self, norm: Tensor, alpha: float = 1, beta: float = 0, radius: Radius = 1) -> Tensor:
        inside = alpha / as_tensor(radius, norm)
        return torch.where(norm <= radius, inside, norm.new_zeros(()))

    def ratio(self, norm: Tensor, alpha: float = 1, beta: float = 0, radius: Radius = 1) -> Tensor:
        return _times(alpha, torch.maximum(norm, as_tensor(radius, norm)).reciprocal())


@register("magnitude", "tanh", source="Eq. 4.6")
class TanhLength(_StartsAtZero):
    """h = alpha tanh(|x| / rho), Eq. 4.6."""

    has_radius = True
    stays_below_alpha = True
    smooth = True
    filter_lengths = TiledTanhLength

    def value(self, norm: Tensor, alpha: float = 1, beta: float = 0, radius: Radius = 1) -> Tensor:
        return _times(alpha, torch.tanh(norm / radius))

    def slope(self, norm: Tensor, alpha: float = 1, beta: float = 0, radius: Radius = 1) -> Tensor:
        radius = as_tensor(radius, norm)
        tanh = torch.tanh(norm / radius)
        return (1 - tanh * tanh) * (alpha / radius)

    def ratio_and_slopes(
        self, norm: Tensor, alpha: float, beta: float, radius: Tensor
    ) -> tuple[Tensor, Tensor, Tensor | None]:
        floored, inverse_radius = norm.clamp_min(FLOOR), radius.reciprocal()
        tanh = torch.tanh(floored * inverse_radius)
        slope = (1 - tanh * tanh) * (alpha * inverse_radius)
        return tanh * (alpha * floored.reciprocal()), slope, slope * norm * -inverse_radius


@register("magnitude", "linear", source="Eq. 4.7")
class LinearLength(MagnitudeFunction):
    """h = alpha |x|, Eq. 4.7."""

    is_proportional = True
    smooth = True

    def value(self, norm: Tensor, alpha: float = 1, beta: float = 0, radius: Radius = 1) -> Tensor:
        return _times(alpha, norm)

    def slope(self, norm: Tensor, alpha: float = 1, beta: float = 0, radius: Radius = 1) -> Tensor:
        return torch.full_like(norm, alpha)

    def ratio(self, norm: Tensor, alpha: float = 1, beta: float = 0, radius: Radius = 1) -> Tensor:
        return torch.full_like(norm, alpha)


@register("magnitude", "segmented", source="Eq. 4.8")
class SegmentedLength(MagnitudeFunction):
    """h = alpha |x| up to |x| = rho, with slope beta from there, Eq. 4.8."""

    default_beta = 0.5  # the setting of C.2
    has_radius = True
    degree = 1.0
    filter_lengths = TiledSegmented

    def value(self, norm: Tensor, alpha: float = 1, beta: float = 0, radius: Radius = 1) -> Tensor:
        return beta * norm + (alpha - beta) * torch.minimum(norm, as_tensor(radius, norm))

    def slope(self, norm: Tensor, alpha: float = 1, beta: float = 0, radius: Radius = 1) -> Tensor:
        return torch.where(norm <= radius, norm.new_tensor(alpha), norm.new_tensor(beta))

    def ratio(self, norm: Tensor, alpha: float = 1, beta: float = 0, radius: Radius = 1) -> Tensor:
        return beta + _times(alpha - beta, (radius / norm.clamp_min(FLOOR)).clamp_max(1))

    def radius_slope(
        self, norm: Tensor, alpha: float, beta: float, radius: Tensor, slope: Tensor
    ) -> Tensor:
        return alpha - slope

    def ratio_and_slopes(
        self, norm: Tensor, alpha: float, beta: float, radius: Tensor
    ) -> tuple[Tensor, Tensor, Tensor | None]:
        beyond = torch.where(norm > radius, alpha - beta, 0.0)
        return self.ratio(norm, alpha, beta, radius), alpha - beyond, beyond

    def is_bounded(self, alpha: float, beta: float) -> bool:
        return beta == 0

    def is_smooth(self, alpha: float, beta: float) -> bool:
        return beta == alpha


@register("magnitude", "log", source="Eq. 4.9")
class LogLength(_StartsAtZero):
    """h = alpha log(1 + |x|), Eq. 4.9."""

    smooth = True

    def value(self, norm: Tensor, alpha: float = 1, beta: float = 0, radius: Radius = 1) -> Tensor:
        return _times(alpha, torch.log1p(norm))

    def slope(self, norm: Tensor, alpha: float = 1, beta: float = 0, radius: Radius = 1) -> Tensor:
        return alpha / (1 + norm)


@register("magnitude", "mixed", source="Eq. 4.10")
class MixedLength(_StartsAtZero):
    """h = alpha |x| + beta log(1 + |x|), Eq. 4.10."""

    default_beta = 1.0  # the setting of C.2
    smooth = True

    def value(self, norm: Tensor, alpha: float = 1, beta: float = 0, radius: Radius = 1) -> Tensor:
        return _times(alpha, norm) + _times(beta, torch.log1p(norm))

    def slope(self, norm: Tensor, alpha: float = 1, beta: float = 0, radius: Radius = 1) -> Tensor:
        return alpha + beta / (1 + norm)


def _times(factor: float, value: Tensor) -> Tensor:
    """factor * value, without a pass over the numbers for the factor 1."""
    return value if factor == 1 else factor * value
