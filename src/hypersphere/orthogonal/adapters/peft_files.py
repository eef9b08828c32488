r"""PEFT's OFT adapters, read and written without PEFT.

    adapter_config.json          block size or number of blocks for all layers, names of the modules
    adapter_model.safetensors    base_model.model.NAME.oft_R.weight: (blocks or 1, b (b - 1) / 2)

PEFT turns the input, y = W (x Q) with rows x and Q = (I - S)(I + S)^{-1}, S skew with the stored
numbers above its diagonal, row by row. So its Q is our R = (I + U)(I - U)^{-1} with U = -S. That is
its exact transform, which the files written here ask for. PEFT's default is another one: the series
of (I + S)(I - S)^{-1}, with S for -S, cut after a few terms and thus not orthogonal.
"""

from __future__ import annotations

import json
import math
import re
import warnings
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from ..._reading import Unreadable, read_json, read_tensors
from ...functional import orthogonalize
from ..beside_peft import is_peft_model
from ..rotation import Matrix
from .adapter import Adapter, AdapterLayer
from .adapter_files import remove_adapter, replace_file, safetensors_bytes

__all__ = ["PEFT_RECORD", "read_peft", "write_peft"]

PEFT_RECORD = "adapter_config.json"
_TENSORS = "adapter_model.safetensors"
_PREFIX = "base_model.model."
_ROTATION = ".oft_R.weight"
_OTHERWISE = "; save_adapter(..., format='hypersphere') holds it"
# Deviation of PEFT's series from the exact transform that is worth a warning.
_SERIES_ERROR = 1e-5


def write_peft(
    adapter: Adapter, folder: Path, model: nn.Module | None, writes: bool = True
) -> None:
    """Write the files that PEFT's OFT reads.

    Args:
        adapter: what to write.
        folder: made if it is not there.
        model: the model it is from, which tells linear layers from others.
        writes: False only checks, for the processes that do not write.

    Raises:
        ValueError: if PEFT's files cannot hold it.
    """
    if model is None:
        raise ValueError(
            "PEFT's files name modules of a model: load_adapter(model, adapter), then "
            "save_adapter(model, folder, format='peft')"
        )
    if is_peft_model(model):
        raise ValueError(
            f"PEFT's OFT files cannot hold a rotation beside PEFT's own adapters{_OTHERWISE} with "
            f"both"
        )
    modules = dict(model.named_modules())
    tensors, shapes = {}, {}
    for path, layer in adapter.layers.items():
        name = path.rpartition(".")[0]
        _check_layer(path, modules.get(name), layer.options)
        U = _above_diagonal(layer.tensors["U"])
        tensors[f"{_PREFIX}{name}{_ROTATION}"] = -U[0]
        shapes[name] = (layer.options["blocks"], _block_length(U.shape[-1]))
    whole_modules = _whole_modules(adapter, modules)
    for name, value in adapter.values.items():
        tensors[f"{_PREFIX}{name}"] = value
    config = _config(model, shapes, whole_modules, adapter)
    if not writes:
        return
    folder.mkdir(parents=True, exist_ok=True)
    replace_file(folder / _TENSORS, safetensors_bytes(tensors, {"format": "pt"}))
    replace_file(
        folder / PEFT_RECORD, (json.dumps(config, indent=2, sort_keys=True) + "\n").encode()
    )
    remove_adapter(folder)  # an older one of the other format would be read in place of this


def _check_layer(path: str, module: nn.Module | None, options: dict[str, Any]) -> None:
    reasons = {
        f"structure={options.get('structure')!r}": options.get("structure", "blocks") != "blocks",
        "rotations on both sides": options.get("both_sides", False),
        "learned lengths": options.get("learn_lengths", False),
        f"the method {options['method']!r} (PEFT has 'cayley')": options["method"] != "cayley",
        f"a layer of class {type(module).__name__} (PEFT: linear layers)": not _is_linear(module)
        or path.rpartition(".")[2] != "weight",
    }
    for reason, applies in reasons.items():
        if applies:
            raise ValueError(f"PEFT's OFT files cannot hold {path} with {reason}{_OTHERWISE}")


def _is_linear(module: nn.Module | None) -> bool:
    # A quantized linear layer is a subclass, or calls itself one by in_features and out_features.
    return isinstance(module, nn.Linear) or (
        hasattr(module, "in_features") and not isinstance(module, (nn.Bilinear, nn.Conv2d))
    )


