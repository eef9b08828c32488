"""Symmetric matrices in C++, where the machine has a compiler: symmetric.cpp.

A product that is symmetric or skew, and the elimination of a symmetric matrix, take half the work.
"""

from __future__ import annotations

from ctypes import c_float, c_int, c_void_p
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor

from ..libraries import library, trial
from .blas import gemm
from .elimination import WIDTH, can_eliminate, close_to, matrices_of, team

__all__ = ["Solved", "half_product", "solve", "solve_again"]


class Solved(NamedTuple):
    """What solving again needs, and the rows of the solutions (..., shifts, n, d)."""

    factors: Tensor
    inverses: Tensor
    rows: Tensor


def half_product(
    A: Tensor, B: Tensor, sign: int = 1, turned: bool = False, scale: float = 1.0
) -> Tensor:
    """A B, or A^T B if `turned`, where that is symmetric (sign 1) or skew (-1), times `scale`.

    For matrices (..., d, d), outside of autograd.
    """
    if (
        not (can_eliminate(A) and can_eliminate(B))
        or A.shape[-1] <= 2 * WIDTH
        or _library() is None
    ):
        product = (A.mT if turned else A) @ B
        return product if scale == 1.0 else product.mul_(scale)
    A, B, (*lead, d) = A.contiguous(), B.contiguous(), A.shape[:-1]
    C = torch.empty_like(A)
    for places in matrices_of(A, B, C, lead=lead):
        _library().half_product(gemm(), *places, scale, d, turned, sign, team())
    return C


def solve(M: Tensor, shifts: list[float], rows: Tensor) -> Solved | None:
    """(M + s I)^{-1} V of positive definite M (..., d, d) for each shift, V by rows (..., n, d).

    None where there is no library, or the types are others.
    """
    if not (can_eliminate(M) and can_eliminate(rows)) or _library() is None:
        return None
    M, rows, (*lead, n, d), count = M.contiguous(), rows.contiguous(), rows.shape, len(shifts)
    factors, inverses = M.new_empty(*lead, count, d, d), M.new_empty(*lead, count, d, WIDTH)
    y, added = M.new_empty(*lead, count, n, d), M.new_tensor(shifts)
    for m, v, *places in matrices_of(M, rows, factors, inverses, y, lead=lead):
        own = (m, added.data_ptr(), v, *places)
        _library().solve(gemm(), *own, d, n, count, team())
    return Solved(factors, inverses, y)


def solve_again(factors: Tensor, inverses: Tensor, rows: Tensor) -> Tensor:
    """The same solutions (..., shifts, n, d) for other rows."""
    factors, inverses = factors.contiguous(), inverses.contiguous()  # hooks may turn them
    rows, (*lead, n, d), count = rows.contiguous(), rows.shape, factors.shape[-3]
    y = rows.new_empty(*lead, count, n, d)
    for places in matrices_of(factors, inverses, rows, y, lead=lead):
        _library().solve_again(gemm(), *places, d, n, count, team())
    return y


@cache
def _library() -> Any:
    """The functions of symmetric.cpp, or None; tried once."""
    if gemm() is None:
        return None
    path = Path(__file__).with_name("symmetric.cpp")
    found = library(path.read_text(), headers=path.parent)
    if found is None:
        return None
    for name, places in {"half_product": 4, "solve": 7, "solve_again": 5}.items():
        function = getattr(found, name)
        function.argtypes, function.restype = [c_void_p] * places + [c_int] * 4, None
    found.half_product.argtypes = [c_void_p] * 4 + [c_float] + [c_int] * 4
    return found if _agrees(found) else None


@trial
def _agrees(found: Any) -> bool:
    """Whether three blocks and a rest give what torch gives, by all threads."""
    d, n, count = 3 * WIDTH + 5, 3, 2
    with torch.no_grad(), torch.device("cpu"):
        A = torch.linspace(-9.0, 700.0, d * d, dtype=torch.float32).sin().view(d, d) / 8
        v = torch.linspace(-3.0, 5.0, n * d, dtype=torch.float32).cos().view(n, d)
        W, eye, shifts = A - A.mT, torch.eye(d, dtype=torch.float32), v.new_tensor([1.0, 3.0])
        M, cube = torch.empty_like(A), torch.empty_like(A)
        factors, inverses = A.new_empty(count, d, d), A.new_empty(count, d, WIDTH)
        y, again = A.new_empty(2, count, n, d).unbind()

        def call(function: Any, *tensors: Tensor, numbers: tuple[float, ...]) -> None:
            function(gemm(), *(t.data_ptr() for t in tensors), *numbers, team())

        call(found.half_product, A, A, M, numbers=(1.0, d, True, 1))
        square = W @ W
        call(found.half_product, W, square, cube, numbers=(0.5, d, False, -1))
        call(found.solve, M, shifts, v, factors, inverses, y, numbers=(d, n, count))
        call(found.solve_again, factors, inverses, v, again, numbers=(d, n, count))
        solutions = torch.stack([torch.linalg.solve(M + s * eye, v.mT).mT for s in (1.0, 3.0)])
        expected = [A.mT @ A, 0.5 * W @ square, solutions, solutions]
        return all(map(close_to, [M, cube, y, again], expected))
