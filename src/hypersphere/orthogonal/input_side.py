"""y = W (R^T x): the inputs are turned and the weight is left as it is (OFTv2).

Good for weights that cannot be turned (quantized, sharded, tied or computed ones) and, with small
blocks, cheaper than turning all neurons.
"""

from __future__ import annotations

from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.modules.linear import NonDynamicallyQuantizableLinear

from ..finding import Site
from .rotation import INPUT_ROTATION, Rotation

__all__ = [
    "attach_input_rotation",
    "average_over_ranks",
    "base_weight",
    "detach_input_rotation",
    "effective_weight",
    "why_no_inputs",
]


def why_no_inputs(site: Site) -> str:
    """Why the inputs of a layer cannot be turned; empty if they can."""
    module: Any = site.module
    if isinstance(module, NonDynamicallyQuantizableLinear):
        return "attention reads its weight without calling it"
    if type(module).__module__.split(".")[0] == "hypersphere":
        return f"{type(module).__name__} is no plain linear layer"
    if site.kind in ("linear", "Conv1D") and getattr(module, "neuron_role", None) != "output":
        return ""
    if "convolution" in site.kind and site.layout.dim == site.layout.channels:
        return "" if site.layout.groups == 1 else "its inputs come in groups"
    return f"side='input' is for linear layers and 1x1 convolutions, not for {site.kind}"


def attach_input_rotation(module: nn.Module, rotation: Rotation) -> None:
    """Turn the inputs of a layer by the rotation, which becomes a submodule of it."""
    module.add_module(INPUT_ROTATION, rotation)
    module.register_forward_pre_hook(_turn_input, with_kwargs=True)


# Note [Sharded bases]
# FSDP2 reduces the gradients of what it has sharded. A rotation that joins later is a plain
# parameter on every rank, so it averages its own gradient over the mesh of the weight.
def average_over_ranks(rotation: Rotation, weight: Any) -> None:
    """Average the gradients of a rotation over the ranks of a DTensor. Note [Sharded bases]."""
    mesh = getattr(weight, "device_mesh", None)
    if rotation.side != "input" or mesh is None:
        return
    for p in rotation.parameters():  # those of a new task, too
        if not hasattr(p, "device_mesh") and not getattr(p, "averaged", False):
            hook: Any = p.register_post_accumulate_grad_hook
            hook(partial(_average, mesh))
            p.averaged = True  # type: ignore[attr-defined]


def _average(mesh: Any, p: Tensor) -> None:
    assert p.grad is not None
    for axis in range(mesh.ndim):
        torch.distributed.all_reduce(p.grad, group=mesh.get_group(axis))
    p.grad.div_(mesh.size())


def detach_input_rotation(module: nn.Module) -> None:
    """The plain layer again."""
    del module._modules[INPUT_ROTATION]
    for key, hook in list(module._forward_pre_hooks.items()):
        if hook is _turn_input:
            del module._forward_pre_hooks[key]
            module._forward_pre_hooks_with_kwargs.pop(key, None)


# A plain function, so that copies and pickles of the layer go on working.
def _turn_input(module: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    rotation: Rotation = getattr(module, INPUT_ROTATION)
    if args:
        return (_turned(rotation, args[0]), *args[1:]), kwargs
    name = next(iter(kwargs))
    return args, {**kwargs, name: _turned(rotation, kwargs[name])}


def _turned(rotation: Rotation, x: Tensor) -> Tensor:
    spatial = len(rotation.layout.shape) - 2  # channels of a convolution come before its axes
    x = x.movedim(-1 - spatial, -1) if spatial else x
    d = rotation.layout.dim
    if x.shape[-1] != d:
        raise ValueError(f"expected inputs of {d} features; got {tuple(x.shape)}")
    turned = rotation.turn_inputs(x.reshape(-1, d)).view(x.shape)
    return turned.movedim(-1, -1 - spatial) if spatial else turned


def effective_weight(module: Any, parameter: str, rotation: Rotation) -> Tensor:
    """The weight that a rotated layer computes with, on either side."""
    if rotation.side == "weight":
        result: Tensor = getattr(module, parameter)
        return result
    result = rotation(base_weight(module, parameter, rotation))
    return result


def base_weight(module: Any, parameter: str, rotation: Rotation) -> Tensor:
    """The weight below an input rotation; a packed one is read off the layer's outputs."""
    weight: Any = getattr(module, parameter, None)
    if hasattr(weight, "full_tensor"):
        weight = weight.full_tensor()
    layout = rotation.layout
    plain = isinstance(weight, Tensor) and type(weight) in (Tensor, nn.Parameter)
    codes = not plain or not weight.is_floating_point() or weight.dtype.itemsize == 1
    if not codes and tuple(weight.shape) == layout.shape:
        plain_weight: Tensor = weight.detach()
        return plain_weight
    with torch.no_grad():  # column j of W is the answer to the unit vector e_j, less the bias
        device = rotation.start_energy.device
        own = (*module._parameters.values(), *module._buffers.values())
        floats = (t.dtype for t in own if t is not None and t.is_floating_point())
        dtype = next((kind for kind in floats if kind.itemsize > 1), torch.float32)
        inputs = torch.eye(layout.dim, dtype=dtype, device=device)
        outputs = module.forward(inputs) - module.forward(torch.zeros_like(inputs[:1]))
    rows: Tensor = outputs.float().mT
    return layout.weight(rows)
