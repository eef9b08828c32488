"""Optimizers by name, with the parameter groups this field needs.

Weight decay acts on neurons whose length counts. It is off for rotations of OPT, for what the
layers name (k, operator radii, rescaling, filters of unweighted operators) and for what a module
lists in `no_weight_decay`.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import nn
from torch.optim import Optimizer

__all__ = ["OPTIMIZERS", "make_optimizer", "optimizer_groups"]

OPTIMIZERS = ("sgd", "adam", "adamw", "ogd")


def optimizer_groups(
    model: nn.Module,
    weight_decay: float = 0.0,
    rotation_lr: float | None = None,
    head_weight_decay: float | None = None,
    decay_rotations: bool = False,
) -> list[dict[str, Any]]:
    """Parameter groups with and without weight decay; rotations may have a learning rate of their
    own.

    Args:
        model: the network.
        weight_decay: of the neurons whose length counts. Default: 0.
        rotation_lr: learning rate of rotations. Default: that of the optimizer.
        head_weight_decay: of ``model.head``, if another (a GCN decays its first layer only).
            Default: `weight_decay`.
        decay_rotations: decay R as well where nothing else restrains it, `rotate(method="none")`
            (UPT is R "with only weight decay", 7.5.1) and "regularized". Default: False.

    Returns:
        Groups as the optimizers of torch take them.

    >>> [len(g["params"]) for g in optimizer_groups(nn.Linear(2, 3), weight_decay=5e-4)]
    [2]
    """
    rotations, unrestrained = _rotation_parameters(model)
    free = {id(p) for p in _undecayed(model)}
    head = getattr(model, "head", None)
    heads = {id(p) for p in head.parameters()} if isinstance(head, nn.Module) else set()
    own_rate = {} if rotation_lr is None else {"lr": rotation_lr}
    groups: dict[str, dict[str, Any]] = {
        "neurons": {"params": [], "weight_decay": weight_decay},
        "head": {"params": [], "weight_decay": head_weight_decay},
        "undecayed": {"params": [], "weight_decay": 0.0},
        "rotations": {"params": [], "weight_decay": 0.0, **own_rate},
        "decayed rotations": {"params": [], "weight_decay": weight_decay, **own_rate},
    }
    for parameter in model.parameters():
        if not parameter.requires_grad:
            continue
        key = "neurons"
        if decay_rotations and id(parameter) in unrestrained:
            key = "decayed rotations"
        elif id(parameter) in rotations:
            key = "rotations"
        elif id(parameter) in free:
            key = "undecayed"
        elif head_weight_decay is not None and id(parameter) in heads:
            key = "head"
        groups[key]["params"].append(parameter)
    return [group for group in groups.values() if group["params"]]


def _rotation_parameters(model: nn.Module) -> tuple[set[int], set[int]]:
    """Ids of what turns the neurons, and of that part of it which may leave orthogonality."""
    from hypersphere.orthogonal import Rotation

    every: set[int] = set()
    unrestrained: set[int] = set()
    for module in model.modules():
        if isinstance(module, Rotation):
            own = {id(p) for p in module.parameters()}
            every |= own
            unrestrained |= own if module.method in ("none", "regularized") else set()
    return every, unrestrained


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
    decay_rotations: bool = False,
    iterations: int = 2,
    others: str = "sgd",
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
        decay_rotations: decay rotations that nothing else restrains. Default: False.
        iterations: fixed-point iterations of OGD's update (Eq. 7.6). Default: 2.
        others: with "ogd", what moves everything but its matrices: "sgd", "adam" or "adamw".

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
    groups = optimizer_groups(model, weight_decay, rotation_lr, head_weight_decay, decay_rotations)
    if not groups:
        raise ValueError("the model has no parameter to train")
    if name == "sgd":
        return torch.optim.SGD(
            groups, lr=lr, momentum=momentum, dampening=dampening, nesterov=nesterov
        )
    if name == "ogd":
        from hypersphere.orthogonal import OGD

        if others == "sgd":
            return OGD(groups, lr, momentum, iterations, nesterov=nesterov)
        from hypersphere.training.ogd_adam import OGDAdam

        return OGDAdam(groups, lr, momentum, iterations, betas, eps, others == "adamw", nesterov)
    if name == "adam":
        return torch.optim.Adam(groups, lr=lr, betas=betas, eps=eps)
    if name == "adamw":
        return torch.optim.AdamW(groups, lr=lr, betas=betas, eps=eps)
    raise ValueError(f"optimizer must be one of {', '.join(OPTIMIZERS)}; got {name!r}")