def _whole_modules(adapter: Adapter, modules: dict[str, nn.Module]) -> list[str]:
    """PEFT's modules_to_save: modules whose every parameter was trained."""
    names: dict[str, None] = {}
    for value in adapter.values:
        name = value.rpartition(".")[0]
        names[name] = None
        if value in adapter.layers or value.endswith(".original"):
            raise ValueError(
                f"PEFT's OFT files cannot hold {value}: these neurons are not those of the base "
                f"any more (restart, a random start, learn_neurons=True). fold(model) and save the "
                f"whole model{_OTHERWISE}"
            )
        if f"{name}.weight" in adapter.layers:
            raise ValueError(
                f"PEFT's OFT files cannot hold {value} beside the rotation of {name}.weight: "
                f"freeze it (requires_grad_(False)) before training{_OTHERWISE}"
            )
        inside = {f"{name}.{key}" for key in modules[name].state_dict()} if name in modules else {}
        if not name or ".parametrizations" in value or not adapter.values.keys() >= set(inside):
            raise ValueError(
                f"PEFT's OFT files hold rotations and whole modules, and {value} was trained by "
                f"itself: freeze it (requires_grad_(False)) before training{_OTHERWISE}"
            )
    return list(names)


def _config(
    model: nn.Module,
    shapes: dict[str, tuple[int, int]],
    whole_modules: list[str],
    adapter: Adapter,
) -> dict[str, Any]:
    counts, lengths = ({shape[i] for shape in shapes.values()} for i in (0, 1))
    shared = {layer.options["share_blocks"] for layer in adapter.layers.values()}
    if (len(counts) > 1 and len(lengths) > 1) or len(shared) > 1:
        raise ValueError(
            f"PEFT's OFT files have one number of blocks, or one block size, for all layers; here "
            f"there are {sorted(counts)} blocks of length {sorted(lengths)}{_OTHERWISE}"
        )
    by_length = len(lengths) == 1
    own_config = getattr(model, "config", None)
    return {
        "peft_type": "OFT",
        "task_type": None,
        "base_model_name_or_path": getattr(own_config, "_name_or_path", None) or None,
        "inference_mode": True,
        "r": 0 if by_length else counts.pop(),
        "oft_block_size": lengths.pop() if by_length else 0,
        "block_share": shared.pop(),
        "use_cayley_neumann": False,
        "num_cayley_neumann_terms": 5,
        "coft": False,
        "eps": 6e-05,
        "module_dropout": 0.0,
        "bias": "none",
        "fan_in_fan_out": False,
        "init_weights": True,
        "target_modules": _targets(model, sorted(shapes)),
        "modules_to_save": whole_modules or None,
    }


def _targets(model: nn.Module, names: list[str]) -> list[str] | str:
    """PEFT's target_modules: names, or an expression where a name is also the end of another."""
    ends = tuple(f".{name}" for name in names)
    others = (name for name, _ in model.named_modules() if name not in names)
    if any(name.endswith(ends) for name in others):
        return "|".join(re.escape(name) for name in names)
    return names


def read_peft(folder: Path, model: nn.Module | None = None) -> Adapter:
    """Read PEFT's files of an OFT adapter.

    Args:
        folder: with adapter_config.json and adapter_model.safetensors.
        model: the model it is for: blocks that are shared need the width of the layers.

    Returns:
        The adapter, with no hashes of the base: PEFT keeps none.

    Raises:
        FileNotFoundError: if a file is not there.
        Unreadable: if a file is damaged, or is no OFT adapter that can be read.
    """
    path = folder / PEFT_RECORD
    config = read_json(path)
    if not isinstance(config, dict) or config.get("peft_type") != "OFT":
        kind = config.get("peft_type") if isinstance(config, dict) else type(config).__name__
        raise Unreadable(f"{path} is no OFT adapter: peft_type is {kind!r}")
    layers: dict[str, AdapterLayer] = {}
    values: dict[str, Tensor] = {}
    modules = {} if model is None else dict(model.named_modules())
    for key, value in read_tensors(folder / _TENSORS).items():
        # Biases that were trained lie in the layer that PEFT has wrapped.
        name = key.removeprefix(_PREFIX).replace(".base_layer.", ".")
        if name.endswith(_ROTATION):
            module = name.removesuffix(_ROTATION)
            layers[f"{module}.weight"] = _layer(folder, module, value, config, modules)
        elif ".oft_" in name or name.startswith("oft_"):
            raise Unreadable(f"{folder / _TENSORS} turns {name}: only linear layers can be read")
        else:
            values[name] = value
    if not layers:
        raise Unreadable(f"{folder / _TENSORS} has no rotation ({_ROTATION})")
    _warn_of_series(folder, config, layers)
    return Adapter(layers, values)


