"""E|x| of Eq. C.1-C.3: the mean patch norm, of the batch in training, running in evaluation."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, distributed, nn

from ..functional.mean_norm import batch_mean, follow

__all__ = ["RunningNorm"]


class RunningNorm(nn.Module):
    """Mean of the patch norms of one layer, as BatchNorm keeps its mean.

    In training: the mean of the batch, through which gradients flow, and the running mean moves
    towards it by `momentum` (at first faster, so that it is the plain mean of the first batches).
    In evaluation: the running mean. sync=True takes batch means over all processes, so that a
    batch split over processes gives the same outputs and gradients as in one piece.

    Input: patch norms of any shape; the output is their mean, a scalar.

    Args:
        momentum: weight of a new batch in the running mean, in (0, 1].
        sync: whether batch means are over all processes of torch.distributed.

    >>> mean = RunningNorm(momentum=0.5)
    >>> mean(torch.tensor([1.0, 3.0])), mean.mean
    (tensor(2.), tensor(2.))
    """

    mean: Tensor
    batches: Tensor

    def __init__(self, momentum: float = 0.1, sync: bool = False) -> None:
        super().__init__()
        if not 0 < momentum <= 1:
            raise ValueError(f"momentum is the weight of a new batch, in (0, 1]; got {momentum}")
        self.momentum, self.sync = momentum, sync
        self.register_buffer("mean", torch.ones(()))
        self.register_buffer("batches", torch.zeros((), dtype=torch.long))

    def reset_parameters(self) -> None:
        """Forget all batches."""
        self.mean.fill_(1)
        self.batches.zero_()

    @property
    def is_batch_mean(self) -> bool:
        """Whether the output is the mean of the input alone, so that a kernel may do its part."""
        return self.training and not self._is_shared

    @property
    def _is_shared(self) -> bool:
        return self.sync and distributed.is_available() and distributed.is_initialized()

    def forward(self, norm: Tensor) -> Tensor:
        if not self.training:
            return self.mean
        state = (self.mean, self.batches, self.momentum, is_first_forward())
        if self._is_shared:
            total = _SumOverProcesses.apply(norm.sum())  # type: ignore[no-untyped-call]
            patches = _SumOverProcesses.apply(norm.new_full((), norm.numel()))  # type: ignore[no-untyped-call]
            return follow(total / patches.clamp_min(1), *state)
        return batch_mean(norm, *state)

    def extra_repr(self) -> str:
        return f"momentum={self.momentum:g}, sync={self.sync}"


def is_first_forward() -> bool:
    """Whether a forward is one of training.

    False while a backward computes a part of it again (activation checkpointing), and inside the
    transformations of torch.func, which do not let anything change a buffer.
    """
    if torch._C._are_functorch_transforms_active():
        return False
    return torch.compiler.is_compiling() or torch._C._current_graph_task_id() == -1


class _SumOverProcesses(torch.autograd.Function):
    """All-reduce whose backward is one too: the losses of all processes depend on the sum."""

    @staticmethod
    def forward(ctx: Any, value: Tensor) -> Tensor:
        value = value.clone()
        distributed.all_reduce(value)
        return value

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> Tensor:
        grad = grad.clone()
        distributed.all_reduce(grad)
        return grad
