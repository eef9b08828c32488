"""Hashes of the base: rotations of one model's neurons mean nothing to those of another.

A weight is hashed as it was before `rotate`, so that the plain model and the rotated one have the
same hashes: identity starts leave the neurons as they were, or (Householder, skew) permute them,
which is undone. A weight with learned lengths keeps unit vectors in its place, and is left out.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from typing import Any, cast

import torch
from torch import Tensor, nn
from torch.nn.utils.parametrize import is_parametrized

from ...finding import weight_state
from ...finding.kinds import held_weights
from ..forms import make_map, map_options
from ..matrices import TURNED_START
from ..pretrained import whole
from ..rotation import Rotation, rotations
from ..task_values import base_values

__all__ = ["base_hashes", "foreign_base", "packed_weights", "start_of"]


@torch.no_grad()
def base_hashes(model: nn.Module, trained: set[str]) -> dict[str, str]:
    """Hash of every parameter that is not trained, and of quantized weights that are no parameters.

    Args:
        model: a plain or rotated model.
        trained: names of parameters to leave out, as in the rotated model.

    Returns:
        16 hexadecimal digits by the name that the parameter has in the plain model.
    """
    # bitsandbytes repacks 4-bit weights where they run without gradients, and unpacks them when
    # their state is collected.
    model.state_dict(keep_vars=True)
    return {name: _hash(whole(value)) for name, value in _base(model, trained)}


def _base(model: nn.Module, trained: set[str]) -> Iterator[tuple[str, Tensor]]:
    names = {id(module): name for name, module in model.named_modules()}
    rotated: set[int] = set()
    for _, module, parameter, rotation in rotations(model):
        if rotation.side == "input":  # the weight is where it was
            rotated.update(id(p) for p in rotation.parameters())
            continue
        chain: Any = cast(Any, module.parametrizations)[parameter]
        rotated.update(id(p) for p in chain.parameters())
        path = f"{names[id(module)]}.{parameter}".lstrip(".")
        prefix = f"{names[id(module)]}.parametrizations.{parameter}".lstrip(".")
        if f"{prefix}.original" not in trained and rotation.lengths is None:
            yield path, _before_rotation(path, whole(chain.original), rotation)
    # Names of a plain model whose rotated twin trains the neurons or their lengths.
    replaced = {
        name.replace("parametrizations.", "").rpartition(".original")[0] for name in trained
    } | {
        name.replace("parametrizations.", "").removesuffix(".0.lengths")
        for name in trained
        if name.endswith(".0.lengths")
    }
    before = base_values(model)  # another adapter may be in place
    for name, value in model.named_parameters():
        if id(value) not in rotated and name not in trained and name not in replaced:
            yield name, before.get(name, value)
    for name, packed in packed_weights(model).items():
        if name not in trained:
            yield name, packed


def packed_weights(model: nn.Module) -> dict[str, Tensor]:
    """What quantized layers keep as buffers, or give out when they are called for their weight.

    Args:
        model: a plain or rotated model.

    Returns:
        Tensors by name.
    """
    found: dict[str, Tensor] = {}
    for name, module in model.named_modules():
        # Asking a parametrized layer for its weight would compute it, which FSDP2 cannot do here.
        if is_parametrized(module) or not _is_packed(module):
            continue
        prefix = f"{name}." if name else ""
        weight: Any = getattr(module, "weight", None)
        if callable(weight) and not isinstance(weight, Tensor):  # torch.ao.nn.quantized
            found[f"{prefix}weight"] = weight().dequantize()
        buffers = module._buffers.items()
        found |= {prefix + key: value for key, value in buffers if value is not None}
    return found


def _is_packed(module: nn.Module) -> bool:
    held = [h.parameter for h in held_weights(module, embeddings=True)]
    return any(weight_state(module, parameter, {})[0] == "quantized" for parameter in held)


def start_of(options: dict[str, Any]) -> str:
    """Maps of one answer start from the same neurons: the weight itself, but for two methods.

    Args:
        options: of the map, arguments of `rotate`.

    Returns:
        "identity", or the method.
    """
    turned = options["method"] in TURNED_START and options.get("structure") != "reflections"
    return str(options["method"]) if turned else "identity"


def _before_rotation(path: str, neurons: Tensor, rotation: Rotation) -> Tensor:
    """The weight before `rotate(start="identity")`: R at its start, applied to the neurons."""
    if rotation.method not in TURNED_START:
        return neurons
    first = make_map(rotation.layout, map_options(path, rotation)).double().to(neurons.device)
    rows: Tensor = first(rotation.layout.rows(neurons).double())
    return rotation.layout.weight(rows).to(neurons.dtype)


def foreign_base(
    expected: dict[str, str], found: dict[str, str], which: str = "this model"
) -> str | None:
    """What tells two bases apart, as the end of a sentence.

    Args:
        expected: hashes of the base that an adapter was trained on.
        found: hashes of the model it is for.
        which: the owner of `found`, for the sentence.

    Returns:
        The difference, or None if there is none.
    """
    for word, names in (("lacks", expected.keys() - found), ("also has", found.keys() - expected)):
        if names:
            return f"{which} {word} {_some(sorted(names))}"
    other = [name for name in expected if expected[name] != found[name]]
    if other:
        return f"{len(other)} of {len(expected)} weights differ: {_some(other)}"
    return None


def _some(names: list[str]) -> str:
    return ", ".join(names[:3]) + (f" and {len(names) - 3} more" if len(names) > 3 else "")


def _hash(value: Tensor) -> str:
    if value.is_meta:
        raise ValueError("a model on the meta device has no weights to compare; load them first")
    digest = hashlib.sha256(f"{value.dtype} {tuple(value.shape)}".encode())
    for part in _parts(value.detach()):
        plain = part.cpu()
        # + 0 makes one zero of the two, which a permutation in floating point may exchange; numbers
        # of 8 bits cannot be added, and are not permuted
        wide = plain.is_floating_point() and plain.dtype.itemsize > 1
        plain = plain + 0 if wide else plain
        content: Any = plain.contiguous().reshape(-1).view(torch.uint8).numpy()
        digest.update(content)
    return digest.hexdigest()[:16]


def _parts(value: Tensor) -> Iterator[Tensor]:
    """The tensors behind a tensor: codes and scales of a quantized one (torchao), else itself."""
    flatten = getattr(value, "__tensor_flatten__", None)
    if flatten is None:
        yield torch.Tensor.as_subclass(value, Tensor)
        return
    for name in flatten()[0]:
        yield from _parts(getattr(value, name))
