"""Large s, and Tammes' problem at its end: the largest smallest angle (5.3.7).

E_s^(1/s) tends to 1 / d_min. Powers d^-s soon leave the floating range, their logarithm
F_s = log(sum_{i<j} d_ij^-s) / s does not, and has the same minima. It is followed from a moderate s
to the s that is wanted: by L-BFGS for the whole crowd, then by Newton steps for the best. For
Tammes that is an enormous s, where the rest, log(contacts) / s, is below the rounding of an angle.
"""

from __future__ import annotations

import math
from functools import partial

import torch
from torch import Tensor

from .descent import descend
from .newton import MAX_NEWTON, newton_step

__all__ = ["minimize_large_s"]

# Powers at which the whole crowd descends, one after the other.
STAGES = (40.0, 160.0, 500.0)
# Stands for infinity: the last power for Tammes.
LAST = 2e11


def minimize_large_s(
    crowd: Tensor, s: float, half_space: bool, keep: int = 32, finish: int = 6
) -> Tensor:
    """The best configuration (n, d) found for a large s, or s = inf, from random starts (R, n, d).

    Starting at a small s would lead the whole crowd into the few basins of a smooth energy, where
    the best packings often are not; so it starts at a large s.
    """
    stages = [stage for stage in STAGES if stage < s] + ([s] if s <= STAGES[-1] else [])
    for number, stage in enumerate(stages):
        if number == 2:
            crowd = crowd[_rank(crowd, s, half_space)[:keep]]
        objective = partial(_log_energy_and_gradient, s=stage, half_space=half_space)
        crowd, _ = descend(objective, crowd, iterations=150, tolerance=1e-8)
    best = torch.stack(
        [_follow(x, stages[-1], s, half_space) for x in crowd[_rank(crowd, s, half_space)[:finish]]]
    )
    return best[int(_rank(best, s, half_space)[0])]


def _rank(crowd: Tensor, s: float, half_space: bool) -> Tensor:
    """Order of the configurations, best first."""
    if s == math.inf:
        return largest_cosine(crowd, half_space).argsort()
    return _log_energy_and_gradient(crowd, s, half_space)[0].argsort()


def largest_cosine(x: Tensor, half_space: bool) -> Tensor:
    """Largest cosine between different points of each configuration, (R, n, d) -> (R,)."""
    cos = x @ x.mT
    cos = cos.abs() if half_space else cos
    cos.diagonal(dim1=-2, dim2=-1).fill_(-1)
    return cos.amax((-2, -1))


def _follow(x: Tensor, s: float, end: float, half_space: bool) -> Tensor:
    """Newton steps while s doubles up to `end`, for one configuration (n, d)."""
    if x.shape[0] * (x.shape[1] - 1) > MAX_NEWTON:
        return x
    if end < math.inf:
        while s < end:
            x = _newton(x, s, half_space, steps=6)
            s = min(2 * s, end)
        return _newton(x, end, half_space, steps=30)
    best = x
    while s < LAST:
        x = _newton(x, s, half_space, steps=6)
        if bool(largest_cosine(x[None], half_space) < largest_cosine(best[None], half_space)):
            best = x
        s *= 2
    return best


def _newton(x: Tensor, s: float, half_space: bool, steps: int) -> Tensor:
    energy = partial(_log_energy, s=s, half_space=half_space)
    value = energy(x)
    for _ in range(steps):
        first, second = _log_derivatives(x, s, half_space)
        new = newton_step(x, first, second, energy, value, rank_one=s)
        if new is None:
            break
        change = value - new[1]
        x, value = new
        if steps < 10 and bool(change < 1e-3 / s):
            break
    return x


def _exponents(x: Tensor, s: float, half_space: bool) -> tuple[Tensor, Tensor]:
    """-s log d_ij and d_ij^2 for all ordered pairs; the half space adds the mirrored."""
    cos = x @ x.mT
    sides = torch.stack([cos, -cos]) if half_space else cos[None]
    square = (2 - 2 * sides).clamp_min(1e-30)
    exponent = -0.5 * s * square.log()
    exponent.diagonal(dim1=-2, dim2=-1).fill_(-torch.inf)
    return exponent, square


def _log_energy_and_gradient(x: Tensor, s: float, half_space: bool) -> tuple[Tensor, Tensor]:
    """F_s and its gradient for a crowd (R, n, d) of any lengths."""
    norm = x.norm(dim=-1, keepdim=True)
    u = x / norm
    exponent, square = _exponents(u, s, half_space)
    total = exponent.movedim(0, 1).flatten(1).logsumexp(1)
    slope = (exponent - total[:, None, None]).exp() / square
    gradient = 2 * (slope[0] - slope[1] if half_space else slope[0]) @ u
    gradient -= (gradient * u).sum(-1, keepdim=True) * u
    return total / s, gradient / norm


def _log_energy(x: Tensor, s: float, half_space: bool) -> Tensor:
    return _exponents(x, s, half_space)[0].flatten().logsumexp(0) / s


def _log_derivatives(x: Tensor, s: float, half_space: bool) -> tuple[Tensor, Tensor]:
    """p psi' and p (psi'' + s psi'^2), psi(g) = -log(2 - 2g) / 2, p the softmax of s psi."""
    exponent, square = _exponents(x, s, half_space)
    p = 2 * (exponent - exponent.flatten().logsumexp(0)).exp()  # each unordered pair has two halves
    first, second = p / square, p * (2 + s) / square.square()
    if half_space:
        return first[0] - first[1], second[0] + second[1]
    return first[0], second[0]
