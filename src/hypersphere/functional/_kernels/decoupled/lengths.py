"""Magnitudes as the fused operator uses them: for all patches at once, or tile by tile.

A radius that all filters share makes h(n) a map of the patches, which is small beside the outputs
and worked out once. A radius of each filter makes it as large as the outputs; there every formula
is spelled out in as few passes as it takes. With r(n) = h(n) / n:

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
from typing import Any, TypeAlias

import torch
from torch import Tensor

from ...magnitude import FLOOR, RADIUS_KINDS, magnitude, magnitude_ratio, magnitude_slope
from .plain import Layout, Operator
from .workspace import Workspace

__all__ = ["FilterLengths", "Lengths", "SharedLengths", "shares_radius"]


class _Lengths:
    """norm, radius: shaped to broadcast over the outputs. factor, slope_factor: numbers by which
    g(c) and g'(c) are still to be multiplied.
    """

    def __init__(
        self,
        norm: Tensor,
        radius: Tensor,
        op: Operator,
        lay: Layout,
        factor: float,
        slope_factor: float,
    ) -> None:
        self.norm, self.radius, self.op, self.lay = norm, radius, op, lay
        self.factor, self.slope_factor = factor, slope_factor


class SharedLengths(_Lengths):
    """h of a radius that all filters share: maps of the patches, which the factors join."""

    @cached_property
    def h(self) -> Tensor:
        if self.op.magnitude == "sphere":  # g(c) is 0 in a zero patch, h need not be
            return self.norm.new_full((1,), self.op.alpha * self.factor).expand_as(self.norm)
        return magnitude(self.norm, *self.op.settings, self.radius) * self.factor

    @cached_property
    def ratio(self) -> Tensor:
        return magnitude_ratio(self.norm, *self.op.settings, self.radius) * self.slope_factor

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
        """out = a r(n), and sums over the filters, where t and ac are wanted."""
        for value, total in zip((t, ac), self.sums, strict=True):
            if value is not None:
                torch.sum(value, self.lay.channel, keepdim=True, out=total[rows])
        torch.mul(a, self.ratio[rows], out=out)

    def gradients(self) -> tuple[Tensor, Tensor]:
        """The gradients in n and in rho, after all tiles."""
        slope = magnitude_slope(self.norm, *self.op.settings, self.radius)
        through_h = self.sums[0] * self.factor
        of_radius = slope * self.norm / -self.radius
        if self.op.magnitude == "segmented":
            of_radius = self.op.alpha - slope
        return through_h * slope - self.sums[1] * self.ratio, (through_h * of_radius).sum()


class FilterLengths(_Lengths):
    """h of a radius rho of each filter.

    The factors join alpha, and all is worked out over alpha, which meets the sums in the end.
    """

    def __init__(self, *settings: Any) -> None:
        super().__init__(*settings)
        self.kind, alpha, beta = self.op.settings
        self.beta = (beta or 0.0) / alpha
        self.alpha, self.slope_alpha = alpha * self.factor, alpha * self.slope_factor
        self.zero = self.norm.new_zeros(())

    @cached_property
    def inverse_radius(self) -> Tensor:
        return self.radius.reciprocal()

    @cached_property
    def inverse(self) -> Tensor:
        return self.norm.clamp_min(FLOOR).reciprocal()  # r(n) has its limit at a zero patch

    @cached_property
    def sums(self) -> tuple[Tensor, Tensor]:
        return torch.zeros_like(self.norm), torch.zeros_like(self.radius)

    def forward(self, value: Tensor, rows: slice, out: Tensor, new: Workspace) -> None:
        """out = value h(n)."""
        n = self.norm[rows]
        if self.kind == "segmented":
            h = torch.minimum(n, self.radius, out=new()).mul_(1 - self.beta).add_(n * self.beta)
        elif self.kind == "tanh":
            h = torch.mul(n, self.inverse_radius, out=new()).tanh_()
        else:
            h = torch.mul(n, self.inverse_radius, out=new()).clamp_max_(1)
        torch.addcmul(self.zero, value, h, value=self.alpha, out=out)

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
        through, of_radius, ratio = getattr(self, f"_{self.kind}")(t, rows, new)
        self.sums[1].add_(self.lay.sum_patches(of_radius, self.sums[1]))
        through.addcmul_(ac, ratio, value=-self.slope_alpha / self.alpha)
        torch.sum(through, self.lay.channel, keepdim=True, out=self.sums[0][rows])
        torch.mul(ratio.mul_(a), self.slope_alpha, out=out)

    def _ball(self, t: Tensor, rows: slice, new: Workspace) -> tuple[Tensor, Tensor, Tensor]:
        """t h', t n h' and r(n), over alpha."""
        n = self.norm[rows]
        through = torch.le(n, self.radius, out=new()).mul_(t).mul_(self.inverse_radius)
        of_radius = torch.mul(through, n, out=new())
        return through, of_radius, torch.maximum(n, self.radius, out=new()).reciprocal_()

    def _tanh(self, t: Tensor, rows: slice, new: Workspace) -> tuple[Tensor, Tensor, Tensor]:
        """t h', t n h' and r(n), over alpha."""
        n = self.norm[rows]
        tanh = torch.mul(n.clamp_min(FLOOR), self.inverse_radius, out=new()).tanh_()
        through = torch.ops.aten.tanh_backward.grad_input(t, tanh, grad_input=new())
        through.mul_(self.inverse_radius)
        return through, torch.mul(through, n, out=new()), tanh.mul_(self.inverse[rows])

    def _segmented(self, t: Tensor, rows: slice, new: Workspace) -> tuple[Tensor, Tensor, Tensor]:
        """t h', t where n > rho, and r(n), the first and the last over alpha."""
        beyond = torch.gt(self.norm[rows], self.radius, out=new()).mul_(t)
        through = torch.sub(t, beyond, alpha=1 - self.beta, out=new())
        ratio = torch.mul(self.inverse[rows], self.radius, out=new()).clamp_max_(1)
        return through, beyond, ratio.mul_(1 - self.beta).add_(self.beta)

    def gradients(self) -> tuple[Tensor, Tensor]:
        """The gradients in n and in rho, after all tiles."""
        of_norm, of_radius = (total * self.alpha for total in self.sums)
        if self.kind == "segmented":
            return of_norm, of_radius * (1 - self.beta)
        return of_norm, of_radius * -self.inverse_radius


Lengths: TypeAlias = SharedLengths | FilterLengths


def shares_radius(op: Operator, radius: Tensor) -> bool:
    return radius.ndim == 0 or op.magnitude not in RADIUS_KINDS
