"""Magnitudes on tiles: for all patches at once, or tile by tile.

    forward     out = factor g h(n)
    backward    out = slope_factor a r(n),    with r(n) = h(n) / n

A radius that all filters share makes h(n) a map of the patches, which is small beside the outputs
and computed once. A radius per filter makes it as large as the outputs; there every formula is
written in as few passes as it takes:

    ball        r = alpha / max(n, rho)           h' = alpha / rho where n <= rho, else 0
                dh/drho = -n h' / rho
    tanh        r = alpha tanh(n / rho) / n       h' = alpha (1 - tanh^2) / rho
                dh/drho = -n h' / rho
    segmented   r = beta + delta min(1, rho / n)          with delta = alpha - beta
                h' = alpha, and delta less where n > rho
                dh/drho = delta where n > rho, else 0

`backward` takes, of one tile, t = go g(c), a = go g'(c) and ac = a c, where go is the incoming
gradient. Then a r(n) is the gradient in w^T x, and t h'(n) - ac r(n), summed over the filters, the
one in n.
"""

from __future__ import annotations

from functools import cached_property
from typing import TYPE_CHECKING, TypeAlias

import torch
from torch import Tensor

from .numbers import product, quotient, shared_number
from .workspace import Workspace

if TYPE_CHECKING:
    from ...magnitude_base import MagnitudeFunction
    from .plain import FilterShapes

__all__ = [
    "FLOOR",
    "FilterLengths",
    "Lengths",
    "SharedLengths",
    "TiledBall",
    "TiledSegmented",
    "TiledTanhLength",
]

FLOOR = 1e-18  # the least norm that is told apart from 0: its square is a normal float32


class _Lengths:
    """A magnitude h of given norms and radii.

    Args:
        function: the formulas of h.
        norm: patch norms, shaped to broadcast over the filters.
        radius: rho, shaped to broadcast over the patches.
        alpha: the first constant of h.
        beta: the second constant of h.
        shapes: how filters and patches lie in the outputs.
        factor: the number by which g(c) is still to be multiplied.
        slope_factor: the number by which g'(c) is still to be multiplied.
    """

    def __init__(
        self,
        function: MagnitudeFunction,
        norm: Tensor,
        radius: Tensor,
        alpha: float,
        beta: float,
        shapes: FilterShapes,
        factor: float,
        slope_factor: float,
    ) -> None:
        self.function, self.norm, self.radius = function, norm, radius
        self.alpha, self.beta, self.shapes = alpha, beta, shapes
        self.factor, self.slope_factor = factor, slope_factor

    @cached_property
    def floored(self) -> Tensor:
        return self.norm.clamp_min(FLOOR)  # r(n) has its limit at a zero patch


class SharedLengths(_Lengths):
    """h of a radius that all filters share: maps of the patches, which the factors join."""

    @cached_property
    def h(self) -> Tensor:
        if self.function.is_constant:  # g(c) is 0 in a zero patch, h need not be
            return self.norm.new_full((1,), self.alpha * self.factor).expand_as(self.norm)
        return self.function.value(self.norm, self.alpha, self.beta, self.radius) * self.factor

    @cached_property
    def ratio(self) -> Tensor:
        ratio = self.function.ratio(self.norm, self.alpha, self.beta, self.radius)
        return ratio * self.slope_factor

    @cached_property
    def sums(self) -> tuple[Tensor, Tensor]:
        return torch.zeros_like(self.norm), torch.zeros_like(self.norm)

    def forward(self, value: Tensor, rows: slice, out: Tensor, new: Workspace) -> None:
        """out = value h(n)."""
        torch.mul(value, self.h[rows], out=out)

    def backward(
        self,
        t: Tensor | None,
        a: Tensor,
        ac: Tensor | None,
        rows: slice,
        out: Tensor,
        new: Workspace,
    ) -> None:
        """out = a r(n), and sums over the filters, where t and ac are needed."""
        for value, total in zip((t, ac), self.sums, strict=True):
            if value is not None:
                torch.sum(value, self.shapes.channel, keepdim=True, out=total[rows])
        torch.mul(a, self.ratio[rows], out=out)

    def gradients(self) -> tuple[Tensor, Tensor | None]:
        """The gradients in n and in rho, after all tiles."""
        settings = (self.norm, self.alpha, self.beta, self.radius)
        slope = self.function.slope(*settings)
        through_h = self.sums[0] * self.factor
        of_norm = through_h * slope - self.sums[1] * self.ratio
        if not self.function.has_radius:
            return of_norm, None
        return of_norm, (through_h * self.function.radius_slope(*settings, slope)).sum()


