"""Tammes' problem, the limit s -> infinity of the energy: the largest smallest angle (5.3.7).

E_s^(1/s) tends to 1 / d_min. Its logarithm, F_s = log(sum_{i<j} d_ij^-s) / s, is followed from a
moderate to an enormous s: first by L-BFGS for the whole crowd, then by Newton steps for the best.
What remains is log(contacts) / s, far below the rounding of an angle.
"""

from __future__ import annotations

from functools import partial

import torch
from torch import Tensor

from .points import MAX_NEWTON, descend, newton_step

__all__ = ["max_min"]


def max_min(crowd: Tensor, half_space: bool, keep: int = 32, finish: int = 6) -> Tensor:
    """The configuration of largest separation found from random starts (R, n, d): (n, d).

    Starting at a small s would lead the whole crowd into the few basins of a smooth energy, where
    the best packings often are not; so it starts steep.
    """
    for s in (40.0, 160.0, 500.0):
        if s == 500.0:
            crowd = crowd[largest_cosine(crowd, half_space).argsort()[:keep]]
        objective = partial(_sharp, s=s, half_space=half_space)
        crowd, _ = descend(objective, crowd, iterations=150, tolerance=1e-8)
    order = largest_cosine(crowd, half_space).argsort()
    best = torch.stack([_follow(x, half_space) for x in crowd[order[:finish]]])
    return best[int(largest_cosine(best, half_space).argmin())]


def largest_cosine(x: Tensor, half_space: bool) -> Tensor:
    """Largest cosine between different points of each configuration, (R, n, d) -> (R,)."""
    cos = x @ x.mT
    cos = cos.abs() if half_space else cos
    cos.diagonal(dim1=-2, dim2=-1).fill_(-1)
    return cos.amax((-2, -1))


def _follow(x: Tensor, half_space: bool, last: float = 2e11) -> Tensor:
    """Newton steps while s doubles, for one configuration (n, d)."""
    if x.shape[0] * (x.shape[1] - 1) > MAX_NEWTON:
        return x
    best, s = x, 500.0
    while s < last:
        value = _log_energy(x, s, half_space)
        for _ in range(6):
            first, second = _log_derivatives(x, s, half_space)
            energy = partial(_log_energy, s=s, half_space=half_space)
            new = newton_step(x, first, second, energy, value, rank_one=s)
            if new is None:
                break
            change = value - new[1]
            x, value = new
            if bool(change < 1e-3 / s):
                break
        if bool(largest_cosine(x[None], half_space) < largest_cosine(best[None], half_space)):
            best = x
        s *= 2
    return best


def _exponents(x: Tensor, s: float, half_space: bool) -> tuple[Tensor, Tensor]:
    """-s log d_ij and d_ij^2 for all ordered pairs; the half space adds the mirrored."""
    cos = x @ x.mT
    sides = torch.stack([cos, -cos]) if half_space else cos[None]
    square = (2 - 2 * sides).clamp_min(1e-30)
    exponent = -0.5 * s * square.log()
    exponent.diagonal(dim1=-2, dim2=-1).fill_(-torch.inf)
    return exponent, square


def _sharp(x: Tensor, s: float, half_space: bool) -> tuple[Tensor, Tensor]:
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
