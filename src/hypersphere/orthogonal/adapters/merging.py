"""The mean of adapters: of their rotations on the group, block by block, in float64."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from ...functional import inverse_cayley, rotation_logarithm, rotation_mean
from ..matrices import CONSTRUCTED, neutral
from ..rotation import Matrix
from .adapter import Adapter, AdapterLayer
from .base_hash import foreign_base

__all__ = ["merge_adapters"]

# What a map has beside the numbers that are averaged; these must agree. PEFT's files have a part.
_SHAPE: dict[str, object] = {
    "blocks": 1,
    "share_blocks": False,
    "learn_lengths": False,
    "structure": "blocks",
    "both_sides": False,
}


@torch.no_grad()
def merge_adapters(adapters: list[Adapter], weights: Sequence[float] | None = None) -> Adapter:
    """The mean of adapters over one base.

    Args:
        adapters: one or more.
        weights: one per adapter; only ratios count. Default: equal ones.

    Returns:
        The mean, in the methods of the first adapter that turns a layer.

    Raises:
        ValueError: if there is none: other bases, other shapes, maps that are no rotations.
    """
    if not adapters:
        raise ValueError("merge expects at least one adapter; got an empty list")
    shares = [1.0] * len(adapters) if weights is None else [float(w) for w in weights]
    if len(shares) != len(adapters):
        raise ValueError(f"expected {len(adapters)} weights, one per adapter; got {len(shares)}")
    known = [(i, a.base) for i, a in enumerate(adapters, 1) if a.base is not None]
    for number, base in known[1:]:
        difference = foreign_base(known[0][1], base, f"the base of adapter {number}")
        if difference is not None:
            raise ValueError(
                f"adapters {known[0][0]} and {number} have different bases: {difference}. Only "
                f"rotations of the same weights have a mean"
            )
    paths = {path: None for adapter in adapters for path in adapter.layers}
    layers = {
        path: _merged_layer(path, [a.layers.get(path) for a in adapters], shares) for path in paths
    }
    # PEFT's files know no base.
    known_base = known[0][1] if known else None
    return Adapter(layers, _merged_values(adapters, shares), known_base, adapters[0].task)


def _merged_layer(
    path: str, layers: list[AdapterLayer | None], shares: list[float]
) -> AdapterLayer:
    present = [layer for layer in layers if layer is not None]
    options = present[0].options
    for layer in present:
        method = layer.options["method"]
        if method not in (*CONSTRUCTED, "ogd"):
            raise ValueError(f"{path} is turned by {method!r}, which makes no rotations to average")
        if layer.options.get("structure", "blocks") != "blocks":
            raise ValueError(
                f"{path} has the structure {layer.options['structure']!r}: the mean of such "
                f"products has another form; fold them and average the weights"
            )
        ours, theirs = ({**_SHAPE, **_known(o)} for o in (options, layer.options))
        if ours != theirs:
            raise ValueError(f"the maps of {path} differ in their options: {ours} and {theirs}")
    tensors = {}
    for key in present[0].tensors:
        R = [_rotation(path, layer, present[0], key) for layer in layers]
        try:
            mean = rotation_mean(torch.stack(R), shares)
            tensors[key] = _parameter(mean, options).to(present[0].tensors[key].dtype)
        except ValueError as error:
            raise ValueError(f"the rotations of {path} cannot be merged: {error}") from None
    return AdapterLayer(dict(options), tensors)


def _known(options: dict[str, Any]) -> dict[str, Any]:
    return {key: value for key, value in options.items() if key in _SHAPE}


def _rotation(path: str, layer: AdapterLayer | None, like: AdapterLayer, key: str) -> Tensor:
    """How an adapter turns the weight itself, (sets, stored blocks, d/k, d/k)."""
    if not key.endswith("U"):
        raise ValueError(f"{path} holds {key!r}, for which no mean is defined")
    source = like if layer is None else layer
    method = source.options["method"]
    made = Matrix(source.tensors[key].double(), method)
    R = made.matrix()
    if layer is None:
        return torch.eye(R.shape[-1], dtype=R.dtype).expand_as(R)
    return R @ _start(method, R).mT  # the neurons are the weight, turned back by the start


def _start(method: str, like: Tensor) -> Tensor:
    """R where a method starts: the identity, or else a signed permutation."""
    U = neutral(method, like.shape[-1]).expand_as(like).contiguous()
    return Matrix(U, method).matrix()


def _parameter(mean: Tensor, options: dict[str, Any]) -> Tensor:
    """The U from which a method makes the mean, given how the weight is to be turned."""
    method = options["method"]
    R = mean @ _start(method, mean)
    if method == "cayley":
        U = inverse_cayley(R).triu(1)
    elif method == "exponential":
        U = rotation_logarithm(R).triu(1)
    else:
        U = R  # orthogonal already; Householder's last sign is that of the determinant
    made = Matrix(U, method)
    error = float((made.matrix() - R).abs().max())
    if not error < 1e-6:
        raise ValueError(f"{method!r} cannot make their mean (off by {error:.1g})")
    return made.U.detach()


def _merged_values(adapters: list[Adapter], shares: list[float]) -> dict[str, Tensor]:
    values = {}
    for name in {name: None for adapter in adapters for name in adapter.values}:
        found = [adapter.values.get(name) for adapter in adapters]
        if name.endswith(".original") or any(name in adapter.layers for adapter in adapters):
            raise ValueError(
                f"an adapter holds neurons of its own, {name} (after restart, a random start or "
                f"with learn_neurons=True): only rotations of the same neurons have a mean"
            )
        present = [value for value in found if value is not None]
        if len(present) < len(adapters):
            raise ValueError(
                f"only {len(present)} of {len(adapters)} adapters hold {name}: freeze it before "
                f"training in all of them, or in none"
            )
        if len({tuple(value.shape) for value in present}) > 1:
            shapes = " and ".join(str(tuple(value.shape)) for value in present)
            raise ValueError(f"{name} has other shapes in other adapters: {shapes}")
        values[name] = _mean(name, present, shares)
    return values


def _mean(name: str, values: list[Tensor], shares: list[float]) -> Tensor:
    first = values[0]
    if not first.is_floating_point():
        return first  # counters of batches and the like
    part = torch.tensor(shares, dtype=torch.float64).view(-1, *[1] * first.dim())
    part = part / part.sum()
    stacked = torch.stack([value.double() for value in values])
    if name.endswith(".lengths") and bool((stacked != 0).all()):  # their absolute values count
        return (part * stacked.abs().log()).sum(0).exp().to(first.dtype)
    return (part * stacked).sum(0).to(first.dtype)
