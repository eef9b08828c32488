"""Files with plain keys: what others read from a rotated model, and what it reads from others.

`save_pretrained` of a Hugging Face model writes `state_dict()`, and `from_pretrained` draws at
random whatever it does not find there. The keys of a rotated model are not those of the plain one,
so its `save_pretrained` is replaced by one that writes folded weights. In the other direction, a
plain weight that is loaded into a rotated layer becomes its neurons.
"""

from __future__ import annotations

import inspect
import sys
import warnings
from types import MethodType
from typing import Any, cast

import torch
from torch import Tensor, nn

from .beside_peft import guard_merges, refuse_peft_files
from .fold import tied_names, why_not_written
from .forms import make_map, map_options
from .input_side import effective_weight
from .rotation import INPUT_ROTATION, Rotation, rotations

__all__ = ["folded_state", "install_plain_files", "whole"]

_BESIDE = f"{INPUT_ROTATION}."


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
            cast(Any, module).register_load_state_dict_pre_hook(_load_plain)
            cast(Any, module).register_state_dict_post_hook(_fold_for_parent)
    guard_merges(model)


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

    Raises:
        ValueError: if R cannot be multiplied into a weight, because it is quantized or tied to
            another one.

    >>> from hypersphere.orthogonal import rotate
    >>> list(folded_state(rotate(nn.Linear(6, 4))))
    ['weight', 'bias']
    """
    found = dict(model.state_dict() if state is None else state)
    names: dict[int, list[str]] = {}  # of every module, which may be used twice
    for name, module in model.named_modules(remove_duplicate=False):
        names.setdefault(id(module), []).append(f"{name}." if name else "")
    for label, module, parameter, rotation in rotations(model):
        inside = f"parametrizations.{parameter}." if rotation.side == "weight" else _BESIDE
        prefixes = [p for p in names[id(module)] if any(k.startswith(p + inside) for k in found)]
        if not prefixes:
            continue
        why = why_not_written(module, parameter, rotation) or tied_names(model, module, parameter)
        if why:
            raise ValueError(
                f"the rotation of {label} cannot be multiplied into its weight ({why}); keep what "
                f"was trained with hypersphere.orthogonal.save_adapter(model, folder), which "
                f"load_adapter(base, folder) reads"
            )
        weight = whole(effective_weight(module, parameter, rotation)).detach().clone()
        for prefix in prefixes:
            found = _replaced(found, prefix, inside, parameter, weight)
    return found


def _replaced(
    state: dict[str, Any], prefix: str, inside: str, parameter: str, weight: Tensor
) -> dict[str, Any]:
    """The state with the weight of one layer in place of what its rotation holds."""
    plain = {k: v for k, v in state.items() if not k.startswith(prefix + inside)}
    if prefix + parameter in plain:
        return {**plain, prefix + parameter: weight}
    at = next((k for k in plain if prefix and k.startswith(prefix)), None)
    return _insert(plain, at, prefix + parameter, weight)


def whole(value: Tensor) -> Tensor:
    """A tensor with all its rows: one that FSDP2 has sharded is gathered, by all processes."""
    full = getattr(value, "full_tensor", None)
    return value if full is None else cast(Tensor, full())


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


# Note [Models around a rotated one]
# If only a part of a model was rotated, the `save_pretrained` of the whole is not ours, and some
# libraries take no state from the caller. All collect the states of the layers, so a rotated layer
# looks who asks, and answers with plain weights.
_LIBRARIES = ("transformers", "huggingface_hub", "diffusers", "sentence_transformers")


def _fold_for_parent(module: nn.Module, state_dict: Any, prefix: str, *rest: Any) -> None:
    """Fold the state of a layer that is collected for `save_pretrained`."""
    if _called_from(("peft",), ("save_pretrained",)):
        # RotationCallback writes an adapter with everything beside the files of PEFT.
        if not all(_keeps_neurons(rotation) for *_, rotation in rotations(module)):
            refuse_peft_files()
        return
    if not _called_from(_LIBRARIES, ("save_pretrained",)):  # Note [Models around a rotated one]
        return
    keys = [key for key in state_dict if key.startswith(prefix)]
    part = {key[len(prefix) :]: state_dict.pop(key) for key in keys}
    state_dict.update({prefix + key: v for key, v in folded_state(module, part).items()})


def _called_from(libraries: tuple[str, ...], functions: tuple[str, ...]) -> bool:
    """Whether one of these functions is at work further up."""
    frame: Any = sys._getframe(2)
    while frame is not None:
        library = str(frame.f_globals.get("__name__", "")).partition(".")[0]
        if frame.f_code.co_name in functions and library in libraries:
            return True
        frame = frame.f_back
    return False


# Note [Neurons of the base]
# The Trainer of Hugging Face reads back the folded weights it wrote. The callback that has written
# R beside them brings it afterwards, and then the neurons have to be those of the base. Weights
# that the caller loads become neurons, as ever.
_TRAINER_READS = ("_load_from_checkpoint", "_load_best_model")


def _keeps_neurons(rotation: Rotation) -> bool:
    """Whether the callback of the Trainer is in charge. Note [Neurons of the base]."""
    return bool(getattr(rotation, "keeps_neurons", False))


def _begin(rotation: Rotation, device: torch.device) -> None:
    """Give a rotation that was made on the meta device its start."""
    if rotation.start_energy.is_meta:
        rotation.to_empty(device=device)  # else `to_empty` was called by the user
    start = make_map(rotation.layout, map_options("", rotation))
    rotation.map.load_state_dict(start.state_dict())
    rotation.start_energy.fill_(float("nan"))
    rotation.current_task.zero_()
    rotation.moved_neurons.zero_()
    rotation.unset = False


@torch.no_grad()
def _load_plain(module: nn.Module, state_dict: dict[str, Any], prefix: str, *rest: Any) -> None:
    """Give the neurons the plain weight of a state dict, so that R turns them into that weight."""
    for _, owner, parameter, rotation in rotations(module):
        value = state_dict.get(prefix + parameter)
        if owner is not module or value is None:
            continue
        beside = rotation.side == "input"
        inner = f"{prefix}{INPUT_ROTATION}." if beside else f"{prefix}parametrizations.{parameter}."
        if any(key.startswith(inner) for key in state_dict):
            continue  # the state of a rotated model
        if rotation.unset:
            _begin(rotation, value.device)
        if beside and why_not_written(module, parameter, rotation):
            continue
        chain: Any = rotation if beside else cast(Any, module.parametrizations)[parameter]
        neurons = getattr(module, parameter) if beside else chain.original
        if value.shape != neurons.shape:
            continue
        resumes = _called_from(("transformers",), _TRAINER_READS)
        if resumes and not _keeps_neurons(rotation):
            warnings.warn(
                "the Trainer reads folded weights into a rotated model: its rotations begin anew, "
                "without what its optimizer remembers. Trainer(..., callbacks=[hypersphere."
                "integrations.RotationCallback()]), at the first run already, resumes them",
                stacklevel=2,
            )
        if not (resumes and _keeps_neurons(rotation)):
            plain = value.to(neurons.dtype) if neurons.is_meta else value.to(neurons)
            neurons = rotation.right_inverse(plain)
            if rotation.other_neurons(neurons, plain):
                state_dict[f"{inner}{'' if beside else '0.'}moved_neurons"] = torch.tensor(True)
        del state_dict[prefix + parameter]
        state_dict[prefix + parameter if beside else inner + "original"] = neurons.detach()
        for name, own in chain.state_dict().items():
            state_dict.setdefault(inner + name, own)
