"""Neurons as sets of unit rows, and blocks of those rows whose cosines fit into little memory."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import torch
from torch import Tensor
from torch.utils.checkpoint import checkpoint

from ...angles import normalize

__all__ = ["as_sets", "directions", "recomputed", "row_blocks", "widen"]

# Entries of a block of cosines: enough for an efficient matrix product, little memory.
BLOCK_ENTRIES = 2**21


def widen(x: Tensor, what: str) -> Tensor:
    """`x` in float32 or wider."""
    if not x.is_floating_point():
        raise TypeError(f"expected floating-point {what}, got {x.dtype}; convert with .float()")
    return x.float() if x.dtype.itemsize < 4 else x


def as_sets(neurons: Tensor, sets: bool, name: str) -> Tensor:
    """(N, ...), or (B, N, d) with `sets`, as (B, N, d) in float32 or wider; N >= 2."""
    good = neurons.ndim == 3 if sets else neurons.ndim >= 2
    if not good or neurons.shape[1 if sets else 0] < 2 or neurons.numel() == 0:
        expected = "(sets, N, d)" if sets else "(N, ...)"
        raise ValueError(
            f"{name} expects {expected}, one neuron or feature per row, N >= 2; "
            f"got {tuple(neurons.shape)}"
        )
    return widen(neurons if sets else neurons.flatten(1)[None], "rows")


def directions(w: Tensor) -> tuple[Tensor, Tensor]:
    """w / |w|, and which rows are zero: those stay zero and get no gradient."""
    zero = (w.detach() == 0).all(-1)
    return normalize(w).masked_fill(zero[..., None], 0), zero


def row_blocks(rows: int, columns: int, sets: int = 1) -> Iterator[slice]:
    """Slices of the rows such that a block of (sets, rows, columns) has BLOCK_ENTRIES entries."""
    size = max(1, min(rows, BLOCK_ENTRIES // max(1, sets * columns)))
    for start in range(0, rows, size):
        yield slice(start, min(start + size, rows))


def recomputed(function: Callable[..., Tensor], alone: bool, *args: object) -> Tensor:
    """function(*args), whose intermediate values are made again in the backward pass.

    So of all blocks only one is in memory at a time. A block that is `alone` keeps its values.
    """
    if alone or not torch.is_grad_enabled():
        return function(*args)
    result: Tensor = checkpoint(function, *args, use_reentrant=False, preserve_rng_state=False)
    return result
