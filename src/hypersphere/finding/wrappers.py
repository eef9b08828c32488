"""Weights that are not simply a parameter: adapters, normalized, quantized, tied ones."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.utils import parametrize
from torch.nn.utils.prune import BasePruningMethod

from .sites import State

__all__ = ["adapted_layer", "lora_reader", "saved_copies", "weight_source", "weight_state"]

_FLOATS = (torch.float16, torch.bfloat16, torch.float32, torch.float64)


def adapted_layer(module: nn.Module) -> nn.Module | None:
    """The layer inside an adapter of PEFT (LoRA, OFT, ...); None for any other module."""
    base = getattr(module, "base_layer", None)
    return base if isinstance(base, nn.Module) and hasattr(module, "active_adapters") else None


def saved_copies(module: nn.Module) -> tuple[nn.Module, dict[str, nn.Module]] | None:
    """(frozen original, active copies by name) of PEFT's modules_to_save; None for any other."""
    original = getattr(module, "original_module", None)
    copies = getattr(module, "modules_to_save", None)
    if not isinstance(original, nn.Module) or not isinstance(copies, nn.ModuleDict):
        return None
    if getattr(module, "disable_adapters", False):
        return original, {}
    active: Any = getattr(module, "active_adapters", None) or getattr(module, "active_adapter", ())
    names = [active] if isinstance(active, str) else list(active)
    return original, {name: copies[name] for name in names if name in copies}


# Note [LoRA]
# The factors B (n, r) and A (r, d) are no layers: what computes is W + s B A, or only W if they are
# merged into it already. DoRA rescales the rows of that sum to lengths of its own.
def lora_reader(wrapper: Any, base: Any) -> Callable[[], Tensor] | None:
    """Reads the weight that a LoRA layer computes with. Note [LoRA]."""
    if not hasattr(wrapper, "lora_A") or not callable(getattr(wrapper, "get_delta_weight", None)):
        return None
    return partial(_lora_sum, wrapper, base)


def _lora_sum(wrapper: Any, base: Any) -> Tensor:
    read = weight_state(base, "weight", {})[2]  # the base may be rotated or normalized itself
    weight: Tensor = base.weight if read is None else read()
    if getattr(wrapper, "merged", False) or getattr(wrapper, "disable_adapters", False):
        return weight
    for name in wrapper.active_adapters:
        if name not in wrapper.lora_A and name not in getattr(wrapper, "lora_embedding_A", ()):
            continue
        weight = weight + wrapper.get_delta_weight(name).to(weight.dtype)
        lengths = getattr(wrapper, "lora_magnitude_vector", {})
        if name in lengths:
            # One length per output: per column in the Conv1D of Hugging Face and in embeddings.
            columns = getattr(wrapper, "fan_in_fan_out", False) or isinstance(base, nn.Embedding)
            axes = tuple(axis for axis in range(weight.ndim) if axis != int(columns))
            own = torch.linalg.vector_norm(weight, dim=axes, keepdim=True)
            weight = weight * (lengths[name].weight.reshape(own.shape) / own)
    return weight


def weight_source(module: nn.Module, parameter: str) -> object:
    """The parameter itself; under a parametrization, the object that makes the weight."""
    parametrized: Any = getattr(module, "parametrizations", {})
    if parameter in parametrized:
        return parametrized[parameter]
    hook = _legacy_hook(module, parameter)
    # A property makes a new tensor each time: the module stands for it.
    if hook is not None or parameter not in module._parameters:
        return module
    return module._parameters[parameter]


def weight_state(
    module: nn.Module, parameter: str, owners: dict[int, list[str]]
) -> tuple[State, str, Callable[[], Tensor] | None]:
    """Whether a weight is a parameter of its own, and if not, what it is.

    Args:
        module: that has the weight.
        parameter: name of the weight in the module.
        owners: names of each parameter of the model, by its id.

    Returns:
        (state, remark, reader if the attribute is not the effective weight).
    """
    state, remark, reader = _own_state(module, parameter, owners)
    turn: Any = getattr(module, "input_rotation", None)
    if parameter == "weight" and isinstance(turn, nn.Module):
        # hypersphere's own, see orthogonal/input_side.py
        remark = "; ".join(text for text in (remark, "rotated on the input side") if text)
        if state != "quantized":  # the codes of a packed weight cannot be turned
            reader = partial(_turned, turn, module, reader)
    return state, remark, reader


def _turned(turn: nn.Module, module: Any, reader: Callable[[], Tensor] | None) -> Tensor:
    weight: Any = module.weight if reader is None else reader()
    turned: Tensor = turn(weight.full_tensor() if hasattr(weight, "full_tensor") else weight)
    return turned


def _own_state(
    module: nn.Module, parameter: str, owners: dict[int, list[str]]
) -> tuple[State, str, Callable[[], Tensor] | None]:
    """:func:`weight_state` of a weight by itself."""
    if parametrize.is_parametrized(module, parameter):
        chain: Any = module.parametrizations
        made = ", ".join(type(part).__name__ for part in chain[parameter])
        return "computed", f"parametrized: {made}", None
    hook = _legacy_hook(module, parameter)
    if hook is not None:
        return "computed", _hook_remark(hook), partial(_recompute, hook, module)
    weight = getattr(module, parameter, None)
    packing = _packing(weight)
    if packing:
        return "quantized", packing, None
    if parameter not in module._parameters:
        return "computed", "a property", None
    if hasattr(weight, "full_tensor"):
        return "sharded", "DTensor", None
    if isinstance(module, nn.RNNBase):
        return "packed", f"{type(module).__name__} reads it past parametrizations", None
    names = owners.get(id(weight), [])
    if len(names) > 1:
        return "tied", f"one tied weight: {' and '.join(names)}", None
    return "plain", "on the meta device" if weight is not None and weight.is_meta else "", None


_HOOKS = {"WeightNorm": "weight_norm", "SpectralNorm": "spectral_norm"}


def _legacy_hook(module: nn.Module, parameter: str) -> Any:
    """The hook of torch.nn.utils (weight_norm, spectral_norm, prune) that makes this weight."""
    for hook in module._forward_pre_hooks.values():
        if type(hook).__name__ in _HOOKS and getattr(hook, "name", None) == parameter:
            return hook
        if isinstance(hook, BasePruningMethod) and hook._tensor_name == parameter:
            return hook
    return None


def _hook_remark(hook: Any) -> str:
    if isinstance(hook, BasePruningMethod):
        return "pruned"
    return f"legacy {_HOOKS[type(hook).__name__]}"


def _recompute(hook: Any, module: nn.Module) -> Tensor:
    # The attribute is what the last forward pass left, with a graph that may be used up.
    if isinstance(hook, BasePruningMethod):
        pruned: Tensor = hook.apply_mask(module)  # type: ignore[no-untyped-call]
        return pruned
    if type(hook).__name__ == "SpectralNorm":
        result: Tensor = hook.compute_weight(module, do_power_iteration=False)
        return result
    result = hook.compute_weight(module)
    return result


def _packing(weight: Any) -> str:
    """What a weight is packed as; empty for one of plain floating-point numbers."""
    if not isinstance(weight, Tensor):
        return "quantized"
    library = type(weight).__module__.split(".")[0]
    if library in ("bitsandbytes", "torchao"):
        return f"quantized: {library} {type(weight).__name__}"
    if weight.is_quantized or weight.dtype not in _FLOATS:
        return f"quantized: {str(weight.dtype).removeprefix('torch.')}"
    return ""
