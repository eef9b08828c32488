"""Optimizers by name, with the parameter groups this field needs.

Weight decay acts on neurons whose length counts. It is off for rotations of OPT, for what the
layers name (k, operator radii, rescaling, filters of unweighted operators) and for what a module
lists in `no_weight_decay`.
"""

from __future__ import annotations

from typing import Any, Literal, cast

import torch
from torch import nn
from torch.optim import Optimizer

from hypersphere.orthogonal import OGD, Rotation, parameter_groups
from hypersphere.orthogonal.rates import OptimizerKind
from hypersphere.registry import unknown_name

__all__ = ["OPTIMIZERS", "make_optimizer", "optimizer_groups"]

OPTIMIZERS = ("sgd", "adam", "adamw", "ogd")


def optimizer_groups(
    model: nn.Module,
    weight_decay: float = 0.0,
    rotation_lr: float | None = None,
    head_weight_decay: float | None = None,
    decay_rotations: bool | Literal["all"] = False,
    lr: float | None = None,
    optimizer: OptimizerKind = "sgd",
) -> list[dict[str, Any]]:
    """Parameter groups with and without weight decay; rotations may have a learning rate of their
    own.

    Args:
        model: the network.
        weight_decay: of the neurons whose length counts. Default: 0.
        rotation_lr: learning rate of rotations. Default: `lr`.
        head_weight_decay: of ``model.head``, if another (a GCN decays its first layer only).
            Default: `weight_decay`.
        decay_rotations: decay R as well where nothing else restrains it, `rotate(method="none")`
            (UPT is R "with only weight decay", 7.5.1) and "regularized"; "all" decays every U
            (F.3). Default: False.
        lr: learning rate of plain weights, in whose unit rotations learn: their rates are scaled
            (`orthogonal.parameter_groups`). Default: raw rates.
        optimizer: what will use the groups.

    Returns:
        Groups as the optimizers of torch take them.

    >>> [len(g["params"]) for g in optimizer_groups(nn.Linear(2, 3), weight_decay=5e-4)]
    [2]
    """
    free = {id(p) for p in _undecayed(model)}
    head = getattr(model, "head", None)
    heads = {id(p) for p in head.parameters()} if isinstance(head, nn.Module) else set()
    groups: dict[Any, dict[str, Any]] = {
        "neurons": {"params": [], "weight_decay": weight_decay},
        "head": {"params": [], "weight_decay": head_weight_decay},
        "undecayed": {"params": [], "weight_decay": 0.0},
    }
    turning = _rotation_groups(model, weight_decay, rotation_lr, decay_rotations, lr, optimizer)
    for parameter in model.parameters():
        if not parameter.requires_grad or id(parameter) in turning:
            continue
        key = "neurons"
        if id(parameter) in free:
            key = "undecayed"
        elif head_weight_decay is not None and id(parameter) in heads:
            key = "head"
        groups[key]["params"].append(parameter)
    rotations = list({id(group): group for group in turning.values()}.values())
    return [group for group in (*groups.values(), *rotations) if group["params"]]


def _rotation_groups(
    model: nn.Module,
    weight_decay: float,
    rotation_lr: float | None,
    decay_rotations: bool | Literal["all"],
    lr: float | None,
    optimizer: OptimizerKind,
) -> dict[int, dict[str, Any]]:
    """The group of every parameter that turns neurons, by its id; scaled ones per layer."""
    base = rotation_lr if rotation_lr is not None else lr
    found: dict[int, dict[str, Any]] = {}
    for group in parameter_groups(
        model,
        weight_decay,
        decay_rotations,
        lr=base,
        optimizer=optimizer,
        scale_rotations=lr is not None,
    ):
        own = [p for p in group["params"] if id(p) in _turning(model)]
        if own:
            kept: dict[str, Any] = {
                key: group[key] for key in ("lr", "weight_decay") if key in group
            }
            new = {"params": own, **kept}
            found.update((id(p), new) for p in own)
    return found


def _turning(model: nn.Module) -> set[int]:
    """Ids of what turns the neurons."""
    modules = (m for m in model.modules() if isinstance(m, Rotation))
    return {id(p) for m in modules for p in m.map.parameters()}


