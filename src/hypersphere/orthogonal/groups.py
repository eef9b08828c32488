"""Parameter groups for an optimizer: which parameters decay, and how fast rotations learn."""

from __future__ import annotations

from typing import Any, Literal

from torch import nn

from ..ranges import Range, check
from .rates import OptimizerKind, RateScale, check_optimizer, rate_scales
from .rotation import rotations

__all__ = ["parameter_groups"]


def parameter_groups(
    model: nn.Module,
    weight_decay: float = 5e-4,
    decay_rotations: bool | Literal["all"] = False,
    *,
    lr: float | None = None,
    optimizer: OptimizerKind = "sgd",
    scale_rotations: bool = True,
) -> list[dict[str, Any]]:
    """Optimizer groups: rotation parameters without weight decay, the rest with.

    With `lr`, the groups have learning rates, and those of rotations are scaled so that the same
    lr fits every map, block size, width and optimizer: to first order, a step changes the loss
    about as much as plain training at that lr would. Each rotated layer is then a group.

    Rotations of method "ogd" come in groups of their own with ``orthogonal=True``, for
    :class:`OGD`. Parameters marked `no_weight_decay` (True on themselves or on their module, or
    by name in a collection on it) have none either. Frozen ones, such as the neurons, are left out.

    Args:
        model: any model, usually a rotated one.
        weight_decay: of the parameters that decay.
        decay_rotations: True decays R too where nothing else restrains it, methods "none" and
            "regularized": UPT is an unconstrained R "with only weight decay" (7.5.1). "all" decays
            every U, as in the dissertation (F.3).
        lr: learning rate of plain weights. Default: groups without a rate, to be given to the
            optimizer, which is then the raw rate of rotations, too.
        optimizer: what will use the groups: "sgd" (with or without momentum), "ogd", "adam" or
            "adamw".
        scale_rotations: False gives rotations the raw `lr`.

    Returns:
        Groups for an optimizer, each with "name", "params" and "weight_decay", and with "lr" if it
        was given; empty ones are left out.

    Raises:
        ValueError: if `lr` or `weight_decay` is no finite number from 0 on, or the optimizer is
            unknown.

    >>> from hypersphere.orthogonal import rotate
    >>> model = nn.Sequential(rotate(nn.Linear(4, 4), "ogd"), nn.Linear(4, 2))
    >>> [(g["name"], g["weight_decay"], len(g["params"])) for g in parameter_groups(model)]
    [('orthogonal', 0.0, 1), ('decayed', 0.0005, 3)]
    >>> model = rotate(nn.Sequential(nn.Linear(8, 8), nn.Linear(8, 2)), "cayley")
    >>> [g["name"] for g in parameter_groups(model, lr=0.1)]
    ['rotations', 'decayed']
    """
    check_optimizer(optimizer)
    for name, value in (("lr", 0.0 if lr is None else lr), ("weight_decay", weight_decay)):
        number = value.item() if hasattr(value, "item") else value  # of a tensor or an array
        check(name, number, float, Range(ge=0))
    scales: dict[int, RateScale] = {}
    if lr is not None and scale_rotations:
        scales = rate_scales(model, optimizer)
    kinds = _kinds(model, decay_rotations)
    groups: dict[tuple[str, int | None], dict[str, Any]] = {}
    order = ("orthogonal", "rotations", "undecayed", "decayed")
    for parameter in model.parameters():
        if not parameter.requires_grad:
            continue
        kind, decays = kinds.get(id(parameter), ("decayed", True))
        scale = scales.get(id(parameter))
        key = (kind, None if scale is None else id(parameter))
        if key not in groups:
            group: dict[str, Any] = {"name": kind, "params": []}
            if kind == "orthogonal":
                group["orthogonal"] = True
            if lr is not None:
                group["lr"] = lr if scale is None else lr * scale.rate
            decay = weight_decay if decays else 0.0
            group["weight_decay"] = decay if scale is None else decay * scale.decay
            groups[key] = group
        groups[key]["params"].append(parameter)
    return sorted(groups.values(), key=lambda group: order.index(group["name"]))


def _kinds(model: nn.Module, decay_rotations: bool | Literal["all"]) -> dict[int, tuple[str, bool]]:
    """(name of its group, whether it decays) of every parameter that is not simply decayed."""
    kind: dict[int, tuple[str, bool]] = {}
    for _, _, _, rotation in rotations(model):
        free = rotation.method in ("none", "regularized")
        decays = decay_rotations == "all" or bool(decay_rotations and free)
        name = "decayed" if decays else "rotations"
        for p in rotation.map.parameters():
            kind[id(p)] = ("orthogonal", False) if rotation.method == "ogd" else (name, decays)
        if rotation.lengths is not None:  # a scale per neuron, as in normalization layers
            kind[id(rotation.lengths)] = ("undecayed", False)
    for module in model.modules():
        marked = getattr(module, "no_weight_decay", ())
        marked = marked() if callable(marked) else marked  # some libraries have it as a method
        for name, p in module.named_parameters():
            # the learned neurons of a rotated `weight` are still that weight
            name = name.replace("parametrizations.", "").removesuffix(".original")
            if marked is True or name in (marked or ()) or getattr(p, "no_weight_decay", False):
                kind.setdefault(id(p), ("undecayed", False))
    return kind
