"""Magnitudes as the fused operator uses them: for all patches at once, or tile by tile.

A radius that all filters share makes h(n) a map of the patches, which is small beside the outputs
and worked out once. A radius of each filter makes it as large as the outputs; there every formula
is spelled out in as few passes as it takes. With r(n) = h(n) / n:

    ball        r = alpha / max(n, rho)           h' = alpha / rho where n <= rho, else 0
                dh/drho = -n h' / rho
    tanh        r = alpha tanh(n / rho) / n       h' = alpha (1 - tanh^2) / rho
                dh/drho = -n h' / rho
    segmented   r = beta + delta min(1, rho / n)              with delta = alpha - beta
                h' = beta, and delta more where n <= rho;     dh/drho = delta where n > rho, else 0

`backward` takes, of one tile, t = go g(c), a = go g'(c) and ac = a c, where go is the incoming
gradient. Then a r(n) is the gradient in w^T x, and t h'(n) - ac r(n), summed over the filters, the
one in n.
"""

from __future__ import annotations

from functools import cached_property
from typing import TypeAlias

import torch
from torch import Tensor

from .magnitude import FLOOR, RADIUS_KINDS, magnitude, magnitude_ratio, magnitude_slope
from .operator import Layout, Operator
from .workspace import Workspace

__all__ = ["FilterLengths", "Lengths", "SharedLengths", "shares_radius"]


class SharedLengths:
    """h of a radius that all filters share; norm is shaped to broadcast over the filters.

    factor, slope_factor: constants by which g(c) and g'(c) are still to be multiplied.
    """

    outer = 1.0

    def __init__(
        self,
        norm: Tensor,
        radius: Tensor,
        op: Operator,
        lay: Layout,
        factor: Tensor,
        slope_factor: Tensor,
    ) -> None:
        self.norm, self.radius, self.op, self.channel = norm, radius, op, lay.channel
        self.factor, self.slope_factor = factor, slope_factor
        self.sum_t, self.sum_ac = torch.zeros_like(norm), torch.zeros_like(norm)

    @cached_property
    def h(self) -> Tensor:
        return magnitude(self.norm, *self.op.settings, self.radius) * self.factor

    @cached_property
    def ratio(self) -> Tensor:
        return magnitude_ratio(self.norm, *self.op.settings, self.radius) * self.slope_factor

    def forward(self, value: Tensor, rows: slice, out: Tensor) -> None:
        """out = value h(n)."""
        torch.mul(value, self.h[rows], out=out)

    def backward(
        self, t: Tensor | None, a: Tensor, ac: Tensor | None, rows: slice, out: Tensor
    ) -> None:
        """out = a r(n), and sums over the filters, where t and ac are wanted."""
        for value, total in ((t, self.sum_t), (ac, self.sum_ac)):
            if value is not None:
                torch.sum(value, self.channel, keepdim=True, out=total[rows])
        torch.mul(a, self.ratio[rows], out=out)

    def gradients(self) -> tuple[Tensor, Tensor]:
        """The gradients in n and in rho, after all tiles."""
        slope = magnitude_slope(self.norm, *self.op.settings, self.radius)
        through_h = self.sum_t * self.factor
        of_radius = slope * self.norm / -self.radius
        if self.op.magnitude == "segmented":
            of_radius = self.op.alpha - slope
        return through_h * slope - self.sum_ac * self.ratio, (through_h * of_radius).sum()


class FilterLengths:
    """h of a radius rho of each filter, shaped to broadcast over the patches.

    outer: a constant factor of h, which `backward` expects in go.
    """

    def __init__(self, norm: Tensor, radius: Tensor, op: Operator, lay: Layout) -> None:
        self.norm, self.radius, self.op, self.lay = norm, radius, op, lay
        self.kind, alpha, beta = op.settings
        self.beta, self.delta = beta or 0.0, alpha - (beta or 0.0)
        self.outer = 1.0 if self.kind == "segmented" else alpha
        self.floored = norm.clamp_min(FLOOR)  # where r(n) has its limit at a zero patch
        self.inverse, self.inverse_radius = self.floored.reciprocal(), radius.reciprocal()
        self.grad_norm, self.grad_radius = torch.zeros_like(norm), torch.zeros_like(radius)

    def forward(self, value: Tensor, rows: slice, out: Tensor) -> None:
        """out = value h(n)."""
        torch.mul(value, magnitude(self.norm[rows], *self.op.settings, self.radius), out=out)

    def backward(
        self, t: Tensor, a: Tensor, ac: Tensor, rows: slice, out: Tensor, new: Workspace
    ) -> None:
        """out = a r(n), and sums over the filters and over the patches."""
        through, ratio = getattr(self, f"_{self.kind}")(t, rows, new)
        through.addcmul_(ac, ratio, value=-1)
        torch.sum(through, self.lay.channel, keepdim=True, out=self.grad_norm[rows])
        torch.mul(a, ratio, out=out)

    def _ball(self, t: Tensor, rows: slice, new: Workspace) -> tuple[Tensor, Tensor]:
        """t h' and r(n); adds up the gradient in rho, as the next two do."""
        n = self.norm[rows]
        through = torch.le(n, self.radius, out=new()).mul_(t).mul_(self.inverse_radius)
        self._add_to_radius(torch.mul(through, n, out=new()))
        return through, torch.maximum(n, self.radius, out=new()).reciprocal_()

    def _tanh(self, t: Tensor, rows: slice, new: Workspace) -> tuple[Tensor, Tensor]:
        tanh = torch.mul(self.floored[rows], self.inverse_radius, out=new()).tanh_()
        through = torch.ops.aten.tanh_backward.grad_input(t, tanh, grad_input=new())
        through.mul_(self.inverse_radius)
        self._add_to_radius(torch.mul(through, self.norm[rows], out=new()))
        return through, tanh.mul_(self.inverse[rows])

    def _segmented(self, t: Tensor, rows: slice, new: Workspace) -> tuple[Tensor, Tensor]:
        inside = torch.le(self.norm[rows], self.radius, out=new()).mul_(t)
        self._add_to_radius(torch.sub(inside, t, out=new()))
        ratio = torch.mul(self.inverse[rows], self.radius, out=new()).clamp_max_(1)
        ratio.mul_(self.delta).add_(self.beta)
        return inside.mul_(self.delta).add_(t, alpha=self.beta), ratio

    def _add_to_radius(self, value: Tensor) -> None:
        self.grad_radius -= self.lay.sum_patches(value, self.grad_radius)

    def gradients(self) -> tuple[Tensor, Tensor]:
        """The gradients in n and in rho, after all tiles."""
        factor = self.delta if self.kind == "segmented" else self.inverse_radius
        return self.grad_norm, self.grad_radius * factor


Lengths: TypeAlias = SharedLengths | FilterLengths


def shares_radius(op: Operator, radius: Tensor) -> bool:
    return radius.ndim == 0 or op.magnitude not in RADIUS_KINDS
