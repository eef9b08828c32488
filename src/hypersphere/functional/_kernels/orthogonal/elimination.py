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
from ..libraries import library, switched_off
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
    g = G.mT.clone(memory_format=torch.contiguous_format)
    found = Eliminated(*(t.contiguous() for t in (*found[:2], found.Y.mT)))  # hooks may turn them
    *lead, n, d = g.shape
    z = torch.empty_like(g)
    numbers = g.new_empty(*lead, d * (d - 1) // 2) if wanted else None
    tensors = (*found, g, z, numbers)
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
    factors, inverses = found.factors.contiguous(), found.inverses.contiguous()
    for places in _matrices(factors, inverses, g, z, lead=lead):
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
    """The places in memory of each matrix of a batch; tensors are contiguous."""
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
    """The functions of elimination.cpp, or None; tried once."""
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
    """Whether three blocks and a rest are eliminated as torch does it, by all threads."""
    d, n = 3 * WIDTH + 5, 3
    with torch.no_grad(), torch.device("cpu"):
        numbers = torch.linspace(-9.0, 40.0, d * (d - 1) // 2, dtype=torch.float32).sin() / 8
        v = torch.linspace(-3.0, 5.0, n * d, dtype=torch.float32).cos().view(n, d)
        eye = torch.eye(d, dtype=torch.float32)
        W = torch.zeros_like(eye).index_put_(tuple(torch.triu_indices(d, d, 1)), numbers)
        A = eye - (W - W.mT)
        y, z = torch.linalg.solve(A, v.mT), 2.0 * torch.linalg.solve(A.mT, v.mT)
        slopes = z @ y.mT - y @ z.mT
        expected = [2.0 * y - v.mT, z, slopes[tuple(torch.triu_indices(d, d, 1))]]
        expected += [torch.linalg.solve(A @ A.mT, v.mT)] * 2
        results = _run_all(found, numbers, v, A @ A.mT)
        # Rows the other way round, and one with another sign.
        Q = torch.cat([-eye[-1:], eye[:-1]]).flip(0)
        sign, work, inverses = round(torch.linalg.det(Q).item()), Q.clone(), v.new_empty(d, WIDTH)
        places = (work.data_ptr(), inverses.data_ptr())
        right = found.determinant(gemm(), *places, d, _threads(d)) == sign
        return right and all(map(_close, results, expected))


def _run_all(found: Any, numbers: Tensor, v: Tensor, M: Tensor) -> list[Tensor]:
    """R V, its gradients for G = V, and M^{-1} V, twice, of rows v (n, d)."""
    (n, d), run = v.shape, gemm()
    factors, inverses = v.new_empty(d + n, d), v.new_empty(d, WIDTH)
    y, turned, g, z = (torch.empty_like(v) for _ in range(4))
    slopes = torch.empty_like(numbers)

    def call(function: Any, *tensors: Tensor) -> None:
        function(run, *(t.data_ptr() for t in tensors), d, n, _threads(d))

    call(found.cayley, numbers, v, factors, inverses, y, turned)
    g.copy_(v)
    call(found.cayley_gradient, factors, inverses, y, g, z, slopes)
    results = [turned.mT, z.mT.clone(), slopes]
    factors = torch.cat([M, v])
    call(found.solve, factors, inverses, y)
    g.copy_(v)
    call(found.solve_again, factors, inverses, g, z)
    return [*results, y.mT, z.mT]


def _close(found: Tensor, expected: Tensor) -> bool:
    # As lists: a comparison of tensors would count as a value that a training step waits for.
    largest = max(map(abs, expected.flatten().tolist()))
    pairs = zip(found.flatten().tolist(), expected.flatten().tolist(), strict=True)
    return all(abs(a - b) <= 1e-3 * largest for a, b in pairs)
