"""Files with plain keys: what others read from a rotated model, and what it reads from others.

`save_pretrained` of a Hugging Face model writes `state_dict()`, and `from_pretrained` draws at
random whatever it does not find there. The keys of a rotated model are not those of the plain one,
so its `save_pretrained` is replaced by one that writes folded weights. In the other direction, a
plain weight that is loaded into a rotated layer becomes its neurons.
"""

from __future__ import annotations

import inspect
from types import MethodType
from typing import Any, cast

import torch
from torch import Tensor, nn

from .rotation import Rotation, rotations

__all__ = ["folded_state", "install_plain_files"]


def install_plain_files(model: nn.Module) -> None:
    """Make the model write and read plain weights; for `rotate`.

    Args:
        model: a rotated model.
    """
    for module in model.modules():
        save = getattr(type(module), "save_pretrained", None)
        if save is not None and "state_dict" in inspect.signature(save).parameters:
            # A bound method of the module: copies and pickles bind it to theirs.
            module.__dict__["save_pretrained"] = MethodType(_save_folded, module)
    for _, module, _, _ in rotations(model):
        if _load_plain not in _hooks(module):
            module.register_load_state_dict_pre_hook(_load_plain)


def _hooks(module: nn.Module) -> list[object]:
    wrapped: Any = module._load_state_dict_pre_hooks.values()
    return [getattr(hook, "hook", hook) for hook in wrapped]


@torch.no_grad()
def folded_state(model: nn.Module, state: dict[str, Any] | None = None) -> dict[str, Any]:
    """The state dict that the model will have after `fold`, which leaves it as it is.

    Args:
        model: a rotated model, or a plain one.
        state: its state dict, or a part of it. Default: all of it.

    Returns:
        A state dict with the keys of the plain model.

    >>> from hypersphere.orthogonal import rotate
    >>> list(folded_state(rotate(nn.Linear(6, 4))))
    ['weight', 'bias']
    """
    found = dict(model.state_dict() if state is None else state)
    names = {id(module): name for name, module in model.named_modules()}
    for _, module, parameter, _ in rotations(model):
        before = f"{names[id(module)]}." if names[id(module)] else ""
        inner = f"{before}parametrizations.{parameter}."
        if any(key.startswith(inner) for key in found):
            weight: Tensor = getattr(module, parameter)
            gather = getattr(weight, "full_tensor", None)
            value = weight.detach() if gather is None else cast(Tensor, gather())
            plain = {k: v for k, v in found.items() if not k.startswith(inner)}
            at = next((k for k in plain if before and k.startswith(before)), None)
            found = _insert(plain, at, f"{before}{parameter}", value.clone())
    return found


def _insert(state: dict[str, Any], at: str | None, key: str, value: Tensor) -> dict[str, Any]:
    """The state with one more entry, before the key `at` or else at the beginning."""
    result: dict[str, Any] = {} if at is not None else {key: value}
    for name, entry in state.items():
        if name == at:
            result[key] = value
        result[name] = entry
    return result


def _save_folded(
    self: Any,
    save_directory: Any,
    is_main_process: bool = True,
    state_dict: dict[str, Any] | None = None,
    **options: Any,
) -> Any:
    """`save_pretrained` of a rotated model: the folded weights, which any loader reads."""
    if options.get("distributed_checkpoint", False) and next(rotations(self), None) is not None:
        raise ValueError(
            "distributed_checkpoint=True would write rotations and neurons, which from_pretrained "
            "cannot read: fold(model) first, leave it out, or keep what was trained with "
            "hypersphere.orthogonal.save_adapter(model, folder)"
        )
    return type(self).save_pretrained(
        self,
        save_directory,
        is_main_process=is_main_process,
        state_dict=folded_state(self, state_dict),
        **options,
    )


@torch.no_grad()
def _load_plain(module: nn.Module, state_dict: dict[str, Any], prefix: str, *_: Any) -> None:
    """Give the neurons the plain weight of a state dict, so that R turns them into that weight."""
    chains: Any = getattr(module, "parametrizations", {})
    for parameter, chain in chains.items():
        rotation = next((p for p in chain.children() if isinstance(p, Rotation)), None)
        inner = f"{prefix}parametrizations.{parameter}."
        value = state_dict.get(prefix + parameter)
        known = inner + "original" in state_dict or rotation is None or value is None
        if known or value.shape != chain.original.shape:
            continue
        # The Trainer of Hugging Face reads such files back; then the callback that wrote R beside
        # them brings it, and the neurons are those of the base already.
        if not getattr(rotation, "keeps_neurons", False):
            state_dict[inner + "original"] = rotation.right_inverse(value.to(chain.original))
        for name, own in chain.state_dict().items():
            state_dict.setdefault(inner + name, own)
        del state_dict[prefix + parameter]
