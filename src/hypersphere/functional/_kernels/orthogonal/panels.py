"""Factorizations by blocks of columns, so that nearly all of their work is in products.

LAPACK's triangular solves and factorizations run at less than half the speed of a product on some
processors. Here they meet only the blocks on the diagonal; the triangular ones are inverted.
"""

from __future__ import annotations

from collections.abc import Iterator

import torch
from torch import Tensor

__all__ = ["add_product", "halfway", "inverse_upper", "spans"]

# Wide enough for products at full speed, and narrow enough for the blocks to cost little.
WIDTH = 64


def spans(d: int, blocks: int = 1) -> Iterator[tuple[int, int]]:
    """First and last (exclusive) column of each block of d columns, or of several blocks.

    >>> list(spans(100))
    [(0, 64), (64, 100)]
    """
    width = blocks * WIDTH
    for first in range(0, d, width):
        yield first, min(first + width, d)


def halfway(first: int, last: int) -> int | None:
    """Where to cut columns in two so that both have whole blocks, None for a single block.

    Halves of halves make the products as large as they can be, which is when they are fastest.

    >>> halfway(0, 576), halfway(320, 576), halfway(512, 576)
    (320, 448, None)
    """
    blocks = -(-(last - first) // WIDTH)
    return first + -(-blocks // 2) * WIDTH if blocks > 1 else None


def add_product(C: Tensor, A: Tensor, B: Tensor, factor: float = 1.0) -> Tensor:
    """C <- C + factor A B, for matrices or batches of them."""
    return C.addmm_(A, B, alpha=factor) if C.dim() == 2 else C.baddbmm_(A, B, alpha=factor)


def inverse_upper(T: Tensor) -> Tensor:
    """T^{-1} of upper triangular matrices (..., d, d)."""
    eye = torch.eye(T.shape[-1], dtype=T.dtype, device=T.device)
    result: Tensor = torch.linalg.solve_triangular(T, eye.expand_as(T), upper=True)
    return result
