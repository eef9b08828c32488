"""Differentiable exchange between processes that hold the same loss and different classes.

Note [Who has which gradient]: the loss is computed alike on every process from parts that are not
alike. Where parts join (`sum_over`, `logsumexp_over`) the gradient passes to each process without
exchange. Where something common goes into the parts (`gather_batch`, `share`) each process has a
part of its gradient, and the parts are summed.
"""

from __future__ import annotations

from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

__all__ = [
    "agree",
    "concatenate",
    "gather_batch",
    "gather_rows",
    "joint_sum",
    "logsumexp_over",
    "own_rows",
    "row_counts",
    "share",
    "sum_over",
]

Group = Any  # torch.distributed.ProcessGroup, or None for all processes


def agree(error: Exception | None, group: Group, device: torch.device) -> None:
    """Raise on every process if one of them has an `error`: nobody is left waiting."""
    failed = torch.tensor([error is not None], dtype=torch.int64, device=device)
    flags = [torch.empty_like(failed) for _ in range(dist.get_world_size(group))]
    dist.all_gather(flags, failed, group=group)
    if error is not None:
        raise error
    if any(bool(flag) for flag in flags):
        first = [bool(flag) for flag in flags].index(True)
        raise ValueError(f"process {first} could not go on (see its own error), so none does")


def row_counts(
    rows: int, group: Group, device: torch.device, error: Exception | None = None
) -> list[int]:
    """How many rows each process has; they may differ, and be 0.

    A process with an `error` brings that instead, and all raise: nobody is left waiting.
    """
    mine = torch.tensor([rows if error is None else -1], device=device)
    counts = [torch.empty_like(mine) for _ in range(dist.get_world_size(group))]
    dist.all_gather(counts, mine, group=group)
    found = [int(c) for c in counts]
    if error is not None:
        raise error
    if min(found) < 0:
        raise ValueError(
            f"process {found.index(-1)} was given a batch that it refused (see its own error), "
            f"so no process has a result"
        )
    return found


def concatenate(x: Tensor, counts: list[int], group: Group) -> Tensor:
    """The rows of all processes in order, without gradient."""
    padded = x.new_zeros(max(counts), *x.shape[1:])
    padded[: x.shape[0]] = x
    parts = [torch.empty_like(padded) for _ in counts]
    dist.all_gather(parts, padded, group=group)
    return torch.cat([part[:count] for part, count in zip(parts, counts, strict=True)])


def _own(counts: list[int], group: Group) -> slice:
    rank = dist.get_rank(group)
    return slice(sum(counts[:rank]), sum(counts[: rank + 1]))


class _Gather(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, counts, factor, group):  # type: ignore[no-untyped-def]
        ctx.counts, ctx.factor, ctx.group = counts, factor, group
        return concatenate(x, counts, group)

    @staticmethod
    def backward(ctx, grad):  # type: ignore[no-untyped-def]
        total = grad.contiguous().clone()
        dist.all_reduce(total, group=ctx.group)
        return total[_own(ctx.counts, ctx.group)] * ctx.factor, None, None, None


class _OwnRows(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, counts, factor, group):  # type: ignore[no-untyped-def]
        ctx.counts, ctx.factor, ctx.group = counts, factor, group
        return x[_own(counts, group)].clone()

    @staticmethod
    def backward(ctx, grad):  # type: ignore[no-untyped-def]
        return concatenate(grad, ctx.counts, ctx.group) * ctx.factor, None, None, None


class _Sum(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, group):  # type: ignore[no-untyped-def]
        total = x.clone()
        dist.all_reduce(total, group=group)
        return total

    @staticmethod
    def backward(ctx, grad):  # type: ignore[no-untyped-def]
        return grad, None


class _LogSumExp(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, group):  # type: ignore[no-untyped-def]
        top = x.clone()
        dist.all_reduce(top, op=dist.ReduceOp.MAX, group=group)
        lowest = torch.finfo(x.dtype).min  # in place of -inf, where no process has a class to sum
        top = top.clamp_min(lowest)
        total = (x - top).exp()
        dist.all_reduce(total, group=group)
        total = total.log() + top
        ctx.save_for_backward(x, total.clamp_min(lowest))
        return total

    @staticmethod
    def backward(ctx, grad):  # type: ignore[no-untyped-def]
        x, total = ctx.saved_tensors
        return grad * (x - total).exp(), None


class _Share(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, group):  # type: ignore[no-untyped-def]
        ctx.group = group
        return x.clone()

    @staticmethod
    def backward(ctx, grad):  # type: ignore[no-untyped-def]
        total = grad.contiguous().clone()
        dist.all_reduce(total, group=ctx.group)
        return total, None


def _apply(function: Any, *arguments: Any) -> Tensor:
    made: Tensor = function.apply(*arguments)  # torch leaves `apply` untyped
    return made


def gather_batch(x: Tensor, counts: list[int], factor: float, group: Group) -> Tensor:
    """The features of all processes (sum of counts, d); own gradient summed, times `factor`."""
    return _apply(_Gather, x, counts, factor, group)


def gather_rows(x: Tensor, counts: list[int], factor: float, group: Group) -> Tensor:
    """The class rows of all processes (C, ...); own gradient summed, times `factor`."""
    return _apply(_Gather, x, counts, factor, group)


def own_rows(x: Tensor, counts: list[int], factor: float, group: Group) -> Tensor:
    """This process's part of a result that all have; in return all get everybody's gradient."""
    return _apply(_OwnRows, x, counts, factor, group)


def sum_over(x: Tensor, group: Group) -> Tensor:
    """Sum over the processes, alike on all."""
    return _apply(_Sum, x, group)


def joint_sum(x: Tensor, sync: bool) -> Tensor:
    """Sum over all processes where `sync` asks for it and there are several; no gradient."""
    if sync and dist.is_available() and dist.is_initialized():
        x = x.clone()
        dist.all_reduce(x)
    return x


def logsumexp_over(x: Tensor, group: Group) -> Tensor:
    """log sum exp over the processes, alike on all; -inf where it is on all."""
    return _apply(_LogSumExp, x, group)


def share(x: Tensor, group: Group) -> Tensor:
    """A parameter that all have, for use in parts; its gradient is summed over the processes."""
    return _apply(_Share, x, group)