def _layer(
    folder: Path, name: str, value: Tensor, config: dict[str, Any], modules: dict[str, nn.Module]
) -> AdapterLayer:
    if value.dim() != 2 or not value.is_floating_point():
        raise Unreadable(f"{folder}: the rotation of {name} should be (blocks, numbers)")
    module = modules.get(name)
    if isinstance(module, nn.Module) and not _is_linear(module):
        raise Unreadable(
            f"{folder} turns {name}, a {type(module).__name__}. Only linear layers can be read: "
            f"on convolutions PEFT's forward pass is not that of any rotated filter"
        )
    length = _block_length(value.shape[1])
    shared = bool(config.get("block_share", False))
    blocks = len(value)
    if shared:
        width = getattr(module, "in_features", None)
        if width is None:
            raise Unreadable(
                f"{folder} shares one block over all of {name}: the model is needed to tell how "
                f"often (load_adapter has it; merge does not)"
            )
        blocks = int(width) // length
    if length * (length - 1) // 2 != value.shape[1]:
        raise Unreadable(f"{folder}: {value.shape[1]} numbers are no triangle of a block of {name}")
    wide = torch.promote_types(value.dtype, torch.float32)
    U = torch.zeros(1, len(value), length, length, dtype=wide)
    rows, columns = torch.triu_indices(length, length, 1)
    sign = 1 if config.get("use_cayley_neumann", False) else -1
    U[0, :, rows, columns] = sign * value.to(U.dtype)
    options = {
        "method": "cayley",
        "blocks": blocks,
        "share_blocks": shared and blocks > 1,
        "side": "auto",
    }
    state = Matrix(U, "cayley", blocks).state_dict()
    return AdapterLayer(options, {key: tensor.clone() for key, tensor in state.items()})


def _warn_of_series(folder: Path, config: dict[str, Any], layers: dict[str, AdapterLayer]) -> None:
    """PEFT's default cuts the series of the Cayley transform; say so where that can be seen."""
    if not config.get("use_cayley_neumann", False):
        return
    worst = 0.0
    for layer in layers.values():
        upper = _square(layer.tensors["U"]).double()
        series = _series(upper - upper.mT, int(config.get("num_cayley_neumann_terms", 5)))
        worst = max(worst, float((series - orthogonalize(upper, "cayley")).abs().max()))
    if worst > _SERIES_ERROR:
        warnings.warn(
            f"{folder} was trained with PEFT's series of the Cayley transform, which is off by "
            f"{worst:.1g} here and not orthogonal; it is read with the exact transform",
            stacklevel=2,
        )


def _series(S: Tensor, terms: int) -> Tensor:
    """I + 2 S + 2 S^2 + ... + S^n, n = terms - 1 but at least 3: what PEFT takes for Cayley."""
    eye = torch.eye(S.shape[-1], dtype=S.dtype).expand_as(S)
    if terms <= 2:
        return eye + 2 * S if terms == 2 else eye
    total, power, last = eye, eye, max(terms - 1, 3)
    for i in range(1, last + 1):
        power = power @ S
        total = total + (1 if i == last else 2) * power
    return total


def _block_length(numbers: int) -> int:
    """b with b (b - 1) / 2 numbers above the diagonal."""
    return (1 + math.isqrt(1 + 8 * numbers)) // 2


def _above_diagonal(U: Tensor) -> Tensor:
    """(sets, blocks, b (b - 1) / 2) of matrices, or what is stored so already."""
    if U.dim() == 3:
        return U
    rows, columns = torch.triu_indices(U.shape[-1], U.shape[-1], 1)
    return U[..., rows, columns]


def _square(U: Tensor) -> Tensor:
    """The opposite of :func:`_above_diagonal`."""
    if U.dim() == 4:
        return U.triu(1)
    length = _block_length(U.shape[-1])
    rows, columns = torch.triu_indices(length, length, 1)
    square = U.new_zeros(*U.shape[:2], length, length)
    square[..., rows, columns] = U
    return square
