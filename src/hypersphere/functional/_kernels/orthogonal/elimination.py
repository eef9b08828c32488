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
from ..libraries import library, switched_off, trial
from .blas import gemm

__all__ = ["Eliminated", "available", "cayley", "cayley_gradient", "determinant"]

WIDTH = 64  # as in blocks.h
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
    if not (can_eliminate(numbers) and can_eliminate(V)) or _library() is None:
        return None
    numbers, v = numbers.contiguous(), V.mT.contiguous()
    *lead, n, d = v.shape
    factors, inverses = v.new_empty(*lead, d + n, d), v.new_empty(*lead, d, WIDTH)
    y, turned = torch.empty_like(v), torch.empty_like(v)
    places = (t.data_ptr() for t in (numbers, v, factors, inverses, y, turned))
    count = torch.Size(lead).numel()
    error = _library().cayley(gemm(), *places, d, n, count, team())
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
    places = (0 if t is None else t.data_ptr() for t in (*found, g, z, numbers))
    count = torch.Size(lead).numel()
    _library().cayley_gradient(gemm(), *places, d, n, count, team())
    return z.mT, numbers


def determinant(Q: Tensor) -> Tensor | None:
    """+-1 for each of the orthogonal matrices (..., d, d); None where there is no library."""
    if not can_eliminate(Q) or _library() is None:
        return None
    # A matrix and its transpose have the same determinant: how it lies does not matter.
    work = Q.clone(memory_format=torch.contiguous_format)
    *lead, d = Q.shape[:-1]
    inverses = work.new_empty(d, WIDTH)
    found = [
        _library().determinant(gemm(), place, inverses.data_ptr(), d, team())
        for (place,) in matrices_of(work, lead=lead)
    ]
    return work.new_tensor(found).view(lead)


def matrices_of(*tensors: Tensor, lead: list[int]) -> Any:
    """The places in memory of each matrix of a batch; tensors are contiguous."""
    count = torch.Size(lead).numel()
    steps = [t.numel() // max(count, 1) * t.element_size() for t in tensors]
    starts = [t.data_ptr() for t in tensors]
    for i in range(count):
        yield tuple(start + i * step for start, step in zip(starts, steps, strict=True))


def team() -> int:
    """Threads that go through a function together.

    All of them also for small matrices, of which each has one thread: a BLAS that sees no team at
    work would start threads of its own for every small product.
    """
    return torch.get_num_threads()


def available(like: Tensor) -> bool:
    """Whether matrices that lie where this one does are eliminated here."""
    return can_eliminate(like) and _library() is not None


def can_eliminate(x: Tensor) -> bool:
    return x.dtype == torch.float32 and x.numel() > 0 and can_look(x) and not switched_off()


@cache
def _library() -> Any:
    """The functions of elimination.cpp, or None; tried once."""
    if gemm() is None:
        return None
    path = Path(__file__).with_name("elimination.cpp")
    found = library(path.read_text(), headers=path.parent)
    if found is None:
        return None
    places = {"cayley": 7, "cayley_gradient": 7, "determinant": 3}
    for name, count in places.items():
        function = getattr(found, name)
        numbers = [c_int] * (2 if name == "determinant" else 4)
        function.argtypes, function.restype = [c_void_p] * count + numbers, None
    found.cayley.restype, found.determinant.restype = c_float, c_int
    return found if _agrees(found) else None


@trial
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
        results = _run_all(found, numbers, v)
        # Rows the other way round, and one with another sign.
        Q = torch.cat([-eye[-1:], eye[:-1]]).flip(0)
        sign, work, inverses = round(torch.linalg.det(Q).item()), Q.clone(), v.new_empty(d, WIDTH)
        places = (work.data_ptr(), inverses.data_ptr())
        right = found.determinant(gemm(), *places, d, team()) == sign
        return right and all(map(close_to, results, expected))


def _run_all(found: Any, numbers: Tensor, v: Tensor) -> list[Tensor]:
    """R V and its gradients for G = V, of rows v (n, d)."""
    (n, d), run = v.shape, gemm()
    factors, inverses = v.new_empty(d + n, d), v.new_empty(d, WIDTH)
    y, turned, g, z = (torch.empty_like(v) for _ in range(4))
    slopes = torch.empty_like(numbers)

    def call(function: Any, *tensors: Tensor) -> None:
        function(run, *(t.data_ptr() for t in tensors), d, n, 1, team())

    call(found.cayley, numbers, v, factors, inverses, y, turned)
    g.copy_(v)
    call(found.cayley_gradient, factors, inverses, y, g, z, slopes)
    return [turned.mT, z.mT, slopes]


def close_to(found: Tensor, expected: Tensor) -> bool:
    # As lists: a comparison of tensors would count as a value that a training step waits for.
    largest = max(map(abs, expected.flatten().tolist()))
    pairs = zip(found.flatten().tolist(), expected.flatten().tolist(), strict=True)
    return all(abs(a - b) <= 1e-3 * largest for a, b in pairs)
