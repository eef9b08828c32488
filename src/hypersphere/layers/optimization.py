"""Training helpers of 4.4: weight projection, weighted gradients, what not to decay.

The output of an unweighted operator does not depend on |w|, but its gradient does: it is that of
the direction divided by |w| (Eq. 4.17), so filters that grow stop learning.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils.hooks import RemovableHandle

from .decoupled import DecoupledConv2d as DecoupledConv2d  # for the examples
from .decoupled import DecoupledLayer
from .decoupled import DecoupledLinear as DecoupledLinear

__all__ = [
    "GradientHandle",
    "decay_groups",
    "parameter_groups",
    "project_weights",
    "weighted_gradients",
]


@torch.no_grad()
def project_weights(model: nn.Module, radius: float = 1.0) -> int:
    """w <- radius w / |w| for every filter whose length does not enter the output (4.4.1).

    Call it every so many steps. Weighted layers are left, for their length is part of the
    function; so are zero filters.

    Args:
        model: any module.
        radius: the new length of the filters, > 0. The larger, the smaller the gradients.

    Returns:
        The number of layers projected.

    >>> layer = DecoupledLinear(4, 3)
    >>> project_weights(layer), layer.weight.detach().norm(dim=1).round(decimals=5)
    (1, tensor([1., 1., 1.]))
    """
    if not radius > 0:
        raise ValueError(f"project_weights expects radius > 0, got {radius}")
    weights = list(_unweighted(model))
    for weight in weights:
        length = _lengths(weight)
        weight.mul_(torch.where(length > 0, radius / length, 1.0))
    return len(weights)


class GradientHandle:
    """What :func:`weighted_gradients` has hooked.

    Args:
        handles: the hooks on the weights.
    """

    def __init__(self, handles: list[RemovableHandle]) -> None:
        self.handles = handles

    def remove(self) -> None:
        """Take the hooks off again."""
        for handle in self.handles:
            handle.remove()
        self.handles = []


def weighted_gradients(model: nn.Module) -> GradientHandle:
    """Multiply the gradient of every unweighted filter by |w|, Eq. 4.18, until removed.

    The update then has the size it would have at |w| = 1. Unlike weight projection, the same
    update turns a long filter less than a short one (C.7). Frozen filters have no gradient and are
    left.

    Args:
        model: any module.

    Returns:
        A handle, whose `remove()` ends it.

    >>> layer = DecoupledLinear(2, 1)
    >>> handle = weighted_gradients(layer)
    >>> handle.remove()
    """
    weights = {id(weight): weight for weight in _unweighted(model)}  # tied ones once
    return GradientHandle([w.register_hook(_Weigh(w)) for w in weights.values() if w.requires_grad])  # type: ignore[no-untyped-call]


class _Weigh:
    def __init__(self, weight: Tensor) -> None:
        self.weight = weight

    def __call__(self, grad: Tensor) -> Tensor:
        return grad * _lengths(self.weight.detach())


def decay_groups(model: nn.Module, weight_decay: float = 5e-4) -> list[dict[str, Any]]:
    """Two groups for an optimizer: with weight decay, and without.

    Without: k, the radius, the rescaling, and the filters whose length does not enter the output
    (3.2.4, 4.5); and whatever else is marked `no_weight_decay`: a module with True for all of it or
    with the names of its parameters, or a parameter with True. With: everything else.

    Args:
        model: any module.
        weight_decay: the decay of the first group.

    Returns:
        Groups of parameters, as torch's optimizers take them; empty ones are left out.

    >>> net = nn.Sequential(DecoupledConv2d(3, 8, 3), nn.Flatten(), nn.Linear(8, 2))
    >>> [len(group["params"]) for group in decay_groups(net)]
    [2, 1]
    """
    free = {id(weight) for weight in _unweighted(model)} | {id(p) for p in _marked(model)}
    parameters = [p for p in model.parameters() if p.requires_grad]
    groups = [
        {"params": [p for p in parameters if id(p) not in free], "weight_decay": weight_decay},
        {"params": [p for p in parameters if id(p) in free], "weight_decay": 0.0},
    ]
    return [group for group in groups if group["params"]]


parameter_groups = decay_groups  # its name before `orthogonal.parameter_groups` came


def _marked(model: nn.Module) -> Iterator[nn.Parameter]:
    for module in model.modules():
        marked = getattr(module, "no_weight_decay", ())
        marked = marked() if callable(marked) else marked  # some libraries have it as a method
        for name, parameter in module.named_parameters():
            own = getattr(parameter, "no_weight_decay", False)
            if marked is True or name in (marked or ()) or own:
                yield parameter


def _unweighted(model: nn.Module) -> Iterator[nn.Parameter]:
    """The filters of layers that see only directions, except computed (parametrized) ones."""
    for layer in model.modules():
        weight = layer._parameters.get("weight")
        unweighted = isinstance(layer, DecoupledLayer) and layer.operator.weighted is None
        if weight is not None and unweighted:
            yield weight


def _lengths(weight: Tensor) -> Tensor:
    lengths: Tensor = torch.linalg.vector_norm(weight.flatten(1), dim=1)
    return lengths.reshape(-1, *[1] * (weight.ndim - 1))
