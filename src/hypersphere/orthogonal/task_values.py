"""What else belongs to a task: classifier, norms, biases and statistics that came with its adapter.

The maps of a task live in its rotations. Other parameters have one place in the model; their values
for each task are kept beside it and exchanged when `use_task` makes another task current.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

__all__ = [
    "base_values",
    "brought_values",
    "exchange_values",
    "forget_values",
    "put_value",
    "remember_values",
]

_PLACE = "_hypersphere_task_values"
BASE = ""  # what the parameters were before the first adapter came


@torch.no_grad()
def remember_values(model: nn.Module, task: str, values: dict[str, Tensor], current: str) -> None:
    """Keep the values of a task.

    Args:
        model: the rotated model.
        task: whose values they are.
        values: by the name of the parameter or buffer.
        current: the task whose values the model holds now.
    """
    kept: dict[str, dict[str, Tensor]] = model.__dict__.setdefault(_PLACE, {BASE: {}})
    own = _own_values(model)
    for name in values:
        if name not in kept[BASE]:
            # The model as it is: the base's value, or that of a task that trains it without files.
            kept[BASE][name] = own[name].detach().clone()
    kept[task] = {name: value.clone() for name, value in values.items()}
    kept.setdefault(current, {})


def base_values(model: nn.Module) -> dict[str, Tensor]:
    """What the parameters that adapters have changed were before, by name."""
    kept: dict[str, dict[str, Tensor]] = model.__dict__.get(_PLACE, {BASE: {}})
    return kept[BASE]


def brought_values(model: nn.Module, task: str) -> set[str]:
    """Names of what a task's adapter has brought beside its maps, trained again or not."""
    kept: dict[str, dict[str, Tensor]] = model.__dict__.get(_PLACE, {})
    return set(kept.get(task, {}))


@torch.no_grad()
def exchange_values(model: nn.Module, old: str, new: str) -> None:
    """Store the values of the old task and put those of the new one in their places.

    Args:
        model: the rotated model.
        old: the task that was current.
        new: the task that is current now.
    """
    if old == new:
        return
    for module in model.modules():  # the model that has the values may be wrapped: DDP, Lightning
        kept: dict[str, dict[str, Tensor]] | None = module.__dict__.get(_PLACE)
        if kept is None:
            continue
        own = _own_values(module)
        kept[old] = {name: own[name].detach().clone() for name in kept[BASE]}
        for name, base in kept[BASE].items():
            put_value(own[name], kept.get(new, {}).get(name, base))


def forget_values(model: nn.Module) -> None:
    """Forget the values of all tasks; what is in place stays.

    Args:
        model: the model, or one around it.
    """
    for module in model.modules():
        module.__dict__.pop(_PLACE, None)


def put_value(place: Tensor, value: Tensor) -> None:
    """Copy a value into a parameter, which FSDP2 may have sharded.

    Args:
        place: the parameter or buffer.
        value: all of its rows.
    """
    mesh = getattr(place, "device_mesh", None)
    if mesh is not None and getattr(value, "device_mesh", None) is None:
        from torch.distributed.tensor import distribute_tensor

        value = distribute_tensor(value.to(place.device), mesh, place.placements)  # type: ignore[attr-defined]
    place.detach().copy_(value)


def _own_values(model: nn.Module) -> dict[str, Tensor]:
    return {**dict(model.named_parameters()), **dict(model.named_buffers())}
