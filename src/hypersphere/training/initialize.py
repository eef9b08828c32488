"""Where the neurons start, if not where the network's own initialization puts them."""

from __future__ import annotations

from typing import Literal

import torch
from torch import nn

from hypersphere.functional import normalize as unit

__all__ = ["initialize"]

LAYERS = (nn.Conv1d, nn.Conv2d, nn.Conv3d, nn.ConvTranspose2d, nn.Linear)


@torch.no_grad()
def initialize(
    net: nn.Module,
    distribution: Literal["own", "he", "xavier", "normal"] = "own",
    mean: float = 0.0,
    std: float = 1.0,
    normalize: bool = False,
    head: bool = False,
) -> nn.Module:
    """Draw the weights of a network anew, in place; biases stay. Returns the network.

    Args:
        net: a `Classifier` or any module.
        distribution: "own" keeps the values drawn by the network; "he" is N(0, 2 / fan_in),
            "xavier" N(0, 2 / (fan_in + fan_out)), "normal" N(0, std^2).
        mean: added to every weight. It brings neurons closer to each other, so their energy is
            high from the start (Table 7.2).
        std: standard deviation of "normal".
        normalize: bring every neuron to length 1 (7.3.7, Table 7.7), after all of the above.
        head: the class weights, too.

    >>> layer = initialize(nn.Linear(400, 300), "normal", mean=0.5, std=0.1)
    >>> [round(f(layer.weight).item(), 1) for f in (torch.mean, torch.std)]
    [0.5, 0.1]
    >>> lengths = initialize(nn.Linear(5, 3), normalize=True).weight.detach().norm(dim=1)
    >>> torch.allclose(lengths, torch.ones(3))
    True
    """
    skipped = getattr(net, "head", None)
    own = set() if head or skipped is None else set(skipped.modules())  # type: ignore[union-attr, operator]
    for module in net.modules():
        is_layer = isinstance(module, LAYERS) or getattr(module, "neuron_role", "") == "output"
        if not is_layer or module in own:
            continue
        weight = module.weight
        if distribution == "he":
            nn.init.kaiming_normal_(weight, nonlinearity="relu")  # type: ignore[arg-type]
        elif distribution == "xavier":
            nn.init.xavier_normal_(weight)  # type: ignore[arg-type]
        elif distribution == "normal":
            weight.normal_(std=std)  # type: ignore[operator, union-attr]
        elif distribution != "own":
            raise ValueError(
                f"init.distribution is own, he, xavier or normal; got {distribution!r}"
            )
        weight.add_(mean)  # type: ignore[operator, union-attr]
        if normalize:
            weight.copy_(unit(weight.flatten(1)).view_as(weight))  # type: ignore[operator, union-attr, arg-type]
    return net
