"""Tammes' problem by its contacts: the largest cosine made as small as possible (5.3.7).

A packing is held by the pairs at the smallest distance. Each step solves the linear program of the
nearly touching pairs within a trust region; near a rigid packing this is Newton's method on the
equations of the contacts and doubles the digits with each step. At the end those equations alone
are solved, for the pairs that carry a force.
"""

from __future__ import annotations

import torch
from torch import Tensor

from ...angles import normalize
from .linear_program import ContactRows, smallest_maximum

__all__ = ["largest_cosine", "pack_points", "solve_contacts", "tangent_bases"]

# Pairs beyond which a step takes only the nearest ones.
MAX_PAIRS = 200_000
# Entries of the normal matrices of the configurations that move together.
MAX_ENTRIES = 2**25


def largest_cosine(x: Tensor, half_space: bool) -> Tensor:
    """Largest cosine between different points of each configuration, (R, n, d) -> (R,)."""
    cos = x @ x.mT
    cos = cos.abs() if half_space else cos
    cos.diagonal(dim1=-2, dim2=-1).fill_(-1)
    return cos.amax((-2, -1))


def pack_points(
    x: Tensor, half_space: bool = False, iterations: int = 100
) -> tuple[Tensor, Tensor]:
    """The packings near the configurations x (R, n, d), and (R,) which of them are finished.

    Finished is a packing that no step improves beyond the rounding of a cosine.
    """
    size = x.shape[1] * (x.shape[2] - 1)
    parts = torch.split(x, max(1, MAX_ENTRIES // size**2))
    packed, finished = zip(*(_pack(part, half_space, iterations) for part in parts), strict=True)
    return torch.cat(packed), torch.cat(finished)


def _pack(x: Tensor, half_space: bool, iterations: int) -> tuple[Tensor, Tensor]:
    final = x.clone()
    finished = torch.zeros(len(x), dtype=torch.bool)
    index = torch.arange(len(x))
    n, d = x.shape[1:]
    best = largest_cosine(x, half_space)
    radius = torch.full_like(best, 0.1 * n ** (-1 / (d - 1)))
    tolerance = 1e-4
    for _ in range(iterations):
        basis = tangent_bases(x)
        pairs, _ = _near_pairs(x, basis, best, radius, half_space)
        y, _, promise = smallest_maximum(pairs, tolerance)
        trial = normalize(x + radius[:, None, None] * torch.einsum("rnab,rnb->rna", basis, y))
        reached = largest_cosine(trial, half_space)
        promised, gained = -radius * promise, best - reached
        better = gained > 0
        x = torch.where(better[:, None, None], trial, x)
        best = torch.where(better, reached, best)
        # Second-order errors are of order radius^2: a ratio far below 1 tells that they rule.
        # Steps that stay inside shrink it as well, since what the program leaves is relative to it.
        longest = y.abs().amax((1, 2))
        inside = torch.where(longest > 0.9, 2.0, (2 * longest).clamp_min(0.1))
        factor = torch.where(gained > 0.75 * promised, inside, 1.0)
        radius = radius * torch.where(gained < 0.25 * promised, 0.25, factor)
        done = ((promised < 4e-16) & (tolerance < 1e-10)) | (radius < 1e-15)
        # Far away from the end a rough solution serves as well.
        tolerance = min(1e-4, max(1e-11, 1e-3 * float((-promise).clamp_min(0).amin())))
        if bool(done.any()):
            final[index[done]], finished[index[done]] = x[done], True
            keep = ~done
            if not bool(keep.any()):
                return final, finished
            index, x, best, radius = index[keep], x[keep], best[keep], radius[keep]
    final[index] = x
    return final, finished


def tangent_bases(x: Tensor) -> Tensor:
    """Orthonormal bases of the tangent spaces, (..., n, d) -> (..., n, d, d - 1)."""
    d = x.shape[-1]
    eye = torch.eye(d, dtype=x.dtype).expand(*x.shape, d)
    # The trailing d - 1 columns of an orthogonal basis whose first vector is x_i
    basis: Tensor = torch.linalg.qr(torch.cat([x[..., None], eye], -1)).Q
    return basis[..., 1:]


def _near_pairs(
    x: Tensor, basis: Tensor, largest: Tensor, radius: Tensor, half_space: bool
) -> tuple[ContactRows, Tensor]:
    """Pairs that a step of this radius could bring into contact, and the signs of their cosines."""
    n, d = x.shape[1:]
    cos = x @ x.mT
    i, j = torch.triu_indices(n, n, 1)
    cos = cos[:, i, j]
    sign = torch.where(cos < 0, -1.0, 1.0) if half_space else torch.ones_like(cos)
    gaps = largest[:, None] - sign * cos
    # Lengths of both moves are at most radius sqrt(d - 1), and c itself may fall by as much
    near = gaps <= 4 * radius[:, None] * (d - 1) ** 0.5
    most = min(MAX_PAIRS, int(near.sum(1).max()))
    gap, chosen = gaps.topk(most, dim=1, largest=False, sorted=False)
    near = near.gather(1, chosen)
    sign = sign.gather(1, chosen)
    i, j = i[chosen], j[chosen]
    number = torch.arange(len(x))[:, None]
    counted = torch.where(near, sign, 0.0)[..., None]
    left = counted * torch.einsum("rkab,rka->rkb", basis[number, i], x[number, j])
    right = counted * torch.einsum("rkab,rka->rkb", basis[number, j], x[number, i])
    gap = torch.where(near, gap.clamp_min(0) / radius[:, None], 1e6)
    return ContactRows(n, i, j, left, right, gap), sign


def solve_contacts(x: Tensor, half_space: bool) -> Tensor:
    """Newton's method on g_ij = c over the contacts of a packing (n, d), while c falls.

    The equations may be fewer or more than the unknowns: steps are those of minimum norm.
    """
    best = largest_cosine(x[None], half_space)
    for _ in range(4):
        basis = tangent_bases(x)
        pairs, signs = _near_pairs(
            x[None], basis[None], best, torch.full_like(best, 1e-9), half_space
        )
        n, m = len(x), basis.shape[2]
        if pairs.i.numel() * n * m > 2e7:
            break
        force = smallest_maximum(pairs)[1][0]
        held = (force > 1e-7 * force.max()).nonzero()[:, 0]
        i, j = pairs.i[0, held], pairs.j[0, held]
        rows = torch.zeros(len(held), n, m, dtype=x.dtype)
        rows[torch.arange(len(held)), i] += pairs.left[0, held]
        rows[torch.arange(len(held)), j] += pairs.right[0, held]
        rows = torch.cat([rows.flatten(1), -torch.ones(len(held), 1, dtype=x.dtype)], 1)
        rest = best - signs[0, held] * (x[i] * x[j]).sum(1)
        step = torch.linalg.lstsq(rows, rest[:, None], driver="gelsd").solution[:-1, 0]
        trial = normalize(x + torch.einsum("nab,nb->na", basis, step.view(n, m)))
        reached = largest_cosine(trial[None], half_space)
        if not bool(reached < best):
            break
        x, best = trial, reached
    return x