def _undecayed(model: nn.Module) -> list[nn.Parameter]:
    """What the layers name (k, radii, rescaling, filters whose length does not count), and what a
    module lists in `no_weight_decay`.
    """
    from hypersphere import layers

    groups = layers.parameter_groups(model, weight_decay=1.0)
    found = [p for group in groups if group["weight_decay"] == 0 for p in group["params"]]
    for module in model.modules():
        marked = getattr(module, "no_weight_decay", False)  # True: all of it; else names
        for name, parameter in module.named_parameters():
            if marked is True or (marked and name in marked):
                found.append(parameter)
    return found


def check_rotation_optimizer(config: Any) -> None:
    """ValueError if the optimizer cannot train what the config rotates."""
    if (config.rotate or {}).get("method") == "ogd" and config.optimizer.name != "ogd":
        raise ValueError(
            "rotate.method=ogd learns matrices that only optimizer.name=ogd keeps orthogonal "
            f"(Eq. 7.6); got optimizer.name={config.optimizer.name}: set that, with "
            "optimizer.others for the rest of the network, or choose another rotate.method"
        )


def make_optimizer(
    model: nn.Module,
    name: str = "sgd",
    lr: float = 0.1,
    momentum: float = 0.9,
    dampening: float = 0.0,
    nesterov: bool = False,
    betas: tuple[float, float] = (0.9, 0.999),
    eps: float = 1e-8,
    weight_decay: float = 0.0,
    rotation_lr: float | None = None,
    head_weight_decay: float | None = None,
    decay_rotations: bool | Literal["all"] = False,
    iterations: int = 2,
    others: str = "sgd",
    scale_rotations: bool = True,
) -> Optimizer:
    """An optimizer by name, with the groups of `optimizer_groups`.

    Args:
        model: the network.
        name: "sgd", "adam", "adamw", or "ogd": Eq. 7.6 on the matrices of `rotate(method="ogd")`,
            and on everything else SGD or what `others` names.
        lr: learning rate.
        momentum: of SGD and OGD.
        dampening: of SGD.
        nesterov: Nesterov's momentum, of SGD and OGD.
        betas: decay rates of the moments, of Adam and AdamW.
        eps: added to the denominator, of Adam and AdamW.
        weight_decay: of Adam the classic L2 penalty that the dissertation uses; AdamW decouples it.
        rotation_lr: learning rate of rotations. Default: `lr`.
        head_weight_decay: weight decay of the head. Default: `weight_decay`.
        decay_rotations: decay rotations that nothing else restrains; "all" decays all of them.
            Default: False.
        iterations: fixed-point iterations of OGD's update (Eq. 7.6). Default: 2.
        others: with "ogd", what moves everything but its matrices: "sgd", "adam" or "adamw".
        scale_rotations: scale the rates of rotations so that `lr` means for them what it means for
            plain weights. Default: True.

    Returns:
        The optimizer.

    >>> make_optimizer(nn.Linear(2, 2), "adam", lr=1e-3).param_groups[0]["lr"]
    0.001
    """
    if others != "sgd" and name != "ogd":
        raise ValueError(
            f"optimizer.others={others!r} goes with optimizer.name=ogd, which moves the matrices "
            f"of rotate and leaves the rest to it; got optimizer.name={name}"
        )
    if name not in OPTIMIZERS:
        raise unknown_name("optimizer", name, OPTIMIZERS)
    groups = optimizer_groups(
        model,
        weight_decay,
        rotation_lr,
        head_weight_decay,
        decay_rotations,
        lr if scale_rotations else None,
        cast(OptimizerKind, others if name == "ogd" else name),
    )
    if not groups:
        raise ValueError("the model has no parameter to train")
    if name == "sgd":
        return torch.optim.SGD(
            groups, lr=lr, momentum=momentum, dampening=dampening, nesterov=nesterov
        )
    if name == "ogd":
        if others == "sgd":
            return OGD(groups, lr, momentum, iterations, nesterov=nesterov)
        from hypersphere.training.ogd_adam import OGDAdam

        return OGDAdam(groups, lr, momentum, iterations, betas, eps, others == "adamw", nesterov)
    if name == "adam":
        return torch.optim.Adam(groups, lr=lr, betas=betas, eps=eps)
    if name == "adamw":
        return torch.optim.AdamW(groups, lr=lr, betas=betas, eps=eps)
    raise AssertionError(name)
