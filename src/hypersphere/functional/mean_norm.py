"""The mean patch norm of a batch, E|x| of Eq. C.1-C.3, and the running mean that follows it.

    mean <- mean + max(1 / batches, momentum) (E|x| - mean)

An empty or an all-zero batch has no scale to tell: the mean so far stands for its own, and it does
not count. All of it stays on the device; nothing here waits for a number.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from ._kernels.decoupled.convolution import is_traced
from ._kernels.decoupled.routes import route
from .plain_sizes import plain_sizes

__all__ = ["batch_mean", "follow"]


def batch_mean(
    norm: Tensor, running: Tensor, batches: Tensor, momentum: float, counts: bool
) -> Tensor:
    """The mean of patch norms, differentiable; `running` and `batches` follow it in place.

    Args:
        norm: patch norms, any shape.
        running: (), the running mean.
        batches: (), how many batches it has seen.
        momentum: the least weight of a new batch.
        counts: whether this batch is a new one.

    Returns:
        The mean, a scalar.

    >>> mean, batches = torch.ones(()), torch.zeros((), dtype=torch.long)
    >>> batch_mean(torch.tensor([1.0, 3.0]), mean, batches, 0.1, True), mean, batches
    (tensor(2.), tensor(2.), tensor(1))
    """
    if is_traced():
        plain = norm.sum() if 0 in plain_sizes(norm) else norm.mean()
        return follow(plain, running, batches, momentum, counts)
    mean: Tensor = _BatchMean.apply(norm, running, batches, momentum, counts)  # type: ignore[no-untyped-call]
    return mean


def follow(mean: Tensor, running: Tensor, batches: Tensor, momentum: float, counts: bool) -> Tensor:
    """The mean, or `running` if it is not positive; both buffers follow it in place.

    Args:
        mean: (), the mean of a batch.
        running: as in :func:`batch_mean`.
        batches: as in :func:`batch_mean`.
        momentum: as in :func:`batch_mean`.
        counts: as in :func:`batch_mean`.

    Returns:
        The mean to use, a scalar.
    """
    seen = mean > 0
    used = torch.where(seen, mean, running.to(mean.dtype))
    if counts:
        with torch.no_grad():
            batches += seen
            # In the type of the mean: 1 / count of whole numbers would be a float32.
            count = batches if running.dtype == torch.float32 else batches.to(running.dtype)
            weight = count.reciprocal().clamp_(momentum, 1)
            running.lerp_(used.detach().to(running.dtype), weight)
    return used


class _BatchMean(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, norm: Tensor, running: Tensor, batches: Tensor, momentum: float, counts: bool
    ) -> Tensor:
        ctx.shape = norm.shape
        mean = norm.mean() if norm.numel() else norm.sum()
        if route(norm) == "triton" and running.dtype == norm.dtype == torch.float32:
            from ._kernels.decoupled.triton.mean_norm import follow_by_triton

            return follow_by_triton(mean, running, batches, momentum, counts)
        return follow(mean, running, batches, momentum, counts)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        # If no patch has a length, nothing flows through any norm, and this is multiplied by 0.
        each = grad / max(1, ctx.shape.numel())
        return each.expand(ctx.shape), None, None, None, None
