"""Heads whose classes are spread over processes (`head.sharded: true`), as training sees them.

Checkpoints hold the whole head and the whole of its optimizer state, so a run can be continued by
another number of processes; terms on the class weights see all classes.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

__all__ = ["is_sharded", "load_optimizer_state", "optimizer_state", "with_all_classes"]


def _sharded(net: nn.Module) -> Any:
    head = getattr(net, "head", None)
    return head if getattr(head, "shard", None) is not None else None


def _rows(optimizer: Optimizer, head: Any) -> dict[int, Tensor]:
    """Index in the optimizer's state -> parameter, for parameters with a row per class."""
    own = {id(p) for p in (head.weight, head.bias) if p is not None}
    every = [p for group in optimizer.param_groups for p in group["params"]]
    return {i: p for i, p in enumerate(every) if id(p) in own}


def optimizer_state(optimizer: Optimizer, net: nn.Module) -> dict[str, Any]:
    """The optimizer's state dict with the rows of all processes (call it on all of them)."""
    state = optimizer.state_dict()
    head = _sharded(net)
    if head is None:
        return state
    from hypersphere.heads.collectives import concatenate

    part = head.shard
    moments = dict(state["state"])
    for index, parameter in _rows(optimizer, head).items():
        moments[index] = {
            key: concatenate(value, part.counts, part.group)
            if _rowwise(value, parameter)
            else value
            for key, value in moments.get(index, {}).items()
        }
    return {**state, "state": moments}


def load_optimizer_state(optimizer: Optimizer, net: nn.Module, state: dict[str, Any]) -> None:
    """The inverse: each process takes its own rows."""
    head = _sharded(net)
    if head is not None:
        moments = dict(state["state"])
        own = slice(head.shard.start, head.shard.stop)
        for index, parameter in _rows(optimizer, head).items():
            moments[index] = {
                key: value[own].clone() if _rowwise(value, parameter) else value
                for key, value in moments.get(index, {}).items()
            }
        state = {**state, "state": moments}
    optimizer.load_state_dict(state)


def _rowwise(value: Any, parameter: Tensor) -> bool:
    return isinstance(value, Tensor) and value.dim() == parameter.dim()


class _Applied(nn.Module):
    def __init__(self, net: nn.Module, function: Callable[[nn.Module], Any]) -> None:
        super().__init__()
        self.net, self.function = net, function

    def forward(self) -> Any:
        return self.function(self.net)


def is_sharded(net: nn.Module) -> bool:
    """Whether the head's classes are spread over processes."""
    return _sharded(net) is not None


def with_all_classes(net: nn.Module, function: Callable[[Any], Any]) -> Any:
    """function(net), where a sharded head shows the weights of all classes, with exact
    gradients.
    """
    head = _sharded(net)
    if head is None:
        return function(net)
    from hypersphere.heads.collectives import gather_rows

    # Each process computes the same term and sends every row its gradient: their mean is the
    # gradient.
    part = head.shard
    whole = gather_rows(head.weight, part.counts, 1 / part.world, part.group)
    return torch.func.functional_call(_Applied(net, function), {"net.head.weight": whole}, ())
