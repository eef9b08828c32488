"""What was trained, apart from the base: the maps of one task, and every other trained value."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn

from ..forms import map_options
from ..pretrained import whole
from ..rotation import DEFAULT_TASK, Rotation, required_rotations, rotations
from ..task_values import brought_values
from .base_hash import base_hashes, packed_weights

__all__ = ["Adapter", "AdapterLayer", "capture", "neurons", "rotated_weights", "unwrapped"]


@dataclass
class AdapterLayer:
    """The map of one weight.

    Args:
        options: arguments of `rotate` that make such a map: method, blocks and so on.
        tensors: state of the map, by name.
    """

    options: dict[str, Any]
    tensors: dict[str, Tensor]


@dataclass
class Adapter:
    """Everything that training has changed, without the base it was trained on.

    Args:
        layers: maps by the name of the weight they turn, such as "encoder.0.weight".
        values: other trained parameters, and buffers, by their names in the rotated model.
        base: hashes of everything else by name, see :mod:`.base_hash`. Default: unknown.
        task: name of the task.
    """

    layers: dict[str, AdapterLayer]
    values: dict[str, Tensor] = field(default_factory=dict)
    base: dict[str, str] | None = None
    task: str = DEFAULT_TASK

    @property
    def numbers(self) -> int:
        """How many numbers it holds."""
        tensors = [t for layer in self.layers.values() for t in layer.tensors.values()]
        return sum(t.numel() for t in [*tensors, *self.values.values()])


def unwrapped(model: nn.Module) -> nn.Module:
    """The model inside DistributedDataParallel, DataParallel and torch.compile."""
    while True:
        if isinstance(model, (nn.parallel.DistributedDataParallel, nn.DataParallel)):
            model = model.module
        elif isinstance(getattr(model, "_orig_mod", None), nn.Module):
            model = model._orig_mod  # type: ignore[assignment]
        else:
            return model


def rotated_weights(model: nn.Module) -> dict[str, tuple[nn.Module, str, Rotation]]:
    """(module, parameter, rotation) by the full name of the weight."""
    names = {id(module): name for name, module in model.named_modules()}
    return {
        f"{names[id(module)]}.{parameter}".lstrip("."): (module, parameter, rotation)
        for _, module, parameter, rotation in rotations(model)
    }


def neurons(module: Any, parameter: str, rotation: Rotation) -> Tensor | None:
    """The parameter that a rotation turns: below the parametrization, or the weight itself."""
    found: Tensor | None
    if rotation.side == "input":
        found = getattr(module, parameter, None)  # quantized layers may have none
    else:
        found = module.parametrizations[parameter].original
    return found


@torch.no_grad()
def capture(model: nn.Module) -> Adapter:
    """The adapter of the current task.

    Args:
        model: a rotated model, in DDP, compiled or sharded by FSDP2 if need be.

    Returns:
        The adapter, its tensors on the CPU.

    Raises:
        ValueError: if nothing is rotated, a map cannot be made anew from options, or layers are at
            different tasks.
    """
    model = unwrapped(model)
    if any(p.is_meta for *_, r in required_rotations(model) for p in r.map.parameters()):
        raise ValueError(
            f"{type(model).__name__} is on the meta device and has nothing to save: "
            f"load_state_dict(weights, assign=True) first"
        )
    layers, tasks = {}, set()
    for path, (_, _, rotation) in rotated_weights(model).items():
        state = {k: _copy(v) for k, v in rotation.map.state_dict().items()}
        layers[path] = AdapterLayer(map_options(path, rotation), state)
        tasks.add(rotation.task)
    if len(tasks) > 1:
        raise ValueError(
            f"the layers are at different tasks ({', '.join(sorted(tasks))}): "
            f"use_task(model, name) first"
        )
    values = {name: _copy(value) for name, value in trained_values(model)}
    return Adapter(layers, values, base_hashes(model, set(values)), tasks.pop())


def trained_values(model: nn.Module) -> Iterator[tuple[str, Tensor]]:
    """What an adapter holds beside the maps.

    Parameters that are trained or came with an adapter, neurons that are not the base's any more
    (see :func:`restart`), and the buffers but those of a quantized weight, which are the base's.
    """
    rotated = rotated_weights(model)
    brought = {n for _, _, r in rotated.values() for n in brought_values(model, r.task)}
    inside = {
        id(value)
        for _, _, rotation in rotated.values()
        for value in [*rotation.tasks.parameters(), *rotation.buffers()]
    }
    moved = {id(neurons(*item)) for item in rotated.values() if item[2].moved_neurons}
    moved |= {id(item[2].lengths) for item in rotated.values()}  # frozen or not
    for name, parameter in model.named_parameters():
        changed = parameter.requires_grad or name in brought or id(parameter) in moved
        if changed and id(parameter) not in inside:
            yield name, parameter
    saved, packed = model.state_dict(keep_vars=True), packed_weights(model)
    for name, buffer in model.named_buffers():
        if name in saved and name not in packed and id(buffer) not in inside:
            yield name, buffer


def _copy(value: Tensor) -> Tensor:
    return whole(value).detach().cpu().clone()
