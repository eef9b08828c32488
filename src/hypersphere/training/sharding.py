"""Weights that are spread over processes by rows, as training sees them: the classes of a head
(`head.sharded: true`), or every weight (`fabric.strategy: fsdp`).

Checkpoints hold whole weights and whole optimizer states, so a run can be continued by another
number of processes, or by one; terms on weights and monitors see whole neurons.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.optim import Optimizer

__all__ = [
    "average_gradients",
    "clip_gradients",
    "gradient_norm",
    "is_spread",
    "load_optimizer_state",
    "load_state",
    "optimizer_state",
    "step_one_by_one",
    "whole_state",
    "whole_weight",
    "with_whole_weights",
]


@dataclass
class Rows:
    """Who has which rows of one parameter: `counts[rank]`, in order of rank."""

    parameter: Tensor
    counts: list[int]
    group: Any

    def gather(self, value: Tensor) -> Tensor:
        """The rows of all processes, without gradient; `value` is like the parameter."""
        from hypersphere.heads.collectives import concatenate

        return concatenate(local(value.detach()), self.counts, self.group)

    def own(self, whole: Tensor) -> Tensor:
        """The inverse: this process's part of `whole`, kept as the parameter is."""
        rank = dist.get_rank(self.group)
        first = sum(self.counts[:rank])
        part = whole[first : first + self.counts[rank]].clone()
        if not _is_distributed(self.parameter):
            return part
        from torch.distributed.tensor import DTensor

        like: Any = self.parameter
        return DTensor.from_local(
            part.to(like.device),
            like.device_mesh,
            like.placements,
            run_check=False,
            shape=like.shape,
            stride=like.stride(),
        )

    def like(self, value: Any) -> bool:
        """Whether a value (of an optimizer's state) has the rows of the parameter."""
        return isinstance(value, Tensor) and value.dim() == self.parameter.dim()


def local(value: Tensor) -> Tensor:
    """The rows this process has, of a parameter, its gradient or moment."""
    return value.to_local() if _is_distributed(value) else value  # type: ignore[attr-defined]


def _is_distributed(value: Any) -> bool:
    return hasattr(value, "full_tensor")  # a DTensor, without the time its import takes


