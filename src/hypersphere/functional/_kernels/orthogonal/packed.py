"""Skew matrices stored as the d (d - 1) / 2 numbers above the diagonal, row by row."""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor

from ..autograd import Function, one_step
from ..shared import made_once

# One gather does it for blocks up to this size; above, a table of places would be as large as the
# matrix, and a copy per row costs nothing beside a factorization.
_TABLE = 1024


def packed_length(d: int) -> int:
    """Numbers above the diagonal of a (d, d) matrix."""
    return d * (d - 1) // 2


def packed_size(length: int) -> int:
    """d, given the numbers above the diagonal; 1 for none."""
    return (1 + math.isqrt(1 + 8 * length)) // 2


@made_once(maxsize=32)
def _places(d: int, device: torch.device) -> tuple[Tensor, Tensor]:
    """Where each entry of the matrix comes from (0 is a zero), and where each number goes."""
    above = torch.triu_indices(d, d, 1, device=device)
    flat = above[0] * d + above[1]
    origin = torch.zeros(d * d, dtype=torch.int32, device=device)
    origin[flat] = torch.arange(1, len(flat) + 1, dtype=torch.int32, device=device)
    return origin, flat.to(torch.int32)


def _taken(numbers: Tensor, places: Tensor) -> Tensor:
    """numbers[..., places]; from a single row torch takes them several times as fast."""
    lead = numbers.shape[:-1]
    if lead.numel() != 1:
        return numbers.index_select(-1, places)
    return numbers.reshape(-1).index_select(0, places).view(*lead, -1)


class Unpack(Function):
    """(..., d (d - 1) / 2) -> (..., d, d), upper triangular with a zero diagonal."""

    generate_vmap_rule = True

    @staticmethod
    def forward(numbers: Tensor, d: int) -> Tensor:
        return unpack_skew(numbers, d)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
        pass

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor, None]:
        return pack_skew(grads[0]), None


def unpack_skew(numbers: Tensor, d: int) -> Tensor:
    """The upper triangular matrix, outside of autograd."""
    lead = numbers.shape[:-1]
    if d <= _TABLE:
        origin, _ = _places(d, numbers.device)
        padded = torch.nn.functional.pad(numbers, (1, 0))
        return _taken(padded, origin).view(*lead, d, d)
    upper = numbers.new_zeros(*lead, d, d)
    first = 0
    for i in range(d - 1):
        upper[..., i, i + 1 :] = numbers[..., first : first + d - 1 - i]
        first += d - 1 - i
    return upper


def identity_plus_skew(numbers: Tensor, d: int) -> Tensor:
    """I + W of the skew matrix W that is stored as these numbers, outside of autograd."""
    if d > _TABLE:
        upper = unpack_skew(numbers, d)
        result = upper - upper.mT
        result.diagonal(dim1=-2, dim2=-1).fill_(1.0)
        return result
    entries = torch.cat([-numbers, numbers.new_ones(*numbers.shape[:-1], 1), numbers], -1)
    return _taken(entries, _signed_places(d, numbers.device)).view(*numbers.shape[:-1], d, d)


def skew_of_packed(numbers: Tensor, d: int) -> Tensor:
    """The skew matrix W that is stored as these numbers, outside of autograd."""
    W = identity_plus_skew(numbers, d)
    W.diagonal(dim1=-2, dim2=-1).zero_()
    return W


@made_once(maxsize=32)
def _signed_places(d: int, device: torch.device) -> Tensor:
    """Where I + W has its entries: first those below the diagonal, then 1, then those above."""
    above = _places(d, device)[0].view(d, d)
    return (above + packed_length(d)).where(above.mT == 0, above.mT - 1).flatten()


def pack_skew(square: Tensor) -> Tensor:
    """The numbers above the diagonal of (..., d, d), row by row.

    >>> pack_skew(torch.arange(9).view(3, 3))
    tensor([1, 2, 5])
    """
    d = square.shape[-1]
    if d <= _TABLE:
        _, flat = _places(d, square.device)
        return _taken(square.flatten(-2), flat)
    rows = [square[..., i, i + 1 :] for i in range(d - 1)]
    return torch.cat(rows, dim=-1)


def unpacked_skew(numbers: Tensor, d: int) -> Tensor:
    """:func:`unpack_skew`, with a gradient."""
    result: Tensor = _unpack(numbers, d)
    return result


_unpack = one_step(Unpack)
