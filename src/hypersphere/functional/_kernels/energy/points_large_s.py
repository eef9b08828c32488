"""Large s, and Tammes' problem at its end: the largest smallest angle (5.3.7).

E_s^(1/s) tends to 1 / d_min. Powers d^-s soon leave the floating range, their logarithm
F_s = log(sum_{i<j} d_ij^-s) / s does not, and has the same minima. The whole crowd descends at a
few moderate s, one after the other. The best are then followed to the s that is wanted by Newton
steps while s doubles, or, for Tammes, finished by their contacts (contacts.py).
"""

from __future__ import annotations

import math
from functools import partial

import torch
from torch import Tensor

from ...angles import normalize, uniform_on_sphere
from .contacts import largest_cosine, pack_points, solve_contacts
from .descent import descend
from .newton import MAX_DENSE, newton_step
from .truncated_newton import PairDerivatives, truncated_newton

__all__ = ["minimize_large_s"]

# Powers at which the whole crowd descends, one after the other.
STAGES = (40.0, 160.0, 500.0)
# Powers at which a packing too large for its contacts is followed.
LARGE_STAGES = (2e3, 8e3, 3.2e4)
# Coordinates up to which the contacts are solved; the step factors a matrix of this size.
MAX_CONTACTS = 6000
# Shaken copies of the best packings in a round, rounds, and rounds without success to end with.
SHAKES, ROUNDS, QUIET = 16, 20, 3


def minimize_large_s(
    crowd: Tensor,
    s: float,
    half_space: bool,
    finish: bool = True,
    keep: int = 48,
    candidates: int = 12,
) -> tuple[Tensor, bool]:
    """The best configuration (n, d) for a large s, or s = inf, from starts (R, n, d).

    Starting at a small s would lead the whole crowd into the few basins of a smooth energy, where
    the best packings often are not; so it starts at a large s. Also returned: whether the
    configuration is finished to the rounding of the numbers. Without `finish`, configurations too
    large for their contacts are left where the crowd ended.
    """
    stages = [stage for stage in STAGES if stage < s] + ([s] if s <= STAGES[-1] else [])
    for number, stage in enumerate(stages):
        if number == 2:
            crowd = crowd[_rank(crowd, s, half_space)[:keep]]
        crowd = _descend(crowd, stage, half_space)
    crowd = crowd[_different(crowd, s, half_space)[:candidates]]
    if s < math.inf:
        found = [_follow(x, stages[-1], s, half_space) for x in crowd]
    elif crowd[0].numel() - len(crowd[0]) <= MAX_CONTACTS:
        return _pack(crowd, half_space, finish)
    else:
        for stage in LARGE_STAGES if finish else ():
            crowd = _descend(crowd[:1], stage, half_space)
        found = [(crowd[0], not finish)]
    best = int(_rank(torch.stack([x for x, _ in found]), s, half_space)[0])
    return found[best]


def _pack(crowd: Tensor, half_space: bool, shake: bool) -> tuple[Tensor, bool]:
    """The best packing near the configurations (R, n, d).

    Packings lie close together: a slight shift of some points opens one contact and closes another.
    So the best are shaken and packed again, until nothing better turns up.
    """
    n, d = crowd.shape[1:]
    # One start is asked for its own packing, not for a search; 2d points are packed without one
    search = shake and len(crowd) > 1 and n > 2 * d
    shakes = min(SHAKES, int(3e7 / (n * (d - 1)) ** 3)) if search else 0
    crowd = pack_points(crowd, half_space, iterations=40)[0] if shakes else crowd
    generator = torch.Generator().manual_seed(n)
    quiet = 0
    for _ in range(ROUNDS if shakes else 0):
        order = _different(crowd, math.inf, half_space)[:4]
        amplitude = 0.8 * torch.rand(shakes, 1, 1, generator=generator, dtype=crowd.dtype) ** 2
        noise = torch.randn(shakes, n, d, generator=generator, dtype=crowd.dtype)
        moved = crowd[order[torch.arange(shakes) % len(order)]]
        moved = normalize(moved + amplitude * n ** (-1 / (d - 1)) * noise)
        for x in moved[::2]:  # every other one also takes a point elsewhere, into a hole
            point = int(torch.randint(n, (), generator=generator))
            places = uniform_on_sphere(200, d, generator, x.dtype)
            cos = (places @ x.T).abs() if half_space else places @ x.T
            x[point] = places[int(cos.amax(1).argmin())]
        # Where the packing is rigid a dozen steps are enough
        shaken = pack_points(moved, half_space, iterations=24)[0]
        before = float(largest_cosine(crowd[order[:1]], half_space))
        better = float(largest_cosine(shaken, half_space).min()) < before - 1e-9
        quiet = 0 if better else quiet + 1
        crowd = torch.cat([crowd[order], shaken])
        if quiet == QUIET:
            break
    crowd = crowd[_rank(crowd, math.inf, half_space)[:1]] if shakes else crowd
    packed, finished = pack_points(crowd, half_space, iterations=200)
    best = int(largest_cosine(packed, half_space).argmin())
    return solve_contacts(packed[best], half_space), bool(finished[best])


