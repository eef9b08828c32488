"""Fixed class directions, as far apart from each other as the sphere allows."""

from __future__ import annotations

import math
from functools import lru_cache

import torch
from torch import Tensor

from .points import search_points

__all__ = ["prototypes", "simplex_prototypes"]

# Classes up to which the packing is searched; its steps hold (C, C) matrices. Beyond, the energy of
# a finite power is minimized block by block.
MAX_PACKING = 2000
SMOOTH = 8.0
# Work C^2 d of one start for which there is a second one.
ONE_START = 5e4


def simplex_prototypes(C: int, dim: int | None = None) -> Tensor:
    """C unit vectors with pairwise cosine -1 / (C - 1), the corners of a regular simplex.

    No C directions have a smaller largest cosine, in any dimension; classes and class means of a
    collapsed network form this figure. In closed form: for dim >= C each class has dim // C
    coordinates of its own, in which it is positive and all others are negative, so that features
    after a ReLU come near it (cosine sqrt(1 - 1/C)). For dim = C - 1 they are the rows of Helmert's
    orthonormal basis of the vectors of zero sum, and need features of both signs.

    Args:
        C: number of classes, >= 1.
        dim: dimension, >= C - 1; coordinates beyond the last multiple of C are zero. Default:
            C - 1, at least 1.

    Returns:
        (C, dim), float64.

    >>> simplex_prototypes(3)
    tensor([[ 0.8660,  0.5000],
            [-0.8660,  0.5000],
            [ 0.0000, -1.0000]], dtype=torch.float64)
    """
    _check(C, 1 if dim is None else dim)
    dim = max(1, C - 1) if dim is None else dim
    if dim < C - 1:
        raise ValueError(
            f"a simplex of {C} classes needs dim >= {C - 1}, got {dim}; prototypes({C}, {dim}) "
            f"spreads more classes than that"
        )
    found = torch.zeros(C, dim, dtype=torch.float64)
    if C == 1:
        found[0, 0] = 1
        return found
    if dim >= C:
        copies = dim // C
        centered = torch.eye(C, dtype=torch.float64) - 1 / C  # rows of length sqrt((C - 1) / C)
        scale = math.sqrt(C / ((C - 1) * copies))
        found[:, : C * copies] = centered.repeat_interleave(copies, 1) * scale
        return found
    # Column k - 1 is (1, ..., 1, -k, 0, ..., 0) / sqrt(k (k + 1)), with k ones.
    k = torch.arange(1, C, dtype=torch.float64)
    ones = torch.ones(C, C - 1, dtype=torch.float64).triu() / (k * (k + 1)).sqrt()
    ones[torch.arange(1, C), torch.arange(C - 1)] = -(k / (k + 1)).sqrt()
    return ones * math.sqrt(C / (C - 1))


def prototypes(C: int, dim: int, seed: int = 0) -> Tensor:
    """C unit vectors in R^dim whose largest cosine is as small as possible, or as found.

    ==================  ==========================================  ======================
    C <= dim + 1        regular simplex                             cosine -1/(C-1), optimal
    dim + 1 < C <= 2d   simplices in C - dim orthogonal subspaces   cosine 0, optimal (Rankin)
    2d < C              the point solver, :func:`minimize_energy`   the best found
    ==================  ==========================================  ======================

    The solver packs (s = inf) up to 2000 classes, from 1 to 16 starts by the size of the problem,
    and minimizes the energy of s = 8 above. Results are kept for the process.

    Args:
        C: number of classes, >= 1.
        dim: dimension, >= 1; with dim 1 there are two directions.
        seed: of the solver; the same seed gives the same points.

    Returns:
        (C, dim), float64.

    >>> x = prototypes(6, 4)  # two triangles in orthogonal planes
    >>> (x @ x.T).fill_diagonal_(-1).amax().round(decimals=6)
    tensor(0., dtype=torch.float64)
    """
    _check(C, dim)
    if dim == 1 and C > 2:
        raise ValueError(f"a line has only two directions: {C} classes need dim >= 2")
    return _prototypes(C, dim, seed).clone()


@lru_cache(maxsize=16)
def _prototypes(C: int, dim: int, seed: int) -> Tensor:
    if dim + 1 >= C:
        return simplex_prototypes(C, dim)
    if 2 * dim >= C:
        return _orthogonal_simplices(C, dim)
    restarts = max(1, min(16, int(ONE_START / (C * C * dim))))
    s = math.inf if C <= MAX_PACKING else SMOOTH
    return search_points(C, dim, s, False, restarts, seed, finish=False)[0]


def _orthogonal_simplices(C: int, dim: int) -> Tensor:
    """C - dim simplices of nearly equal size, whose dimensions add up to dim."""
    parts = C - dim
    sizes = [dim // parts + (i < dim % parts) for i in range(parts)]
    found = torch.zeros(C, dim, dtype=torch.float64)
    row = column = 0
    for size in sizes:
        found[row : row + size + 1, column : column + size] = simplex_prototypes(size + 1)
        row, column = row + size + 1, column + size
    return found


def _check(C: int, dim: int) -> None:
    if C < 1 or dim < 1 or int(C) != C or int(dim) != dim:
        raise ValueError(f"expected whole numbers of classes C >= 1 and dim >= 1, got {C}, {dim}")
