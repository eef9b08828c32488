"""Factorizations by blocks of columns, so that nearly all of their work is in products.

LAPACK's triangular solves and factorizations run at less than half the speed of a product on some
processors. Here they meet only the blocks on the diagonal; the triangular ones are inverted.
"""

from __future__ import annotations

from collections.abc import Iterator

import torch
from torch import Tensor

__all__ = ["inverse_upper", "spans", "subtract_product"]

# Wide enough for products at full speed, and narrow enough for the blocks to cost little.
WIDTH = 64


def spans(d: int) -> Iterator[tuple[int, int]]:
    """First and last (exclusive) column of each block of d columns.

    >>> list(spans(100))
    [(0, 64), (64, 100)]
    """
    for first in range(0, d, WIDTH):
        yield first, min(first + WIDTH, d)


def subtract_product(C: Tensor, A: Tensor, B: Tensor) -> None:
    """C <- C - A B, for matrices or batches of them."""
    if C.dim() == 2:
        C.addmm_(A, B, alpha=-1.0)
    else:
        C.baddbmm_(A, B, alpha=-1.0)


def inverse_upper(T: Tensor) -> Tensor:
    """T^{-1} of upper triangular matrices (..., d, d)."""
    eye = torch.eye(T.shape[-1], dtype=T.dtype, device=T.device)
    result: Tensor = torch.linalg.solve_triangular(T, eye.expand_as(T), upper=True)
    return result
