"""Where the neurons of a network are: weight tensors as sets of rows, one neuron per row.

A neuron of a convolution is the filter of one output channel, flattened. Filters of different
groups read different channels, so each group is a set of its own, and so are the query, key and
value maps of attention. Weights are read when asked for: a rotated or otherwise parametrized layer
gives its effective weight, through which gradients reach the parameters below.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase
from functools import partial
from typing import Literal, TypeAlias

import torch
from torch import Tensor, nn

from ..finding import LeftOut, Site, find_layers
from .options import sequence_of_names, suggestion

__all__ = ["Neurons", "find_neurons"]

LoraWeight: TypeAlias = Literal["effective", "base"]
CONVOLUTIONS = (nn.Conv1d, nn.Conv2d, nn.Conv3d)


@dataclass(eq=False)
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
    lora: LoraWeight = "effective",
    left_out: list[LeftOut] | None = None,
) -> list[Neurons]:
    """The layers of `module` that have two or more comparable neurons, in the module's order.

    Layers and the output layer are found by :func:`hypersphere.finding.find_layers`: convolutions,
    linear, bilinear, attention and recurrent layers, their decoupled, rotated or parametrized
    versions, those of Hugging Face and PEFT, and whatever declares `neuron_role` and has a `weight`
    with one neuron per row, such as a margin head. Left out are quantized weights, whose numbers
    are codes, and layers whose sets have a single neuron (depthwise convolution, one-class head).

    Args:
        module: a network, or a mapping from names to weights (N, ...) to be used as they are.
        only: names of layers to take, with wildcards ("stem.*"); a name also stands for the layers
            below it. It changes no role: without its output layer, a network has none. A name that
            fits no layer is an error. Default: all.
        skip: names of layers to leave out, likewise.
        output: names of the output layers. Default: found as above.
        together: compare the filters of different groups too.
        lora: "effective" takes W + B A of a layer wrapped by LoRA, "base" W alone.
        left_out: a list to which everything that was left out is added, with the reason.

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
    account: list[LeftOut] = []
    if isinstance(module, Mapping):
        found = [_as_neurons(name, weight) for name, weight in module.items()]
    elif isinstance(module, nn.Module):
        found, account = _walk(module, together, lora)
    else:
        raise TypeError(
            f"expected a module, or a mapping from names to weights; got {type(module).__name__}"
        )
    if found:
        if output is not None:
            _assign_roles(found, output)
        found[0].first = isinstance(module, nn.Module)
        for argument, patterns in (("only", only), ("skip", skip), ("output_layers", output)):
            check_names(argument, patterns or (), [n.name for n in found])
    eligible = [n for n in found if n.count >= 2 and _wanted(n.name, only, skip)]
    if not eligible:
        raise ValueError(_nothing_found(module, only, skip))
    for n in found if left_out is not None else ():
        if n not in eligible:
            reason = "a single neuron per set" if n.count < 2 else "by only or skip"
            account.append(LeftOut(n.name, type(n.module).__name__, reason))
    if left_out is not None:
        left_out += account
    return eligible


def check_names(argument: str, patterns: Iterable[str], names: Sequence[str]) -> None:
    """Each of the patterns must fit one of the names."""
    lost = [pattern for pattern in patterns if not any(_matches(name, [pattern]) for name in names)]
    if lost:
        hint = suggestion(lost[0], names)
        raise ValueError(f"{argument}={lost} fits no layer; there are: {', '.join(names)}{hint}")


def _walk(
    module: nn.Module, together: bool, lora: LoraWeight
) -> tuple[list[Neurons], list[LeftOut]]:
    findings = find_layers(module, lora=lora)
    found, left_out, seen = [], findings.left_out, set()
    for site in findings:
        name = site.name if site.parameter == "weight" else site.label.removesuffix("_weight")
        name = name or type(site.module).__name__
        if id(site.source) in seen:
            left_out.append(LeftOut(name, site.kind, f"counted once: {site.note}"))
        elif site.state == "quantized":
            left_out.append(LeftOut(name, site.kind, f"{site.note}: its numbers are codes"))
        else:
            seen.add(id(site.source))
            found.append(_neurons(name, site, together))
    return found, left_out


def _neurons(name: str, site: Site, together: bool) -> Neurons:
    layout = site.layout
    sets = layout.sets * (1 if together else layout.groups)
    return Neurons(
        name,
        site.role,
        partial(_read, site, sets),
        layout.neurons * layout.sets // sets,
        layout.channels,
        site.module,
        hasattr(site.module, "kernel_size"),
    )


def _read(site: Site, sets: int) -> Tensor:
    rows = site.layout.rows(site.read())
    return torch.unflatten(rows, 0, (sets, -1))


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


def _assign_roles(found: list[Neurons], output: Sequence[str]) -> None:
    for neurons in found:
        neurons.role = "output" if _matches(neurons.name, output) else "hidden"


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
