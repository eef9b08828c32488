"""An optimizer for a fine-tuned model: rotations at their own rates, and decay where it belongs."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from typing import Annotated, Any, Literal

import torch
from torch import nn
from torch.optim import Optimizer

from ..orthogonal import OGD, parameter_groups
from ..orthogonal.beside_peft import guard_merges
from ..orthogonal.rotation import rotations
from ..ranges import Range
from ..registry import unknown_name

__all__ = ["TrainerOptimizer", "rotation_optimizer"]

_NAMES = ("adamw", "adam", "sgd", "ogd")


def rotation_optimizer(
    model: nn.Module,
    name: Literal["adamw", "adam", "sgd", "ogd"] = "adamw",
    lr: Annotated[float, Range(ge=0)] = 1e-3,
    weight_decay: Annotated[float, Range(ge=0)] = 0.0,
    shard: Callable[[nn.Module], object] | None = None,
    **options: Any,
) -> Optimizer:
    """An optimizer over the groups of :func:`hypersphere.orthogonal.parameter_groups`.

    Rotations have no weight decay and learn at rates scaled so that `lr` means for them what it
    means for plain weights. Of the other parameters, vectors (biases, norms) do not decay either,
    as in Hugging Face's Trainer. Schedulers of torch and transformers multiply the rate of each
    group, which keeps the scale.

    Args:
        model: a rotated model.
        name: "adamw", "adam", "sgd", or "ogd": Eq. 7.6 on the matrices of
            ``rotate(method="ogd")``, SGD on the rest.
        lr: learning rate of plain weights.
        weight_decay: of plain weights.
        shard: FSDP2's `fully_shard`, or a function that calls it on parts of the model. The rates
            of rotations are measured on whole matrices, so the model is sharded in here, after
            that and before the optimizer takes its parameters.
        options: further arguments of the optimizer: betas, momentum and so on.

    Returns:
        The optimizer.

    Raises:
        ValueError: if the name is unknown, nothing is trained, or rotations of method "ogd" would
            be moved by another optimizer than OGD.

    >>> from hypersphere.orthogonal import rotate
    >>> model = rotate(nn.Sequential(nn.Linear(8, 8), nn.Linear(8, 2)), start="identity")
    >>> optimizer = rotation_optimizer(model, lr=1e-3, weight_decay=0.1)
    >>> [(group["name"], group["weight_decay"]) for group in optimizer.param_groups]
    [('rotations', 0.0), ('undecayed', 0.0), ('decayed', 0.1)]
    """
    if name not in _NAMES:
        raise unknown_name("optimizer", name, _NAMES)
    if name != "ogd" and any(rotation.method == "ogd" for *_, rotation in rotations(model)):
        raise ValueError(
            f"only OGD keeps rotations of method 'ogd' orthogonal: rotation_optimizer(model, 'ogd')"
            f", or rotate(model, method='cayley') for {name!r}"
        )
    _check_whole(model)
    guard_merges(model)  # of LoRA layers that came after `rotate`
    _warn_of_frozen_rotations(model)
    groups = _vectors_apart(parameter_groups(model, weight_decay, lr=lr, optimizer=name))
    if not groups:
        raise ValueError(
            f"{type(model).__name__} has no parameter to train: rotate(model) after freezing it"
        )
    if shard is not None:
        names = {id(p): key for key, p in model.named_parameters()}
        keys = [[names[id(p)] for p in group["params"]] for group in groups]
        shard(model)  # in place, with parameters of another class
        sharded = dict(model.named_parameters())
        for group, own in zip(groups, keys, strict=True):
            group["params"] = [sharded[key] for key in own]
    if name == "ogd":
        return OGD(groups, lr=lr, **options)
    classes = {"adamw": torch.optim.AdamW, "adam": torch.optim.Adam, "sgd": torch.optim.SGD}
    made: Optimizer = classes[name](groups, lr=lr, **options)
    return made


def _check_whole(model: nn.Module) -> None:
    """Raise unless all rotations are whole matrices with values."""
    for label, _, _, rotation in rotations(model):
        for p in rotation.map.parameters():
            if hasattr(p, "full_tensor"):
                raise ValueError(
                    f"the rotation of {label} is sharded already, and rates are measured on whole "
                    f"matrices: rotation_optimizer(model, ..., shard=fully_shard) shards the model "
                    f"itself"
                )
            if p.is_meta:
                raise ValueError(
                    f"the rotation of {label} is on the meta device: load_state_dict(weights, "
                    f"assign=True) first"
                )


def _warn_of_frozen_rotations(model: nn.Module) -> None:
    maps = [p for *_, rotation in rotations(model) for p in rotation.map.parameters()]
    if maps and not any(p.requires_grad for p in maps):
        warnings.warn(
            "all rotations are frozen and will not be trained: rotate(model) after freezing it and "
            "after get_peft_model(model, ...), which freezes everything but its own adapters",
            stacklevel=3,
        )


def _vectors_apart(groups: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """The decayed group without biases and norms, which form one of their own."""
    result: list[dict[str, Any]] = []
    for group in groups:
        vectors = [p for p in group["params"] if p.ndim <= 1]
        if group["name"] != "decayed" or not vectors:
            result.append(group)
            continue
        result.append({**group, "name": "undecayed", "params": vectors, "weight_decay": 0.0})
        matrices = [p for p in group["params"] if p.ndim > 1]
        if matrices:
            result.append({**group, "params": matrices})
    return result


class TrainerOptimizer:
    """:func:`rotation_optimizer` as Hugging Face's Trainer takes it.

    ``Trainer(..., optimizer_cls_and_kwargs=(TrainerOptimizer, {"lr": 1e-3}))`` makes the optimizer
    when the Trainer needs it, over the model that the Trainer has prepared. The Trainer does not
    hand on `learning_rate` and `weight_decay` of its TrainingArguments: give them here.
    """

    def __call__(self, model: nn.Module, **options: Any) -> Optimizer:
        """The optimizer of a model.

        Args:
            model: a rotated model.
            options: arguments of :func:`rotation_optimizer`.

        Returns:
            The optimizer.
        """
        if "lr" not in options:
            raise ValueError(
                "TrainerOptimizer expects a rate, (TrainerOptimizer, {'lr': 1e-3}): learning_rate "
                "and weight_decay of TrainingArguments do not reach it"
            )
        return rotation_optimizer(model, **options)
