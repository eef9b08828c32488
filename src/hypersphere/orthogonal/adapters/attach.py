"""Give a model the adapter: rotate what it turns, then put in what was trained; all or nothing."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from ...finding import find_layers
from ..fold import use_task
from ..forms import form_of, make_map, map_options
from ..pretrained import install_plain_files
from ..rotation import DEFAULT_TASK, Rotation
from ..task_values import put_value, remember_values
from .adapter import Adapter, neurons, rotated_weights
from .base_hash import base_hashes, foreign_base, start_of
from .maps import PlainWeights, rotate_weight, undo_rotation

__all__ = ["attach", "other_maps"]

MISMATCH = "the adapter does not fit this model"


@torch.no_grad()
def attach(model: nn.Module, adapter: Adapter, task: str, check_base: bool = True) -> nn.Module:
    """Add the adapter as a task and make it the current one.

    Args:
        model: plain or rotated; in place.
        adapter: what to add.
        task: its name in the model; a task of that name is overwritten.
        check_base: whether the hashes of the base have to agree.

    Returns:
        The model.

    Raises:
        ValueError: if the adapter does not fit; the model is then as it was.
    """
    before = rotated_weights(model)
    _check_names(model, adapter, before)
    if check_base and adapter.base is not None:
        difference = foreign_base(adapter.base, base_hashes(model, set(adapter.values)))
        if difference is not None:
            raise ValueError(
                f"{MISMATCH}: it was trained over another base; {difference}. Load the base it was "
                f"trained on (same weights, same type), or pass check_base=False"
            )
    new = _rotate_missing(model, adapter, before)
    try:
        maps = _all_maps(model, adapter, task)
        places = _places(model, adapter)
    except BaseException:
        for module, plain in new:
            undo_rotation(module, plain)
        raise
    current = next(iter(before.values()))[2].task if before else DEFAULT_TASK
    for (rotation, name), made in maps.items():
        _put_map(rotation, name, made)
    brought = {id(places[name]) for name in adapter.values}
    for item in rotated_weights(model).values():
        if id(neurons(*item)) in brought:
            item[2].moved_neurons.fill_(True)
    remember_values(model, task, adapter.values, current)
    if current == task:
        for name, value in adapter.values.items():
            put_value(places[name], value)
    install_plain_files(model)
    return use_task(model, task)


def other_maps(model: nn.Module, adapter: Adapter) -> str:
    """How the maps of an adapter differ in form from those of a model.

    Args:
        model: a rotated model.
        adapter: to compare with.

    Returns:
        The first difference as a sentence without its full stop; empty if there is none.
    """
    here = {path: map_options(path, found[2]) for path, found in rotated_weights(model).items()}
    there = {path: layer.options for path, layer in adapter.layers.items()}
    for path in sorted(here.keys() | there.keys()):
        if path not in there:
            return f"it does not rotate {path}, as the model does"
        if path not in here:
            return f"it rotates {path}, which the model does not"
        known = [k for k in here[path] if k != "side"]  # either side has the same numbers
        other = [k for k in known if k in there[path] and here[path][k] != there[path][k]]
        if other:
            ours, theirs = (
                ", ".join(f"{key}={of[path][key]!r}" for key in other) for of in (here, there)
            )
            return f"it rotates {path} with {theirs}, the model with {ours}"
    return ""


def _check_names(model: nn.Module, adapter: Adapter, rotated: dict[str, Any]) -> None:
    """Every layer is there, can be turned, and shares its start with the maps it has already."""
    modules = dict(model.named_modules())
    for path, layer in adapter.layers.items():
        name, _, parameter = path.rpartition(".")
        if path in rotated:
            known = map_options(path, rotated[path][2])
            if start_of(known) != start_of(layer.options):
                raise ValueError(
                    f"{MISMATCH}: {path} is rotated by {known['method']!r}, whose neurons differ "
                    f"from those of {layer.options['method']!r}; load it into a plain model"
                )
            for option in ("learn_lengths", "both_sides"):
                theirs = layer.options.get(option, False)
                if known[option] != theirs:
                    raise ValueError(
                        f"{MISMATCH}: {path} is rotated with {option}={known[option]} here, with "
                        f"{option}={theirs} there; load it into a plain model"
                    )
        elif not _has_weight(modules.get(name), parameter):
            raise ValueError(f"{MISMATCH}: it turns {path}, which {type(model).__name__} lacks")


def _has_weight(module: nn.Module | None, parameter: str) -> bool:
    if module is None:
        return False
    if isinstance(getattr(module, parameter, None), Tensor):
        return True
    # A quantized layer may keep its weight under other names.
    return any(
        site.module is module and site.parameter == parameter for site in find_layers(module)
    )


def _rotate_missing(
    model: nn.Module, adapter: Adapter, rotated: dict[str, Any]
) -> list[tuple[nn.Module, PlainWeights]]:
    """Rotate the layers that are not, from the identity; (module, plain weights) of each."""
    modules = dict(model.named_modules())
    done: dict[str, tuple[nn.Module, PlainWeights]] = {}
    try:
        for path, layer in adapter.layers.items():
            name = path.rpartition(".")[0]
            if path not in rotated and name not in done:
                done[name] = (modules[name], rotate_weight(modules[name], layer.options))
    except BaseException:
        for module, plain in done.values():
            undo_rotation(module, plain)
        raise
    return list(done.values())


def _all_maps(
    model: nn.Module, adapter: Adapter, task: str
) -> dict[tuple[Rotation, str], nn.Module]:
    """New maps by layer and task; nothing of the model changes.

    Every layer has every task: where one does not turn a layer, its map is the identity.
    """
    layers, own = rotated_weights(model), _maps(model, adapter)
    tasks = {name for _, _, rotation in layers.values() for name in rotation.tasks} | {task}
    made: dict[tuple[Rotation, str], nn.Module] = {}
    for path, (_, _, rotation) in layers.items():
        for name in sorted(tasks):
            if name == task or name not in rotation.tasks:
                given = own.get(path) if name == task else None
                made[rotation, name] = given or _identity(path, rotation)
    return made


def _maps(model: nn.Module, adapter: Adapter) -> dict[str, nn.Module]:
    """The map of every layer that the adapter turns, filled."""
    found = {}
    for path, (_, _, rotation) in rotated_weights(model).items():
        if path not in adapter.layers:
            continue
        layer = adapter.layers[path]
        made = make_map(rotation.layout, layer.options)
        expected = {key: tuple(value.shape) for key, value in made.state_dict().items()}
        got = {key: tuple(value.shape) for key, value in layer.tensors.items()}
        if expected != got:
            raise ValueError(
                f"{MISMATCH}: the map of {path} should hold {expected}; it holds {got}"
            )
        _like(made, rotation)
        made.load_state_dict(layer.tensors)
        found[path] = made
    return found


def _places(model: nn.Module, adapter: Adapter) -> dict[str, Tensor]:
    own = {**dict(model.named_parameters()), **dict(model.named_buffers())}
    for name, value in adapter.values.items():
        if name not in own:
            raise ValueError(f"{MISMATCH}: it holds {name}, which {type(model).__name__} lacks")
        if own[name].shape != value.shape:
            raise ValueError(
                f"{MISMATCH}: {name} is {tuple(own[name].shape)} here, {tuple(value.shape)} there"
            )
    return own


def _put_map(rotation: Rotation, task: str, made: nn.Module) -> None:
    """In place where the parameters fit, so that an optimizer keeps its hold on them."""
    state = made.state_dict()
    if task in rotation.tasks:
        old = rotation.tasks[task]
        if form_of(old) == form_of(made):
            for name, place in old.named_parameters():
                put_value(place, state[name])
            return
    reference = next(rotation.map.parameters())
    made.requires_grad_(reference.requires_grad)
    rotation.tasks[task] = _like(made, rotation).train(rotation.training)


def _identity(path: str, rotation: Rotation) -> nn.Module:
    return _like(make_map(rotation.layout, map_options(path, rotation)), rotation)


def _like(made: nn.Module, rotation: Rotation) -> nn.Module:
    """The map, where and in the type in which those of the rotation are."""
    reference = next(rotation.map.parameters())
    return made.to(device=reference.device, dtype=reference.dtype)
