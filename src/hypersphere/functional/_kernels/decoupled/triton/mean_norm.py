"""The running mean of patch norms in one kernel; the formula is in functional/mean_norm.py."""

from __future__ import annotations

import triton
import triton.language as tl
from torch import Tensor

from .launch import launch

__all__ = ["follow_by_triton"]


@triton.jit
def follow_kernel(mean_pointer, running_pointer, batches_pointer, momentum, COUNTS: tl.constexpr):
    mean, running = tl.load(mean_pointer), tl.load(running_pointer)
    seen = mean > 0
    used = tl.where(seen, mean, running)
    tl.store(mean_pointer, used)
    if COUNTS:
        batches = tl.load(batches_pointer) + seen.to(tl.int64)
        tl.store(batches_pointer, batches)
        weight = 1.0 / tl.where(batches > 1, batches, 1).to(tl.float32)
        weight = tl.where(weight < momentum, momentum, weight)
        tl.store(running_pointer, running + weight * (used - running))


def follow_by_triton(
    mean: Tensor, running: Tensor, batches: Tensor, momentum: float, counts: bool
) -> Tensor:
    """`follow` of functional/mean_norm.py; the result takes the place of `mean`."""
    launch(follow_kernel, (1,), mean, mean, running, batches, float(momentum), COUNTS=counts)
    return mean
