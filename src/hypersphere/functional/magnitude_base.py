"""What every path asks of a magnitude h(|x|); the named ones are in magnitude_functions.py."""

from __future__ import annotations

from typing import Any, TypeAlias

import torch
from torch import Tensor

from ..registry import entries
from ._kernels.decoupled.lengths import FilterLengths

__all__ = ["MagnitudeFunction", "Radius", "as_tensor"]

Radius: TypeAlias = float | Tensor


class MagnitudeFunction:
    """A magnitude h without state: everything that any path asks of it.

    Only `value` has to be written; the other methods follow from it. To be used by name, a
    subclass is registered with ``@register("magnitude", name)``. Attributes of the class:

    - ``default_beta``: value of beta if none is given; None if h has no second constant.
    - ``has_radius``: whether h depends on a radius rho.
    - ``degree``: p in h(t n; t rho) = t^p h(n; rho), for magnitudes with a radius.
    - ``is_constant``: whether h = alpha wherever there is a direction (the sphere).
    - ``is_proportional``: whether h = alpha n.
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
        if self.has_radius:
            norm = norm + torch.zeros_like(as_tensor(radius, norm))  # of the shape of both
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
            The bound, or None.
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


def as_tensor(value: Radius, like: Tensor) -> Tensor:
    """A radius as a tensor of the type and device of `like`."""
    return value if isinstance(value, Tensor) else torch.full((), value).to(like)
