"""The distance of each direction to its nearest neighbor, d_i = min_{j != i} |u_i - u_j|.

Note [Ties]: in a regular configuration a neuron has several nearest neighbors, and the gradient in
one of them alone would break the symmetry. Neighbors whose cosines agree within TIE eps share the
gradient evenly.

Note [Coinciding neurons]: below 8 sqrt(eps) the cosine does not resolve distances. Rows with such a
neighbor look for it again, by differences of unit vectors. Distances below :func:`nearest_floor`,
8 eps, count as that floor and have no gradient: there is no direction in which to part.

A layer's cosines are held at once. Of many neurons the neighbors are found block by block, without
a graph, and N differences are taken; rows with ties are then computed from their cosines, again in
blocks.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

from ...angles import normalize
from ...host import can_look, known
from . import row_blocks as memory
from .cosines import in_range, pair_cosines
from .row_blocks import directions, recomputed, row_blocks

__all__ = ["nearest_distances", "nearest_floor", "tie_tolerance"]

TIE = 32.0  # cosines of unit vectors are that many eps apart by rounding alone
CLOSE = 64.0  # 2 - 2 cos below that many eps is mostly rounding


def nearest_floor(dtype: torch.dtype) -> float:
    """The smallest distance that differences of unit vectors resolve."""
    return 8 * torch.finfo(dtype).eps


def tie_tolerance(dtype: torch.dtype) -> float:
    """Largest difference of two cosines that count as equal."""
    return TIE * torch.finfo(dtype).eps


def nearest_distances(w: Tensor, half_space: bool) -> Tensor:
    """d_i for rows w (B, N, d) of any length: (B, N).

    With `half_space`, mirror images -u_j of the other neurons count as well.
    """
    sets, n, _ = w.shape
    if sets * n * n > memory.BLOCK_ENTRIES:
        return _by_blocks(w, half_space)
    score = _score(pair_cosines(in_range(w)), half_space, 0)
    best = score.detach().amax(-1)
    distance = _shared_distance(score, best)
    close = _is_close(best)
    if known(close.any()) == 0:
        return distance
    return _replaced(distance, close, _close_distances(w, close, half_space))


def _rows(chosen: Tensor) -> list[tuple[int, Tensor]]:
    """Each set with a chosen row, and its chosen rows; all of them where looking would wait."""
    if not can_look(chosen):
        every = torch.arange(chosen.shape[1], device=chosen.device)
        return [(one, every) for one in range(len(chosen))]
    sets = chosen.any(1).nonzero()[:, 0].tolist()
    return [(one, chosen[one].nonzero()[:, 0]) for one in sets]


def _replaced(values: Tensor, chosen: Tensor, found: Tensor) -> Tensor:
    """`values` with what was found, of all the rows of `_rows(chosen)`, in the chosen places."""
    if not can_look(chosen):
        return torch.where(chosen, found.view_as(values), values)
    return values.index_put(chosen.nonzero(as_tuple=True), found)


def _score(cos: Tensor, half_space: bool, start: int) -> Tensor:
    """Cosines with the other neurons, or their mirror images: the larger, the nearer."""
    own = torch.zeros(cos.shape[-2:], dtype=torch.bool, device=cos.device)
    own.diagonal(offset=start).fill_(True)
    return (cos.abs() if half_space else cos).masked_fill(own, -2)


def _shared_distance(score: Tensor, best: Tensor) -> Tensor:
    """sqrt(2 - 2 cos) with the mean cosine of the neighbors that share; see Note [Ties]."""
    share = (score.detach() >= best[..., None] - tie_tolerance(score.dtype)).to(score.dtype)
    mean = (share * score).sum(-1) / share.sum(-1)
    return (2 - 2 * mean).clamp_min(CLOSE * torch.finfo(score.dtype).eps).sqrt()


def _is_close(best: Tensor) -> Tensor:
    return 2 - 2 * best < CLOSE * torch.finfo(best.dtype).eps


def _close_distances(w: Tensor, close: Tensor, half_space: bool) -> Tensor:
    """d_i of the rows `close` (B, N) by differences, one after the other."""
    found = []
    for one, rows in _rows(close):
        u = normalize(w[one].detach())
        parts = [_by_difference(u, rows[x], half_space) for x in row_blocks(len(rows), len(u))]
        index = torch.cat([index for index, _ in parts])
        sign = torch.cat([sign for _, sign in parts])
        difference = normalize(w[one, rows]) - normalize(w[one, index]) * sign[:, None]
        found.append(_length(difference.square().sum(-1)))
    return torch.cat(found)


def _length(squares: Tensor) -> Tensor:
    return squares.clamp_min(nearest_floor(squares.dtype) ** 2).sqrt()


@torch.no_grad()
def _by_difference(u: Tensor, rows: Tensor, half_space: bool) -> tuple[Tensor, Tensor]:
    """Nearest neighbors of some rows of one set, by differences: the neighbors and their signs."""
    mode = "donot_use_mm_for_euclid_dist"  # the matrix product is what has no digits here
    sides = []
    for other in (u, -u) if half_space else (u,):
        distance = torch.cdist(u[rows], other, compute_mode=mode)
        sides.append(distance.scatter_(1, rows[:, None], math.inf).min(1))
    best, index = sides[0]
    sign = torch.ones_like(best)
    if half_space:
        nearer = sides[1][0] < best
        index = torch.where(nearer, sides[1][1], index)
        sign = torch.where(nearer, -sign, sign)
    return index, sign


# --- many neurons --------------------------------------------------------------------------------


def _by_blocks(w: Tensor, half_space: bool) -> Tensor:
    u, zero = directions(w)
    index, sign, best, tied = _search(u.detach(), half_space)
    neighbor = u.gather(1, index[..., None].expand_as(u)) * sign[..., None]
    squares = (u - neighbor).square().sum(-1)
    # A zero vector is orthogonal to everything: 2 - 2 cos = 2, its difference would give 1.
    squares = squares + zero.to(u.dtype) + zero.gather(1, index).to(u.dtype)
    distance = _length(squares)
    if known(tied.any()) == 0:
        return distance
    shared = []
    for one, rows in _rows(tied):
        for part in row_blocks(len(rows), u.shape[1]):
            some = rows[part]
            alone = len(some) == len(rows)
            shared.append(recomputed(_tied, alone, u[one], some, best[one, some], half_space))
    return _replaced(distance, tied, torch.cat(shared))


@torch.no_grad()
def _search(u: Tensor, half_space: bool) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Nearest neighbor of each row, its sign, its cosine, and whether it has to share (B, N)."""
    sets, n, _ = u.shape
    # Written into one buffer each: small results between large blocks would scatter the memory.
    index = torch.empty(sets, n, dtype=torch.long, device=u.device)
    best, sign = u.new_empty(sets, n), u.new_ones(sets, n)
    tied = torch.empty(sets, n, dtype=torch.bool, device=u.device)
    for part in row_blocks(n, n, sets):
        cos = torch.bmm(u[:, part], u.mT)
        score = _score(cos, half_space, part.start)
        best[:, part], index[:, part] = score.max(-1)
        if half_space:
            chosen = cos.gather(2, index[:, part, None])[..., 0]
            sign[:, part] = torch.where(chosen < 0, -1.0, 1.0)
        near = best[:, part, None] - tie_tolerance(u.dtype)
        tied[:, part] = (score >= near).sum(-1) > 1
    close = _is_close(best)
    for one, rows in _rows(close):
        for part in row_blocks(len(rows), n):
            some = rows[part]
            other, mirrored = _by_difference(u[one], some, half_space)
            here = close[one, some]
            index[one, some] = torch.where(here, other, index[one, some])
            sign[one, some] = torch.where(here, mirrored, sign[one, some])
    return index, sign, best, tied & ~close


def _tied(u: Tensor, rows: Tensor, best: Tensor, half_space: bool) -> Tensor:
    cos = u[rows] @ u.T
    score = (cos.abs() if half_space else cos).scatter(1, rows[:, None], -2.0)
    return _shared_distance(score, best)
