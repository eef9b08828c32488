"""Factorizations of a batch of matrices, one matrix at a time on the CPU.

Note [Batched LU]: with several threads, torch 2.13 on some processors returns pivots of 0 for a
batch of matrices from about 192 rows on, and with them wrong signs of determinants and errors in
solutions. A single matrix is factorized rightly, by all threads.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

__all__ = ["each_matrix"]


def each_matrix(function: Callable[..., Tensor], *batches: Tensor) -> Tensor:
    """function(A, B, ...) of every matrix of the batches (..., n, m), stacked again."""
    first = batches[0]
    if first.dim() == 2 or first.device.type != "cpu" or torch.compiler.is_compiling():
        return function(*batches)
    flat = [batch.reshape(-1, *batch.shape[-2:]) for batch in batches]
    if len(flat[0]) == 0:
        return function(*batches)
    results = torch.stack([function(*matrices) for matrices in zip(*flat, strict=True)])
    return results.reshape(*first.shape[:-2], *results.shape[1:])
