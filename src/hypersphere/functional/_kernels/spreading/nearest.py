"""The distance of each direction to its nearest neighbor, d_i = min_{j != i} |u_i - u_j|.

The neighbors are found without a graph, by blocks of cosines, and the distances are then taken from
N differences, so the backward pass costs O(N d) and small distances keep their digits.

Note [Ties]: in a regular configuration a neuron has several nearest neighbors, and the gradient in
one of them alone would break the symmetry. Neighbors whose cosines agree within TIE eps share the
gradient evenly; their rows are computed from cosines, a block at a time.

Note [Coinciding neurons]: below 8 sqrt(eps) the cosine does not resolve distances. These rows look
for their neighbor again, by differences. Distances below :func:`nearest_floor`, 8 eps, count as
that floor and have no gradient: there is no direction in which to part.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

from .blocks import recomputed, row_blocks

__all__ = ["nearest_distances", "nearest_floor", "tie_tolerance"]

TIE = 32.0  # cosines of unit vectors are that many eps apart by rounding alone


def nearest_floor(dtype: torch.dtype) -> float:
    """The smallest distance that differences of unit vectors resolve."""
    return 8 * torch.finfo(dtype).eps


def tie_tolerance(dtype: torch.dtype) -> float:
    """Largest difference of two cosines that count as equal."""
    return TIE * torch.finfo(dtype).eps


def nearest_distances(u: Tensor, zero: Tensor, half_space: bool) -> Tensor:
    """d_i for unit rows u (B, N, d), of which `zero` (B, N) are zero vectors: (B, N).

    With `half_space`, mirror images -u_j of the other neurons count as well.
    """
    index, sign, best, tied = _search(u.detach(), half_space)
    neighbor = u.gather(1, index[..., None].expand_as(u)) * sign[..., None]
    squares = (u - neighbor).square().sum(-1)
    # A zero vector is orthogonal to everything: 2 - 2 cos = 2, its difference would give 1.
    squares = squares + zero.to(u.dtype) + zero.gather(1, index).to(u.dtype)
    single = squares.clamp_min(nearest_floor(u.dtype) ** 2).sqrt()
    if not bool(tied.any()):
        return single
    n, parts = u.shape[1], []
    blocks = list(row_blocks(n, n, len(u)))
    for part in blocks:
        if bool(tied[:, part].any()):
            args = (u, part.start, part.stop, best[:, part], half_space)
            parts.append(recomputed(_mean_over_ties, len(blocks) == 1, *args))
        else:
            parts.append(single[:, part])
    return torch.where(tied, torch.cat(parts, 1), single)


@torch.no_grad()
def _search(u: Tensor, half_space: bool) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Nearest neighbor of each row, its sign, its cosine, and whether it has to share (B, N)."""
    n = u.shape[1]
    found: list[tuple[Tensor, ...]] = []
    for part in row_blocks(n, n, len(u)):
        cos = torch.bmm(u[:, part], u.mT)
        score = _score(cos, half_space, part.start)
        best, index = score.max(-1)
        sign = torch.where(half_space & (cos.gather(2, index[..., None])[..., 0] < 0), -1.0, 1.0)
        ties = (score >= best[..., None] - tie_tolerance(u.dtype)).sum(-1)
        found.append((index, sign.to(u.dtype), best, ties > 1))
    index, sign, best, tied = (torch.cat(parts, 1) for parts in zip(*found, strict=True))
    close = 2 - 2 * best < 64 * torch.finfo(u.dtype).eps
    if bool(close.any()):
        for one in close.any(1).nonzero()[:, 0].tolist():
            rows = close[one].nonzero()[:, 0]
            for part in row_blocks(len(rows), n):
                some = rows[part]
                index[one, some], sign[one, some] = _by_difference(u[one], some, half_space)
    return index, sign, best, tied & ~close


def _score(cos: Tensor, half_space: bool, start: int) -> Tensor:
    """Cosines with the other neurons, or their mirror images: the larger, the nearer."""
    score = cos.abs() if half_space else cos.clone()
    score.diagonal(offset=start, dim1=-2, dim2=-1).fill_(-2)
    return score


def _by_difference(u: Tensor, rows: Tensor, half_space: bool) -> tuple[Tensor, Tensor]:
    """Nearest neighbors of some rows of one set, by differences: the neighbors and their signs."""
    mode = "donot_use_mm_for_euclid_dist"  # the matrix product is what has no digits here
    distance = torch.cdist(u[rows], u, compute_mode=mode)
    distance.scatter_(1, rows[:, None], math.inf)
    best, index = distance.min(1)
    sign = torch.ones_like(best)
    if half_space:
        distance = torch.cdist(u[rows], -u, compute_mode=mode)
        distance.scatter_(1, rows[:, None], math.inf)
        mirrored, other = distance.min(1)
        index, sign = (
            torch.where(mirrored < best, other, index),
            torch.where(mirrored < best, -sign, sign),
        )
    return index, sign


def _mean_over_ties(u: Tensor, start: int, stop: int, best: Tensor, half_space: bool) -> Tensor:
    """sqrt(2 - 2 cos), averaged over the neighbors that share; see Note [Ties]."""
    score = _score(torch.bmm(u[:, start:stop], u.mT), half_space, start)
    share = (score.detach() >= best[..., None] - tie_tolerance(u.dtype)).to(u.dtype)
    distance = (2 - 2 * score).clamp_min(64 * torch.finfo(u.dtype).eps).sqrt()
    return (share * distance).sum(-1) / share.sum(-1).clamp_min(1)
