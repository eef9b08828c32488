r"""A learning rate that means the same for every map, block size, width and optimizer.

With w = R(U) v, a step of length eta on U changes the weights by an amount that depends on the
map (near the identity, eight times as much for Cayley as for Loewdin), on the squared length of
the neurons, on the share of them that a block sees and, for Adam, on how many numbers U has. So
the rate of U is scaled: for a random gradient G of the weight, a step on U at the scaled rate
decreases the loss, to first order, by as much as a step on the weight at the given rate would,

.. math::
    \text{SGD:}\quad \eta\, |\nabla_U|_2^2 = \mathrm{lr}\, |G|_2^2 \qquad
    \text{Adam:}\quad \eta\, |\nabla_U|_1 = 0.6\, \mathrm{lr}\, |G|_1

where the gradient of U is G carried back through the parametrization itself. Nothing is assumed
about the map, so blocks, starts and own maps T(v) need no formula of their own.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, TypeAlias, get_args

import torch
from torch import Tensor, nn

from ..registry import unknown_name
from .input_side import base_weight
from .rotation import Rotation, TwoSided, rotations

__all__ = ["OptimizerKind", "RateScale", "check_optimizer", "rate_scales"]

OptimizerKind: TypeAlias = Literal["sgd", "ogd", "adam", "adamw"]

PROBES = 4  # random gradients to average over; the entries of each average by themselves
# A sign step turns the neurons further than the decrease of the loss tells: for equal decrease, two
# to five times as far as plain Adam. This share keeps both within a factor of about two.
ADAM_SHARE = 0.6


@dataclass(frozen=True)
class RateScale:
    """What the learning rate and the weight decay of a rotation are multiplied by.

    Args:
        rate: learning rate of U over that of plain weights.
        decay: weight decay of U over that of plain weights, for an equal effect per step.
    """

    rate: float
    decay: float


def check_optimizer(optimizer: str) -> None:
    """Raise a ValueError unless the rates of this optimizer can be scaled."""
    if optimizer not in get_args(OptimizerKind):
        raise unknown_name("optimizer", optimizer, get_args(OptimizerKind))


def rate_scales(model: nn.Module, optimizer: OptimizerKind = "sgd") -> dict[int, RateScale]:
    """Scale of the learning rate of every parameter that turns neurons.

    Args:
        model: a rotated model.
        optimizer: "sgd", "ogd", "adam" or "adamw".

    Returns:
        :class:`RateScale` by the id of the parameter.
    """
    check_optimizer(optimizer)
    found: dict[int, RateScale] = {}
    for _, module, parameter, rotation in rotations(model):
        # Two matrices share the decrease between them.
        turn = rotation.map
        maps = [turn.inputs, turn.outputs] if isinstance(turn, TwoSided) else [turn]
        for part in maps:
            trained = [p for p in part.parameters() if p.requires_grad and p.numel()]
            if trained:
                # OGD steps its own matrices, whatever moves the rest.
                kind = "ogd" if rotation.method == "ogd" else optimizer
                scale = _scale(module, parameter, rotation, trained, kind, 1 / len(maps))
                found.update((id(p), scale) for p in trained)
    return found


def _scale(
    module: nn.Module,
    parameter: str,
    rotation: Rotation,
    trained: list[nn.Parameter],
    optimizer: str,
    share: float,
) -> RateScale:
    # On the input side the base is read once; a quantized one has to be found out.
    base = base_weight(module, parameter, rotation) if rotation.side == "input" else None
    weight: Tensor = getattr(module, parameter) if base is None else base
    if weight.is_meta:
        raise ValueError(
            "the rates of rotations are measured on the weights, which are on the meta device: "
            "load them first, or give rotations the raw rate (scale_rotations=False)"
        )
    generator = torch.Generator().manual_seed(0)
    plain = turned = 0.0
    for _ in range(PROBES):
        G = torch.randn(weight.shape, generator=generator).to(weight)
        with torch.enable_grad():
            turned_weight = getattr(module, parameter) if base is None else rotation(base)
            grads = torch.autograd.grad(
                turned_weight, trained, G, allow_unused=True, materialize_grads=True
            )
        if optimizer == "ogd":
            plain += _squares(G)
            turned += sum(_squares(_tangent(g, U)) for g, U in zip(grads, trained, strict=True))
        elif optimizer == "sgd":
            plain += _squares(G)
            turned += sum(map(_squares, grads))
        else:
            plain += ADAM_SHARE * G.double().abs().sum().item()
            turned += sum(g.double().abs().sum().item() for g in grads)
    if not turned > 0:
        return RateScale(1.0, 1.0)  # nothing to turn: neurons of length 0
    plain *= share
    rate = plain / turned
    if optimizer == "adam":
        # Its decay is part of the gradient: the same share of it, entry by entry.
        numbers = sum(p.numel() for p in trained)
        return RateScale(rate, turned / numbers / (plain / ADAM_SHARE / weight.numel()))
    return RateScale(rate, 1 / rate)  # decay per step is rate x decay


def _squares(value: Tensor) -> float:
    return value.double().square().sum().item()


def _tangent(gradient: Tensor, U: Tensor) -> Tensor:
    """W of Eq. 7.5, along which OGD moves: half the skew part of G U^T."""
    product = gradient.double() @ U.detach().double().mT
    return 0.5 * (product - product.mT)
