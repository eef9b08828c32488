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

from typing import Any, TypeAlias

import torch
from torch import Tensor

from ..registry import entries, register
from ._kernels.decoupled.lengths import (
    FLOOR,
    FilterLengths,
    TiledBall,
    TiledSegmented,
    TiledTanhLength,
)

__all__ = ["BallLength", "LinearLength", "LogLength", "MagnitudeFunction"]
__all__ += ["MixedLength", "SegmentedLength", "SphereLength", "TanhLength"]

Radius: TypeAlias = float | Tensor


class MagnitudeFunction:
    """A magnitude h without state: everything that any path asks of it.

    Only `value` has to be written; the other methods follow from it. To be used by name, a
    subclass is registered with ``@register("magnitude", name)``. Attributes of the class:

    - ``default_beta``: value of beta if none is given; None if h has no second constant.
    - ``has_radius``: whether h depends on a radius rho.
    - ``degree``: p in h(t n; t rho) = t^p h(n; rho), for magnitudes with a radius.
    - ``is_constant``, ``is_proportional``: whether h = alpha for every direction, or h = alpha n.
    - ``stays_below_alpha``: whether |h| <= alpha, to which rounding is then clamped.
    - ``smooth``: whether h is differentiable for all |x| > 0 (4.3.2).
    - ``filter_lengths``: the form that works on tiles for a radius per filter.

    With a `slope` of its own, h is computed by the fused kernels; otherwise by autograd.

    >>> class Root(MagnitudeFunction):
    ...     def value(self, norm, alpha=1.0, beta=0.0, radius=1.0):
    ...         return alpha * norm.sqrt()
    >>> Root().slope(torch.tensor([4.0]))
    tensor([0.2500])
    """

    name: str = ""  # the registered name, once it was looked up
    default_beta: float | None = None
    has_radius: bool = False
    degree: float = 0.0
    is_constant: bool = False
    is_proportional: bool = False
    stays_below_alpha: bool = False
    smooth: bool = False
    is_fused: bool = False
    filter_lengths: type[FilterLengths] = FilterLengths

    def __init_subclass__(cls, **options: Any) -> None:
        super().__init_subclass__(**options)
        if "is_fused" not in cls.__dict__:
            cls.is_fused = cls.slope is not MagnitudeFunction.slope

    def value(self, norm: Tensor, alpha: float = 1, beta: float = 0, radius: Radius = 1) -> Tensor:
        """h as a differentiable function of |x| and the radius.

        Args:
            norm: |x| >= 0 in float32 or float64, any shape.
            alpha: scales h, > 0.
            beta: the second constant of h, >= 0.
            radius: rho > 0, a number or a tensor that broadcasts against norm.

        Returns:
            h, of the shape to which norm and radius broadcast.
        """
        raise NotImplementedError(
            f"{type(self).__name__} has to define value(norm, alpha, beta, radius)"
        )

    def __call__(self, norm: Tensor) -> Tensor:
        return self.value(norm)

    def slope(self, norm: Tensor, alpha: float = 1, beta: float = 0, radius: Radius = 1) -> Tensor:
        """dh / d|x|.

        Args:
            norm: as in `value`.
            alpha: as in `value`.
            beta: as in `value`.
            radius: as in `value`.

        Returns:
            The derivative, shaped like `value`.
        """
        norm = torch.broadcast_tensors(norm, _tensor(radius, norm))[0] if self.has_radius else norm  # type: ignore[no-untyped-call]
        found = torch.func.vjp(lambda n: self.value(n, alpha, beta, radius), norm)
        derivative: Tensor = found[1](torch.ones_like(found[0]))[0]
        return derivative

    def ratio(self, norm: Tensor, alpha: float = 1, beta: float = 0, radius: Radius = 1) -> Tensor:
        """h(|x|) / |x|, differentiable; at |x| = 0 the limit if it is finite, else 0.

        Args:
            norm: as in `value`.
            alpha: as in `value`.
            beta: as in `value`.
            radius: as in `value`.

        Returns:
            The ratio, shaped like `value`.
        """
        positive = norm > 0
        length = torch.where(positive, norm, 1.0)
        zero = norm.new_zeros(())
        limit = self.slope(zero, alpha, beta, radius)
        starts_at_zero = self.value(zero, alpha, beta, radius) == 0
        limit = torch.where(limit.isfinite() & starts_at_zero, limit, 0.0)
        return torch.where(positive, self.value(length, alpha, beta, radius) / length, limit)

    def radius_slope(
        self, norm: Tensor, alpha: float, beta: float, radius: Tensor, slope: Tensor
    ) -> Tensor:
        """dh / drho, from Euler's rule n h' + rho dh/drho = degree h.

        Args:
            norm: as in `value`.
            alpha: as in `value`.
            beta: as in `value`.
            radius: rho, a tensor that broadcasts against norm.
            slope: dh / d|x| there.

        Returns:
            The derivative, shaped like `value`.
        """
        through_norm = slope * norm
        if self.degree == 0:
            return through_norm * -radius.reciprocal()
        return (self.degree * self.value(norm, alpha, beta, radius) - through_norm) / radius

    def ratio_and_slopes(
        self, norm: Tensor, alpha: float, beta: float, radius: Tensor
    ) -> tuple[Tensor, Tensor, Tensor | None]:
        """h / |x|, dh / d|x| and dh / drho at once, for magnitudes where they share work.

        Args:
            norm: as in `value`.
            alpha: as in `value`.
            beta: as in `value`.
            radius: rho, a tensor that broadcasts against norm.

        Returns:
            Three tensors shaped like `value`; the last is None if h has no radius.
        """
        slope = self.slope(norm, alpha, beta, radius)
        of_radius = self.radius_slope(norm, alpha, beta, radius, slope) if self.has_radius else None
        return self.ratio(norm, alpha, beta, radius), slope, of_radius

    def bound(self, alpha: float, beta: float) -> float | None:
        """The number that |h| cannot exceed, to which rounding is clamped; None for none.

        Args:
            alpha: as in `value`.
            beta: as in `value`.

        Returns:
            alpha, or None.
        """
        return alpha if self.stays_below_alpha else None

    def is_bounded(self, alpha: float, beta: float) -> bool:
        """Whether h stays below a constant for all |x| (4.3.2).

        Args:
            alpha: as in `value`.
            beta: as in `value`.

        Returns:
            True if it does.
        """
        return self.bound(alpha, beta) is not None

    def is_smooth(self, alpha: float, beta: float) -> bool:
        """Whether h is differentiable for all |x| > 0 (4.3.2), given its constants.

        Args:
            alpha: as in `value`.
            beta: as in `value`.

        Returns:
            True if it is.
        """
        return self.smooth

    def check(self, alpha: float, beta: float | None, radius: Radius) -> float:
        """Refuse constants outside their range.

        Args:
            alpha: as in `value`.
            beta: as in `value`, or None for the default.
            radius: as in `value`.

        Returns:
            beta or its default, 0 where h has none.

        Raises:
            ValueError: if a constant is out of range, or h has no beta and one is given.
        """
        name = self.name or type(self).__name__
        if not alpha > 0:
            raise ValueError(f"the {name} magnitude expects alpha > 0, got alpha={alpha}")
        if isinstance(radius, (int, float)) and not radius > 0:
            raise ValueError(f"the {name} magnitude expects radius > 0, got radius={radius}")
        if beta is None:
            return self.default_beta or 0.0
        if self.default_beta is None:
            have = [e.name for e in entries("magnitude") if getattr(e.target, "default_beta", None)]
            raise ValueError(
                f"the {name} magnitude has no beta; only {' and '.join(have)} do, got beta={beta}"
            )
        if beta < 0:
            raise ValueError(f"the {name} magnitude expects beta >= 0, got beta={beta}")
        return beta


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
        inside = alpha / _tensor(radius, norm)
        return torch.where(norm <= radius, inside, norm.new_zeros(()))

    def ratio(self, norm: Tensor, alpha: float = 1, beta: float = 0, radius: Radius = 1) -> Tensor:
        return _times(alpha, torch.maximum(norm, _tensor(radius, norm)).reciprocal())


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
        radius = _tensor(radius, norm)
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
        return beta * norm + (alpha - beta) * torch.minimum(norm, _tensor(radius, norm))

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


def _tensor(value: Radius, like: Tensor) -> Tensor:
    return value if isinstance(value, Tensor) else torch.full((), value).to(like)
