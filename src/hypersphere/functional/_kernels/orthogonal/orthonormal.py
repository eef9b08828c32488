"""Gram-Schmidt by blocks of columns in C++, where the machine has a compiler: orthonormal.cpp."""

from __future__ import annotations

from ctypes import c_int, c_void_p
from functools import cache
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from ..libraries import library, trial
from .blas import gemm
from .elimination import WIDTH, can_eliminate, close_to, team
from .panels import spans

__all__ = ["orthonormalize"]


def orthonormalize(U: Tensor) -> tuple[Tensor, Tensor, list[Tensor]] | None:
    """Q, T right of its diagonal blocks, and the inverses of those, for U (..., d, d).

    Outside of autograd. None where there is no library, or the type is another.
    """
    if not can_eliminate(U) or _library() is None:
        return None
    (*lead, d), Q = U.shape[:-1], U.clone(memory_format=torch.contiguous_format)
    T, inverses = torch.empty_like(Q), Q.new_empty(*lead, d, WIDTH)
    places, count = (t.data_ptr() for t in (Q, T, inverses)), torch.Size(lead).numel()
    _library().orthonormalize(gemm(), *places, d, count, team())
    return Q, T, [inverses[..., i:j, : j - i] for i, j in spans(d)]


@cache
def _library() -> Any:
    """The function of orthonormal.cpp, or None; tried once."""
    if gemm() is None:
        return None
    path = Path(__file__).with_name("orthonormal.cpp")
    found = library(path.read_text(), headers=path.parent)
    if found is None:
        return None
    found.orthonormalize.argtypes = [c_void_p] * 4 + [c_int] * 3
    found.orthonormalize.restype = None
    return found if _agrees(found) else None


@trial
def _agrees(found: Any) -> bool:
    """Whether Q and T of three blocks and a rest are those of torch, by all threads."""
    d = 3 * WIDTH + 5
    with torch.no_grad(), torch.device("cpu"):
        A = torch.linspace(-9.0, 700.0, d * d, dtype=torch.float32).sin().view(d, d) / 8
        Q = (A + 3.0 * torch.eye(d, dtype=torch.float32)).contiguous()
        expected, upper = torch.linalg.qr(Q)
        signs = upper.diagonal().sign()
        T, inverses = torch.zeros_like(Q), Q.new_empty(d, WIDTH)
        places = (t.data_ptr() for t in (Q, T, inverses))
        found.orthonormalize(gemm(), *places, d, 1, team())
        right = signs.unsqueeze(-1) * upper
        first = torch.linalg.inv(right[:WIDTH, :WIDTH])
        results = [Q, T[:WIDTH, WIDTH:], inverses[:WIDTH]]
        return all(map(close_to, results, [expected * signs, right[:WIDTH, WIDTH:], first]))