class FilterLengths(_Lengths):
    """h of a radius per filter, from the formulas of any magnitude.

    The first methods work on tiles. `keep`, `from_kept`, `whole_terms` and `through_ratio` serve
    whole.py, which keeps a tensor of the forward pass for the backward one.
    """

    # Whether h(t n; t rho) = h(n; rho): then dh/drho is -n h' / rho, and `whole_terms` leaves the
    # division to the sums over the patches.
    is_relative = False

    @cached_property
    def zero(self) -> Tensor:
        return self.norm.new_zeros(())

    @cached_property
    def sums(self) -> tuple[Tensor, Tensor]:
        return torch.zeros_like(self.norm), torch.zeros_like(self.radius)

    def forward(self, value: Tensor, rows: slice, out: Tensor, new: Workspace) -> None:
        """out = value h(n)."""
        torch.addcmul(self.zero, value, self.h(rows, new), value=self.factor, out=out)

    def backward(
        self,
        t: Tensor | None,
        a: Tensor,
        ac: Tensor | None,
        rows: slice,
        out: Tensor,
        new: Workspace,
    ) -> None:
        """out = a r(n), and sums over the filters and over the patches."""
        assert t is not None and ac is not None  # a radius per filter always needs both
        through, of_radius, ratio = self.terms(t, rows, new)
        self.sums[1].add_(self.shapes.sum_patches(of_radius, self.sums[1]))
        through.addcmul_(ac, ratio, value=-self.slope_factor / self.factor)
        torch.sum(through, self.shapes.channel, keepdim=True, out=self.sums[0][rows])
        torch.mul(ratio.mul_(a), self.slope_factor, out=out)

    def h(self, rows: slice, new: Workspace) -> Tensor:
        """h(n) of one tile, over what `factor` holds of it."""
        return self.function.value(self.norm[rows], self.alpha, self.beta, self.radius)

    def terms(self, t: Tensor, rows: slice, new: Workspace) -> tuple[Tensor, Tensor, Tensor]:
        """t h', t dh/drho and r(n) of one tile, over what `factor` and `gradients` hold of them.

        The caller writes into the first and the last.
        """
        settings = (self.norm[rows], self.alpha, self.beta, self.radius)
        ratio, slope, of_radius = self.function.ratio_and_slopes(*settings)
        assert of_radius is not None  # only magnitudes with a radius have one per filter
        through, of_radius = torch.mul(t, slope, out=new()), torch.mul(t, of_radius, out=new())
        return through, of_radius, new().copy_(ratio)

    def gradients(self) -> tuple[Tensor, Tensor | None]:
        """The gradients in n and in rho, after all tiles."""
        of_radius = self.radius_gradient(self.sums[1], self.radius, self.factor)
        return self.sums[0] * self.factor, of_radius

    def radius_gradient(self, sums: Tensor, radius: Tensor, factor: float) -> Tensor:
        """The gradient in rho from the sums over the patches: with what `terms` leaves out."""
        return sums if factor == 1 else sums * factor

    @property
    def radius_factor(self) -> float:
        """The number that the products of `whole_terms` leave to their sums."""
        return 1.0

    def keep(self) -> Tensor:
        """What the backward pass will want to know of h, of all patches and filters."""
        return self.function.value(self.norm, self.alpha, self.beta, self.radius)

    def from_kept(self, kept: Tensor) -> Tensor:
        """h(n), over what `factor` holds of it."""
        return kept

    def whole_terms(self, t: Tensor, kept: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """t h' in new memory, and two tensors whose product is t dh/drho, or t h' n."""
        settings = (self.norm, self.alpha, self.beta, self.radius)
        _, slope, of_radius = self.function.ratio_and_slopes(*settings)
        assert of_radius is not None  # only magnitudes with a radius have one per filter
        return t * slope, t, of_radius

    def through_ratio(self, a: Tensor, kept: Tensor, factor: float) -> Tensor:
        """factor a r(n)."""
        ratio = self.function.ratio(self.norm, self.alpha, self.beta, self.radius)
        return product(a, ratio, factor)


class _OverAlpha(FilterLengths):
    """Everything over alpha, which joins the factors: one pass less over each tile."""

    def __init__(
        self,
        function: MagnitudeFunction,
        norm: Tensor,
        radius: Tensor,
        alpha: float,
        beta: float,
        shapes: FilterShapes,
        factor: float,
        slope_factor: float,
    ) -> None:
        factor, slope_factor = alpha * factor, alpha * slope_factor
        super().__init__(function, norm, radius, 1.0, beta / alpha, shapes, factor, slope_factor)

    @cached_property
    def inverse_radius(self) -> Tensor:
        return self.radius.reciprocal()

    @cached_property
    def inverse(self) -> Tensor:
        return self.floored.reciprocal()

    def over_radius(self, value: Tensor, out: Tensor) -> Tensor:
        """value / rho."""
        return torch.mul(value, self.inverse_radius, out=out)

    def through_ratio(self, a: Tensor, kept: Tensor, factor: float) -> Tensor:
        return product(a, kept / self.floored, factor)

    def radius_gradient(self, sums: Tensor, radius: Tensor, factor: float) -> Tensor:
        return torch.addcdiv(
            shared_number(0.0, sums.device, sums.dtype), sums, radius, value=-factor
        )


class TiledBall(_OverAlpha):
    """h = min(n / rho, 1)."""

    is_relative = True

    def h(self, rows: slice, new: Workspace) -> Tensor:
        return self.over_radius(self.floored[rows], new()).clamp_max_(1)

    def terms(self, t: Tensor, rows: slice, new: Workspace) -> tuple[Tensor, Tensor, Tensor]:
        n = self.norm[rows]
        through = torch.le(n, self.radius, out=new()).mul_(t)
        through = self.over_radius(through, through)
        of_radius = torch.mul(through, n, out=new())
        return through, of_radius, torch.maximum(n, self.radius, out=new()).reciprocal_()

    def keep(self) -> Tensor:
        return self.floored / self.radius

    def from_kept(self, kept: Tensor) -> Tensor:
        return kept.clamp_max(1)

    def whole_terms(self, t: Tensor, kept: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        # t where n / rho is 1 at most, that is, below the next number; 0 elsewhere.
        end = 1 + torch.finfo(kept.dtype).eps
        inside: Tensor = torch.ops.aten.hardtanh_backward(t, kept, -1.0, end)
        through = inside.div_(self.radius)
        return through, through, self.floored

    def through_ratio(self, a: Tensor, kept: Tensor, factor: float) -> Tensor:
        return quotient(a, torch.maximum(self.floored, self.radius), factor)


class TiledTanhLength(_OverAlpha):
    """h = tanh(n / rho)."""

    is_relative = True

    @cached_property
    def minus_two_over_radius(self) -> Tensor:
        return self.inverse_radius * -2

    def h(self, rows: slice, new: Workspace) -> Tensor:
        n = self.floored[rows]
        # -e / (e + 2) with e = exp(-2x) - 1: faster on processors, and as exact for a small x.
        e = torch.mul(n, self.minus_two_over_radius, out=new()).expm1_()
        return e.div_(torch.add(shared_number(-2.0, e.device, e.dtype), e, alpha=-1, out=new()))

    def terms(self, t: Tensor, rows: slice, new: Workspace) -> tuple[Tensor, Tensor, Tensor]:
        n = self.norm[rows]
        tanh = self.h(rows, new)
        through = torch.ops.aten.tanh_backward.grad_input(t, tanh, grad_input=new())
        through = self.over_radius(through, through)
        of_radius = torch.mul(through, n, out=new())
        return through, of_radius, tanh.mul_(self.inverse[rows])

    def keep(self) -> Tensor:
        return (self.floored / self.radius).tanh_()

    def whole_terms(self, t: Tensor, kept: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        through: Tensor = torch.ops.aten.tanh_backward(t, kept).div_(self.radius)
        return through, through, self.floored


class TiledSegmented(_OverAlpha):
    """h = n up to rho, with slope beta from there."""

    def h(self, rows: slice, new: Workspace) -> Tensor:
        n = self.floored[rows]
        # (1 - beta) min(n, rho) + beta n
        return torch.minimum(n, self.radius, out=new()).lerp_(n.expand(new.shape), self.beta)

    def terms(self, t: Tensor, rows: slice, new: Workspace) -> tuple[Tensor, Tensor, Tensor]:
        beyond = torch.gt(self.norm[rows], self.radius, out=new()).mul_(t)
        through = torch.sub(t, beyond, alpha=1 - self.beta, out=new())
        ratio = torch.mul(self.inverse[rows], self.radius, out=new()).clamp_max_(1)
        return through, beyond, ratio.mul_(1 - self.beta).add_(self.beta)

    def radius_gradient(self, sums: Tensor, radius: Tensor, factor: float) -> Tensor:
        return sums * (factor * (1 - self.beta))

    @property
    def radius_factor(self) -> float:
        return 1 - self.beta

    def keep(self) -> Tensor:
        least = torch.minimum(self.floored, self.radius)
        return least.lerp_(self.floored.expand_as(least), self.beta)

    def whole_terms(self, t: Tensor, kept: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        beyond = torch.gt(self.floored, self.radius, out=torch.empty_like(t))
        return torch.addcmul(t, t, beyond, value=self.beta - 1), t, beyond


Lengths: TypeAlias = SharedLengths | FilterLengths
