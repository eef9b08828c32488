"""Elimination in C++, where the machine has a compiler: elimination.cpp.

LAPACK's factorizations and triangular solves run at half the speed of products on some processors,
and hardly gain from a second thread. I - W with a skew W needs no exchange of rows as long as W is
not large, and Q - S, with Q orthogonal and the right signs S, needs none at all.
"""

from __future__ import annotations

from ctypes import c_float, c_int, c_void_p
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor

from ...host import can_look
from ..decoupled.native.libraries import library, switched_off
from .blas import gemm

__all__ = ["Eliminated", "cayley", "cayley_gradient", "determinant", "solve", "solve_again"]

WIDTH = 64  # as in elimination.cpp
# An error beyond this asks for exchanges of rows, or for float64: Note [Large W].
TOLERANCE = torch.finfo(torch.float32).eps ** 0.75


class Eliminated(NamedTuple):
    """What the gradient needs of a solution: the factors of the matrix, and Y."""

    factors: Tensor
    inverses: Tensor
    Y: Tensor


def cayley(numbers: Tensor, V: Tensor) -> tuple[Tensor, Eliminated] | None:
    """R V of packed W (..., d (d - 1) / 2) and V (..., d, n), outside of autograd.

    None where there is no library, the types are others, or W is so large that digits were lost.
    """
    if not (_suits(numbers) and _suits(V)) or _library() is None:
        return None
    numbers, v = numbers.contiguous(), V.mT.contiguous()
    *lead, n, d = v.shape
    factors, inverses = v.new_empty(*lead, d + n, d), v.new_empty(*lead, d, WIDTH)
    y, turned = torch.empty_like(v), torch.empty_like(v)
    for places in _matrices(numbers, v, factors, inverses, y, turned, lead=lead):
        error = _library().cayley(gemm(), *places, d, n, _threads(d))
        if not error <= TOLERANCE:
            return None
    return turned.mT, Eliminated(factors, inverses, y.mT)


def cayley_gradient(found: Eliminated, G: Tensor, wanted: bool) -> tuple[Tensor, Tensor | None]:
    """Z = 2 (I - W)^{-T} G and, if wanted, the gradient in the packed W."""
    g, y = G.mT.clone(memory_format=torch.contiguous_format), found.Y.mT
    *lead, n, d = g.shape
    z = torch.empty_like(g)
    numbers = g.new_empty(*lead, d * (d - 1) // 2) if wanted else None
    tensors = (found.factors, found.inverses, y, g, z, numbers)
    for places in _matrices(*tensors, lead=lead):
        _library().cayley_gradient(gemm(), *places, d, n, _threads(d))
    return z.mT, numbers


def solve(A: Tensor, rows: Tensor) -> Eliminated | None:
    """Y = A^{-1} V of positive definite A (..., d, d) and V given by rows (..., n, d).

    None where there is no library, or the types are others.
    """
    if not (_suits(A) and _suits(rows)) or _library() is None:
        return None
    *lead, n, d = rows.shape
    factors, inverses = torch.cat([A, rows], dim=-2), A.new_empty(*lead, d, WIDTH)
    y = A.new_empty(*lead, n, d)
    for places in _matrices(factors, inverses, y, lead=lead):
        _library().solve(gemm(), *places, d, n, _threads(d))
    return Eliminated(factors, inverses, y.mT)


def solve_again(found: Eliminated, rows: Tensor) -> Tensor:
    """The rows of A^{-T} G, for G given by rows (..., n, d)."""
    *lead, n, d = rows.shape
    g = rows.clone(memory_format=torch.contiguous_format)
    z = torch.empty_like(g)
    for places in _matrices(found.factors, found.inverses, g, z, lead=lead):
        _library().solve_again(gemm(), *places, d, n, _threads(d))
    return z


def determinant(Q: Tensor) -> Tensor | None:
    """+-1 for each of the orthogonal matrices (..., d, d); None where there is no library."""
    if not _suits(Q) or _library() is None:
        return None
    # A matrix and its transpose have the same determinant: how it lies does not matter.
    work = Q.clone(memory_format=torch.contiguous_format)
    *lead, d = Q.shape[:-1]
    inverses = work.new_empty(d, WIDTH)
    found = [
        _library().determinant(gemm(), place, inverses.data_ptr(), d, _threads(d))
        for (place,) in _matrices(work, lead=lead)
    ]
    return work.new_tensor(found).view(lead)


def _matrices(*tensors: Tensor | None, lead: list[int]) -> Any:
    """The places in memory of each matrix of a batch."""
    count = torch.Size(lead).numel()
    steps = [0 if t is None else t.numel() // max(count, 1) * t.element_size() for t in tensors]
    starts = [0 if t is None else t.data_ptr() for t in tensors]
    for i in range(count):
        yield tuple(start + i * step for start, step in zip(starts, steps, strict=True))


def _threads(d: int) -> int:
    """Small matrices are through before a second thread has started."""
    return torch.get_num_threads() if d > 2 * WIDTH else 1


def _suits(x: Tensor) -> bool:
    return x.dtype == torch.float32 and x.numel() > 0 and can_look(x) and not switched_off()


@cache
def _library() -> Any:
    """The functions of elimination.cpp, or None; tried once, on a few numbers."""
    if gemm() is None:
        return None
    found = library(Path(__file__).with_name("elimination.cpp").read_text())
    if found is None:
        return None
    places = {"cayley": 7, "cayley_gradient": 7, "solve": 4, "solve_again": 5, "determinant": 3}
    for name, count in places.items():
        function = getattr(found, name)
        numbers = [c_int] * (2 if name == "determinant" else 3)
        function.argtypes, function.restype = [c_void_p] * count + numbers, None
    found.cayley.restype, found.determinant.restype = c_float, c_int
    return found if _agrees(found) else None


def _agrees(found: Any) -> bool:
    """Whether two equations, x - w y = a and w x + y = b, are solved, and a turn is known."""
    plain = torch.zeros(0, dtype=torch.float32, device="cpu")  # whatever torch's defaults are
    numbers, v = plain.new_tensor([0.5]), plain.new_tensor([[1.0, 2.0]])
    factors, inverses = v.new_empty(3, 2), v.new_empty(2, WIDTH)
    y, turned = torch.empty_like(v), torch.empty_like(v)
    tensors = (numbers, v, factors, inverses, y, turned)
    found.cayley(gemm(), *(t.data_ptr() for t in tensors), 2, 1, 1)
    # R = (I + W)(I - W)^{-1} = [[3, 4], [-4, 3]] / 5
    close = all(abs(a - b) < 1e-5 for a, b in zip(turned[0].tolist(), (2.2, 0.4), strict=True))
    swap = v.new_tensor([[0.0, 1.0], [1.0, 0.0]])
    return close and found.determinant(gemm(), swap.data_ptr(), inverses.data_ptr(), 2, 1) == -1