def _rows(module: nn.Module, name: str, value: Any) -> Rows | None:
    """How parameter `name` of `module` is spread; None if it is whole."""
    if _is_distributed(value):
        group = value.device_mesh.get_group()
        world, rows = dist.get_world_size(group), value.shape[0]
        most = -(-rows // world)
        counts = [min(most, max(0, rows - rank * most)) for rank in range(world)]
        return Rows(value, counts, group)
    part = getattr(module, "shard", None)
    if part is not None and name in ("weight", "bias") and value is not None:
        return Rows(value, part.counts, part.group)
    return None


def _spread(net: nn.Module) -> dict[str, Rows]:
    found: dict[str, Rows] = {}
    if not dist.is_initialized():  # one process, at no cost
        return found
    for prefix, module in net.named_modules():
        for name, value in module.named_parameters(recurse=False):
            rows = _rows(module, name, value)
            if rows is not None:
                found[f"{prefix}.{name}" if prefix else name] = rows
    return found


def is_spread(net: nn.Module) -> bool:
    """Whether a part of the network is on other processes."""
    return bool(_spread(net))


# --- whole weights ----------------------------------------------------------------------------


@torch.no_grad()
def whole_weight(module: nn.Module, name: str = "weight") -> Tensor:
    """`module.<name>` with all its rows; call it on all processes."""
    weight: Tensor = getattr(module, name)
    rows = _rows(module, name, weight)
    return weight.detach() if rows is None else rows.gather(weight)


class _Applied(nn.Module):
    def __init__(self, net: nn.Module, function: Callable[[nn.Module], Any]) -> None:
        super().__init__()
        self.net, self.function = net, function

    def forward(self) -> Any:
        return self.function(self.net)


def with_whole_weights(net: nn.Module, function: Callable[[Any], Any]) -> Any:
    """function(net), where every module shows its whole neurons (not what has one dimension:
    biases, norms), with exact gradients.
    """
    spread = {name: rows for name, rows in _spread(net).items() if rows.parameter.dim() > 1}
    if not spread:
        return function(net)
    from hypersphere.heads.collectives import gather_rows

    # Each process computes the term and sends every row its gradient: their mean is the gradient,
    # for terms that are alike everywhere and for those of the process's own samples.
    whole = {
        f"net.{name}": gather_rows(
            local(rows.parameter), rows.counts, 1 / len(rows.counts), rows.group
        )
        for name, rows in spread.items()
    }
    return torch.func.functional_call(_Applied(net, function), whole, ())


# --- gradients --------------------------------------------------------------------------------


@torch.no_grad()
def average_gradients(net: nn.Module) -> None:
    """Under FSDP: the mean over processes for parameters that are whole on each of them."""
    if not dist.is_initialized():
        return
    parameters = [p for p in net.parameters() if p.grad is not None]
    if not any(_is_distributed(p) for p in parameters):
        return  # one process, or DDP, which has done it
    spread = {id(rows.parameter) for rows in _spread(net).values()}
    gradients: list[Any] = [p.grad for p in parameters if id(p) not in spread]
    if gradients:
        joined = torch.cat([gradient.flatten() for gradient in gradients])
        dist.all_reduce(joined)
        joined /= dist.get_world_size()
        for gradient, mean in zip(
            gradients, joined.split([g.numel() for g in gradients]), strict=True
        ):
            gradient.copy_(mean.view_as(gradient))


@torch.no_grad()
def gradient_norm(net: nn.Module) -> Tensor:
    """|gradient| of the whole network: each row once, wherever it is."""
    spread = _spread(net)
    own = {id(rows.parameter) for rows in spread.values()}
    total = torch.zeros((), dtype=torch.float64, device=next(net.parameters()).device)
    for rows in spread.values():
        if rows.parameter.grad is not None:
            total += _square(rows.parameter.grad)
    dist.all_reduce(total)
    for parameter in net.parameters():
        if parameter.grad is not None and id(parameter) not in own:
            total += _square(parameter.grad)
    return total.sqrt()


@torch.no_grad()
def clip_gradients(fabric: Any, net: nn.Module, player: Any, largest: float) -> Tensor | None:
    """Shorten the gradient to `largest`: that of the whole network, wherever its weights are.

    Returns its norm before; the factor stays on the device, so that nobody waits for it.
    """
    if not is_spread(net):
        return fabric.clip_gradients(  # type: ignore[no-any-return]
            player.module, player.optimizer, max_norm=largest, error_if_nonfinite=False
        )
    fabric.strategy.precision.unscale_gradients(player.optimizer)
    norm = gradient_norm(net)
    factor = (largest / (norm + 1e-6)).clamp(max=1.0)
    for parameter in net.parameters():
        if parameter.grad is not None:
            local(parameter.grad).mul_(factor)
    return norm


def _square(gradient: Tensor) -> Tensor:
    return torch.linalg.vector_norm(local(gradient)).double().square()


# --- checkpoints ------------------------------------------------------------------------------


@torch.no_grad()
def whole_state(net: nn.Module, keep: bool = True) -> dict[str, Any]:
    """The state dict with whole weights (call it on all processes); only those who `keep` it get
    the spread ones, on the CPU and one after the other, so that no device has to hold them all.
    """
    spread = {name: rows for name, rows in _spread(net).items() if _is_distributed(rows.parameter)}
    state = net.state_dict()  # a sharded head brings its classes together in there
    for name, rows in spread.items():
        whole = rows.gather(rows.parameter)
        if keep:
            state[name] = whole.cpu()
        else:
            del state[name]
    return state


def load_state(net: nn.Module, state: dict[str, Any]) -> None:
    """The inverse of `whole_state`: each process takes its own rows."""
    parts = dict(state)
    for name, rows in _spread(net).items():
        if _is_distributed(rows.parameter):
            if parts[name].shape != rows.parameter.shape:
                raise ValueError(
                    f"{name} is {tuple(rows.parameter.shape)}; the checkpoint has "
                    f"{tuple(parts[name].shape)}"
                )
            parts[name] = rows.own(parts[name])
    net.load_state_dict(parts)


def _indexed(optimizer: Optimizer, net: nn.Module) -> dict[int, Rows]:
    """Index in the optimizer's state -> who has which rows, for spread parameters."""
    spread = {id(rows.parameter): rows for rows in _spread(net).values()}
    every = [p for group in optimizer.param_groups for p in group["params"]]
    return {i: spread[id(p)] for i, p in enumerate(every) if id(p) in spread}


@torch.no_grad()
def optimizer_state(optimizer: Optimizer, net: nn.Module, keep: bool = True) -> dict[str, Any]:
    """The optimizer's state dict with the rows of all processes (call it on all of them)."""
    state = optimizer.state_dict()
    moments = dict(state["state"])
    for index, rows in _indexed(optimizer, net).items():
        for key, value in moments.get(index, {}).items():
            if rows.like(value):
                whole = rows.gather(value)
                moments[index] = {**moments[index], key: whole.cpu() if keep else None}
    return {**state, "state": moments}


def load_optimizer_state(optimizer: Optimizer, net: nn.Module, state: dict[str, Any]) -> None:
    """The inverse: each process takes its own rows."""
    moments = dict(state["state"])
    for index, rows in _indexed(optimizer, net).items():
        for key, value in moments.get(index, {}).items():
            if rows.like(value):
                moments[index] = {**moments[index], key: rows.own(value)}
    optimizer.load_state_dict({**state, "state": moments})
    step_one_by_one(optimizer)


def step_one_by_one(optimizer: Optimizer) -> None:
    """No joint step for groups that mix spread and whole parameters: torch's take one kind only."""
    for group in optimizer.param_groups:
        if len({_is_distributed(p) for p in group["params"]}) > 1:
            group["foreach"] = False
