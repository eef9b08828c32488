"""Where neurons are far away: minima over unit vectors v of F(v . u_1, ..., v . u_N).

F is a potential of the neurons that grows with each cosine. A crowd of points descends on the
sphere by gradients, each with a step length of its own (Barzilai and Borwein's <dv, dv> / <dv, dg>,
shortened where F did not fall), so each F falls from step to step.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from ...angles import normalize, uniform_on_sphere
from .cosines import inverse_norms

__all__ = ["Objective", "deepest_share", "find_holes", "starting_points"]

Objective = Callable[[Tensor], tuple[Tensor, Tensor]]
"""Cosines (B, P, N) -> F (B, P) and its slope in each cosine (B, P, N)."""

LONGEST = 0.5  # radians a point may move in one step


def starting_points(
    w: Tensor, count: int, start: Tensor | None, generator: torch.Generator | None
) -> Tensor:
    """`start`, the antipode of the mean direction and random directions: (B, count, d)."""
    sets, _, d = w.shape
    found = w.new_zeros(sets, 0, d) if start is None else start[:, :count]
    if found.shape[1] < count:
        # In high dimensions all neurons may lie on one side: the hole is opposite to their mean.
        mean = torch.bmm(inverse_norms(w)[:, None], w)
        centered = (mean == 0).all(-1, keepdim=True)
        opposite = normalize(torch.where(centered, torch.ones_like(mean), -mean))
        found = torch.cat([found, opposite], 1)
    missing = count - found.shape[1]
    if missing:
        random = uniform_on_sphere(sets * missing, d, generator, torch.float32)
        found = torch.cat([found, random.to(w).view(sets, missing, d)], 1)
    return found


@torch.no_grad()
def find_holes(w: Tensor, v: Tensor, objective: Objective, steps: int) -> Tensor:
    """The points v (B, P, d) after `steps` steps of descent, those of the smallest F first."""
    inverse = inverse_norms(w)[:, None]
    value, slope = _evaluate(w, inverse, v, objective)
    length = LONGEST / 2 / torch.linalg.vector_norm(slope, dim=-1).clamp_min(1e-30)
    for _ in range(steps):
        move = length[..., None] * slope
        size = torch.linalg.vector_norm(move, dim=-1, keepdim=True)
        trial = v - move * (LONGEST / size.clamp_min(1e-30)).clamp_max(1)
        trial /= torch.linalg.vector_norm(trial, dim=-1, keepdim=True)
        new_value, new_slope = _evaluate(w, inverse, trial, objective)
        better = new_value <= value
        change, bend = trial - v, new_slope - slope
        curvature = (change * bend).sum(-1)
        spectral = change.square().sum(-1) / curvature
        unknown = length * torch.where(better, 2.0, 0.25)
        length = torch.where(better & (curvature > 0), spectral, unknown)
        v = torch.where(better[..., None], trial, v)
        slope = torch.where(better[..., None], new_slope, slope)
        value = torch.where(better, new_value, value)
    order = value.argsort(1)
    return v.gather(1, order[..., None].expand_as(v))


def _evaluate(w: Tensor, inverse: Tensor, v: Tensor, objective: Objective) -> tuple[Tensor, Tensor]:
    """F and its gradient tangent to the sphere, for rows w with 1 / |w| = inverse."""
    value, slope = objective(torch.bmm(v, w.mT).mul_(inverse))
    gradient = torch.bmm(slope.mul_(inverse), w)
    return value, torch.addcmul(gradient, (gradient * v).sum(-1, keepdim=True), v, value=-1)


@torch.no_grad()
def deepest_share(value: Tensor, v: Tensor, half_space: bool) -> Tensor:
    """How much each point counts (B, P): the points of the smallest F evenly, each place once.

    Symmetric configurations have many equal holes. Their mean gradient vanishes where that of one
    of them does not. Points that met in one hole are one place.
    """
    smallest = value.amin(1, keepdim=True)
    tolerance = torch.finfo(value.dtype).eps ** 0.5
    equal = value <= smallest + tolerance * smallest.abs().clamp_min(1)
    cos = torch.bmm(v, v.mT)
    cos = cos.abs() if half_space else cos
    # Values that agree to sqrt(eps) leave the place itself uncertain by eps^(1/4).
    same = (cos > 1 - 4 * tolerance) & equal[:, None]
    share: Tensor = equal / same.sum(-1).clamp_min(1)
    return share / share.sum(1, keepdim=True)
