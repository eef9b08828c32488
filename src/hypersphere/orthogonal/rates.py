r"""A learning rate that means the same for every map, block size, width and optimizer.

With w = R(U) v, a step of length eta on U changes the weights by an amount that depends on the
map (near the identity, eight times as much for Cayley as for Loewdin), on the squared length of
the neurons, on the share of them that a block sees, and, for Adam, on how many numbers U has. So
the rate of U is scaled: for a random gradient G of the weight, a step on U at the scaled rate
decreases the loss, to first order, by as much as a step on the weight itself at the given rate
would,

.. math::
    \text{SGD:}\quad \eta\, |\nabla_U|_2^2 = \mathrm{lr}\, |G|_2^2 \qquad
    \text{Adam:}\quad \eta\, |\nabla_U|_1 = \mathrm{lr}\, |G|_1

where grad_U is G carried back through the parametrization itself. Nothing is assumed about the
map, so blocks, structures, starts and own maps T(v) need no formula of their own.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor, nn

__all__ = ["RateScale", "rate_scale"]

PROBES = 4  # random gradients to average over; their entries average by themselves


@dataclass(frozen=True)
class RateScale:
    """What a rotation's learning rate and weight decay are multiplied by.

    Args:
        rate: eta / lr.
        decay: factor of the weight decay that leaves its effect per step unchanged.
    """

    rate: float
    decay: float


def rate_scale(
    module: nn.Module, parameter: str, trained: list[Tensor], optimizer: str = "sgd"
) -> RateScale:
    """Scale of the learning rate of the numbers behind one rotated weight.

    Args:
        module: the layer.
        parameter: the name of its rotated weight.
        trained: the parameters of the map R.
        optimizer: "sgd", "ogd", "adam" or "adamw".
    """
    weight = getattr(module, parameter)
    generator = torch.Generator().manual_seed(0)
    plain = turned = 0.0
    for _ in range(PROBES):
        G = torch.randn(weight.shape, generator=generator).to(weight)
        found = torch.autograd.grad(getattr(module, parameter), trained, G, allow_unused=True)
        grads = [g.double() for g in found if g is not None]
        if optimizer == "sgd":
            plain += G.double().square().sum().item()
            turned += sum(g.square().sum().item() for g in grads)
        else:
            plain += G.double().abs().sum().item()
            turned += sum(g.abs().sum().item() for g in grads)
    rate = plain / turned if turned > 0 else 1.0
    return RateScale(rate, 1 / rate)
