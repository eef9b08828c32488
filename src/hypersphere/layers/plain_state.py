"""State dicts of plain torch layers, loaded into decoupled ones."""

from __future__ import annotations

import copy
from typing import Any

import torch
from torch import nn

__all__ = ["accept_plain_state"]


def accept_plain_state(layer: nn.Module, state: dict[str, Any], prefix: str, *_: object) -> None:
    """Let the state dict of a plain twin load strictly: it says nothing about the operator.

    What the operator learns keeps its value, or its start where it has no value yet because the
    layer is on the meta device.

    Args:
        layer: the decoupled layer, whose `operator` holds what is missing.
        state: the state dict, which is filled in place.
        prefix: the name of the layer in it, with a dot.
    """
    if any(key.startswith(f"{prefix}operator.") for key in state):
        return
    own = layer.get_submodule("operator")
    operator = own
    if any(t.is_meta for t in (*operator.parameters(), *operator.buffers())):
        weight = state.get(f"{prefix}weight")
        operator = _started(operator, "cpu" if weight is None else weight.device)
        for name, module in operator.named_modules():
            # Buffers that no state dict has, such as a fixed rescaling, are put in place here.
            for key in module._non_persistent_buffers_set:
                setattr(own.get_submodule(name), key, getattr(module, key))
    for key, value in operator.state_dict().items():
        state[f"{prefix}operator.{key}"] = value


def _started(operator: nn.Module, device: torch.device | str) -> nn.Module:
    """A copy on a real device, with all values where training starts."""
    started = copy.deepcopy(operator).to_empty(device=device)
    for name, module in started.named_modules():
        reset = getattr(module, "reset_parameters", None)
        if callable(reset):
            reset()
        elif any(True for _ in module.parameters(recurse=False)):
            raise RuntimeError(
                f"operator.{name} is on the meta device and {type(module).__name__} has no "
                f"reset_parameters() from which it could start; make the layer on a real device"
            )
    return started