def _descend(crowd: Tensor, s: float, half_space: bool) -> Tensor:
    objective = partial(_log_energy_and_gradient, s=s, half_space=half_space)
    return descend(objective, crowd, iterations=150, tolerance=1e-8)[0]


def _values(crowd: Tensor, s: float, half_space: bool) -> Tensor:
    """What is minimized, for each configuration: (R,)."""
    if s == math.inf:
        return largest_cosine(crowd, half_space)
    return _log_energy_and_gradient(crowd, s, half_space)[0]


def _rank(crowd: Tensor, s: float, half_space: bool) -> Tensor:
    """Order of the configurations, best first."""
    return _values(crowd, s, half_space).argsort()


def _different(crowd: Tensor, s: float, half_space: bool) -> Tensor:
    """Order of the configurations, best first, each basin once: equal values are one basin."""
    values, order = _values(crowd, s, half_space).sort()
    new = torch.ones(len(values), dtype=torch.bool)
    new[1:] = values.diff() > 1e-9
    return order[new]


def _follow(x: Tensor, s: float, end: float, half_space: bool) -> tuple[Tensor, bool]:
    """Newton steps while s doubles up to `end`, for one configuration (n, d)."""
    while s < end:
        x = _newton(x, s, half_space, steps=6)
        s = min(2 * s, end)
    return _newton(x, end, half_space, steps=30), True


def _newton(x: Tensor, s: float, half_space: bool, steps: int) -> Tensor:
    energy = partial(_log_energy, s=s, half_space=half_space)
    if x.shape[0] * (x.shape[1] - 1) > MAX_DENSE:

        def rows(y: Tensor) -> PairDerivatives:
            total = _exponents(y, s, half_space)[0].flatten().logsumexp(0)
            return lambda cos, start: _log_derivatives(cos, start, s, half_space, total)

        return truncated_newton(x, rows, energy, rank_one=s, iterations=steps)[0]
    value = energy(x)
    for _ in range(steps):
        total = _exponents(x, s, half_space)[0].flatten().logsumexp(0)
        first, second = _log_derivatives(x @ x.T, 0, s, half_space, total)
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
    return _exponents_of(x @ x.mT, 0, s, half_space)


def _exponents_of(cos: Tensor, start: int, s: float, half_space: bool) -> tuple[Tensor, Tensor]:
    sides = torch.stack([cos, -cos]) if half_space else cos[None]
    square = (2 - 2 * sides).clamp_min(1e-30)
    exponent = -0.5 * s * square.log()
    exponent.diagonal(offset=start, dim1=-2, dim2=-1).fill_(-torch.inf)
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


def _log_derivatives(
    cos: Tensor, start: int, s: float, half_space: bool, total: Tensor
) -> tuple[Tensor, Tensor]:
    """p psi' and p (psi'' + s psi'^2), psi(g) = -log(2 - 2g) / 2, p the softmax of s psi.

    `total` is the logarithm of the sum of all exp(s psi), over ordered pairs.
    """
    exponent, square = _exponents_of(cos, start, s, half_space)
    p = 2 * (exponent - total).exp()  # each unordered pair has two halves
    first, second = p / square, p * (2 + s) / square.square()
    if half_space:
        return first[0] - first[1], second[0] + second[1]
    return first[0], second[0]
