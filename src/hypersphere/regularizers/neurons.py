"""Where the neurons of a network are: weight tensors as sets of rows, one neuron per row.

A neuron of a convolution is the filter of one output channel, flattened. Filters of different
groups read different channels, so each group is a set of its own, and so are the query, key and
value maps of attention. Weights are read when asked for: a rotated or otherwise parametrized layer
gives its effective weight, through which gradients reach the parameters below.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from .options import sequence_of_names, suggestion

__all__ = ["Neurons", "find_neurons"]

TRANSPOSED = (nn.ConvTranspose1d, nn.ConvTranspose2d, nn.ConvTranspose3d)
CONVOLUTIONS = (nn.Conv1d, nn.Conv2d, nn.Conv3d)


@dataclass
class Neurons:
    """The neurons of one layer.

    Args:
        name: name of the layer in its network.
        role: "hidden" or "output".
        read: gives the present weights, (sets, N, d), one neuron per row.
        count: N, the neurons of one set: those that are compared with one another.
        channels: input channels among the d entries of a neuron; d / channels entries belong to
            each.
        module: the layer; None for an entry of a mapping.
        convolution: whether channels are those of a map, not the single entries of a vector.
        first: whether it is the first layer of a network; a mapping has none.
    """

    name: str
    role: str
    read: Callable[[], Tensor]
    count: int
    channels: int
    module: nn.Module | None = None
    convolution: bool = False
    first: bool = False


def find_neurons(
    module: nn.Module | Mapping[str, Tensor],
    only: Sequence[str] | None = None,
    skip: Sequence[str] = (),
    output: Sequence[str] | None = None,
    together: bool = False,
) -> list[Neurons]:
    """The layers of `module` that have two or more comparable neurons, in the module's order.

    Found by themselves: convolutions (grouped and transposed too), linear, bilinear and attention
    layers, their decoupled, rotated or parametrized versions, and whatever declares `neuron_role`
    and has a `weight` with one neuron per row, such as a margin head. The output layer is what
    declares neuron_role = "output"; if nothing does, the last linear layer. A layer whose sets have
    a single neuron (depthwise convolution, one-class head) is left out.

    Args:
        module: a network, or a mapping from names to weights (N, ...) to be used as they are.
        only: names of layers to take, with wildcards ("stem.*"); a name also stands for the layers
            below it. It changes no role: without its output layer, a network has none. A name that
            fits no layer is an error. Default: all.
        skip: names of layers to leave out, likewise.
        output: names of the output layers. Default: found as above.
        together: compare the filters of different groups too.

    Returns:
        The layers.

    Raises:
        ValueError: if there is no such layer, with a list of what there is.

    >>> net = nn.Sequential(nn.Conv2d(3, 8, 3), nn.ReLU(), nn.Flatten(), nn.Linear(8, 10))
    >>> [(n.name, n.role, tuple(n.read().shape)) for n in find_neurons(net)]
    [('0', 'hidden', (1, 8, 27)), ('3', 'output', (1, 10, 8))]
    """
    for argument, patterns in (("only", only), ("skip", skip), ("output", output)):
        sequence_of_names(argument, patterns)
    if isinstance(module, Mapping):
        found = [_as_neurons(name, weight) for name, weight in module.items()]
    elif isinstance(module, nn.Module):
        found = list(_walk(module, together))
    else:
        raise TypeError(
            f"expected a module, or a mapping from names to weights; got {type(module).__name__}"
        )
    if found:
        _assign_roles(found, output)
        found[0].first = isinstance(module, nn.Module)
        for argument, patterns in (("only", only), ("skip", skip), ("output_layers", output)):
            check_names(argument, patterns or (), [n.name for n in found])
    eligible = [n for n in found if n.count >= 2 and _wanted(n.name, only, skip)]
    if not eligible:
        raise ValueError(_nothing_found(module, only, skip))
    return eligible


def check_names(argument: str, patterns: Iterable[str], names: Sequence[str]) -> None:
    """Each of the patterns must fit one of the names."""
    lost = [pattern for pattern in patterns if not any(_matches(name, [pattern]) for name in names)]
    if lost:
        hint = suggestion(lost[0], names)
        raise ValueError(f"{argument}={lost} fits no layer; there are: {', '.join(names)}{hint}")


def _walk(module: nn.Module, together: bool) -> Iterator[Neurons]:
    # The objects themselves are kept: a weight that is a property makes a new tensor each time, and
    # the id of one that is gone would be given to the next.
    seen: dict[int, object] = {}
    for name, layer in module.named_modules():
        for found in _layer(layer, together):
            source = _weight_source(layer, found.attribute)
            if id(source) in seen:  # tied weights count once
                continue
            seen[id(source)] = source
            full = ".".join(part for part in (name, found.suffix) if part) or type(layer).__name__
            spatial = hasattr(layer, "kernel_size")
            yield Neurons(full, found.role, found.read, found.count, found.channels, layer, spatial)


@dataclass
class Found:
    """One weight of a module, before names and roles are settled."""

    suffix: str
    attribute: str
    role: str
    read: Callable[[], Tensor]
    count: int
    channels: int


def _layer(layer: nn.Module, together: bool) -> Iterator[Found]:
    """The sets of neurons a single module holds itself."""
    role = getattr(layer, "neuron_role", None)
    if isinstance(layer, nn.MultiheadAttention):
        yield from _attention(layer)
    elif isinstance(layer, CONVOLUTIONS + TRANSPOSED):
        inputs, outputs = layer.in_channels // layer.groups, layer.out_channels // layer.groups
        count = layer.out_channels if together else outputs
        read = partial(_filters, layer, together)
        yield Found("", "weight", role or "hidden", read, count, inputs)
    elif isinstance(layer, (nn.Linear, nn.Bilinear)):
        # The output map of attention is inside the network, however late it comes.
        inner = isinstance(layer, nn.modules.linear.NonDynamicallyQuantizableLinear)
        role = role or ("hidden" if inner else "linear")
        wide = layer.in_features if isinstance(layer, nn.Linear) else layer.in1_features
        yield Found("", "weight", role, partial(_rows, layer), layer.out_features, wide)
    elif _declares_rows(layer):
        shape: Any = _rows(layer).shape
        read = partial(_rows, layer)
        yield Found("", "weight", role or "linear", read, shape[1], shape[2])


def _filters(layer: Any, together: bool) -> Tensor:
    weight: Tensor = layer.weight
    groups: int = layer.groups
    if isinstance(layer, TRANSPOSED):  # (in, out / groups, ...): bring the output channel first
        weight = torch.unflatten(weight, 0, (groups, -1)).transpose(1, 2).flatten(0, 1)
    rows = weight.flatten(1)
    return rows[None] if together else torch.unflatten(rows, 0, (groups, -1))


def _rows(layer: Any) -> Tensor:
    weight: Tensor = layer.weight
    if getattr(layer, "subcenters", 1) > 1:  # (C, K, d): every sub-center is a direction
        return weight.flatten(0, 1)[None]
    return weight.flatten(1)[None]


def _declares_rows(layer: nn.Module) -> bool:
    """A neuron_role with a weight, or a linear layer by another name: weight (out, in)."""
    weight = getattr(layer, "weight", None)
    if not isinstance(weight, Tensor) or weight.ndim < 2:
        return False
    if getattr(layer, "neuron_role", None) is not None:
        return True
    sizes = [
        tuple(getattr(layer, f"{side}_{what}", None) for side in ("out", "in"))
        for what in ("features", "channels")
    ]
    return tuple(weight.shape) in sizes


def _attention(layer: nn.MultiheadAttention) -> Iterator[Found]:
    """Query, key and value maps: three sets, packed in one weight or in three."""
    width = layer.embed_dim
    if layer.in_proj_weight is not None:
        read = partial(_packed, layer)
        yield Found("in_proj", "in_proj_weight", "hidden", read, width, width)
        return
    for part in ("q_proj", "k_proj", "v_proj"):
        read = partial(_single, layer, f"{part}_weight")
        inputs = {"q_proj": width, "k_proj": layer.kdim, "v_proj": layer.vdim}[part]
        yield Found(part, f"{part}_weight", "hidden", read, width, inputs)


def _packed(layer: nn.MultiheadAttention) -> Tensor:
    weight: Tensor = layer.in_proj_weight
    return torch.unflatten(weight, 0, (3, layer.embed_dim))


def _single(layer: nn.MultiheadAttention, attribute: str) -> Tensor:
    weight: Tensor = getattr(layer, attribute)
    return weight[None]


def _weight_source(layer: nn.Module, attribute: str) -> object:
    """The parameter itself; under a parametrization, the object that makes the weight."""
    parametrized: Any = getattr(layer, "parametrizations", {})
    return parametrized[attribute] if attribute in parametrized else getattr(layer, attribute)


def _as_neurons(name: str, weight: Tensor) -> Neurons:
    if not isinstance(weight, Tensor) or weight.ndim < 2:
        shape = tuple(weight.shape) if isinstance(weight, Tensor) else type(weight).__name__
        raise ValueError(f"{name}: expected a weight (N, ...) with one neuron per row, got {shape}")
    read = partial(torch.Tensor.reshape, weight, (1, len(weight), -1))
    spatial = weight.ndim > 2
    return Neurons(name, "hidden", read, len(weight), weight.shape[1], convolution=spatial)


def _matches(name: str, patterns: Sequence[str]) -> bool:
    parents = [name]
    while "." in parents[-1]:
        parents.append(parents[-1].rpartition(".")[0])
    return any(fnmatchcase(parent, pattern) for parent in parents for pattern in patterns)


def _wanted(name: str, only: Sequence[str] | None, skip: Sequence[str]) -> bool:
    return (only is None or _matches(name, only)) and not _matches(name, skip)


def _assign_roles(found: list[Neurons], output: Sequence[str] | None) -> None:
    if output is None and not any(n.role == "output" for n in found):
        for neurons in reversed(found):
            if neurons.role == "linear":
                neurons.role = "output"
                break
    for neurons in found:
        if output is not None:
            neurons.role = "output" if _matches(neurons.name, output) else "hidden"
        elif neurons.role != "output":
            neurons.role = "hidden"


def _nothing_found(
    module: nn.Module | Mapping[str, Tensor], only: Sequence[str] | None, skip: Sequence[str]
) -> str:
    if isinstance(module, Mapping):
        seen = [f"{name}: {tuple(weight.shape)}" for name, weight in module.items()]
    else:
        leaves = [(n, m) for n, m in module.named_modules() if not any(m.children())]
        seen = [f"{n or '(itself)'}: {_describe(m)}" for n, m in leaves]
    shown = "\n  ".join(seen[:40]) + (
        f"\n  ... and {len(seen) - 40} more" if len(seen) > 40 else ""
    )
    filters = f" with only={only}, skip={tuple(skip)}" if only is not None or skip else ""
    return (
        f"no layer with two or more neurons to regularize in {type(module).__name__}{filters}; "
        f"seen:\n  {shown or '(no layers)'}\nRegularizers look for convolutions, linear and "
        f"attention layers. For a module of your own, set neuron_role = 'hidden' or 'output' on it "
        f"and keep one neuron per row in its weight, or pass a mapping from names to weights."
    )


def _describe(layer: nn.Module) -> str:
    weight = getattr(layer, "weight", None)
    shape = f", weight {tuple(weight.shape)}" if isinstance(weight, torch.Tensor) else ""
    return type(layer).__name__ + shape
