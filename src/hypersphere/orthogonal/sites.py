"""Which weights can be rotated, and how a weight tensor becomes a matrix of neurons and back."""

from __future__ import annotations

from collections.abc import Collection, Iterator
from dataclasses import dataclass

from torch import Tensor, nn
from torch.nn.modules.conv import _ConvNd, _ConvTransposeNd


@dataclass(frozen=True)
class FilterMatrix:
    """How a weight tensor holds its neurons.

    A neuron is an output unit: its filter flattened as (input channels, *kernel), the order in
    which PyTorch stores it, so that a range of input channels is a range of the vector (F.5.1).

    Args:
        shape: of the weight tensor.
        channels: input channels that one neuron sees (after division by the groups).
        groups: of a transposed convolution, whose weight is (in, out / groups, *kernel).
        transposed: whether it is the weight of a transposed convolution.
        sets: independent layers stacked in one tensor, as in the in_proj_weight of attention.
    """

    shape: tuple[int, ...]
    channels: int
    groups: int = 1
    transposed: bool = False
    sets: int = 1

    @property
    def dim(self) -> int:
        """d, the length of a neuron."""
        kernel = 1
        for size in self.shape[2:]:
            kernel *= size
        return self.channels * kernel

    @property
    def neurons(self) -> int:
        """n, the number of neurons of one set."""
        total = 1
        for size in self.shape:
            total *= size
        return total // self.dim // self.sets

    def rows(self, weight: Tensor) -> Tensor:
        """The neurons of a weight tensor, (sets * n, d), one per row."""
        if self.transposed:
            split = weight.reshape(self.groups, self.channels, *weight.shape[1:])
            weight = split.transpose(1, 2)
        return weight.reshape(-1, self.dim)

    def weight(self, rows: Tensor) -> Tensor:
        """The weight tensor whose :meth:`rows` are given."""
        if self.transposed:
            split = rows.reshape(self.groups, self.shape[1], self.channels, *self.shape[2:])
            rows = split.transpose(1, 2)
        return rows.reshape(self.shape)


@dataclass(frozen=True)
class Site:
    """A weight that can be rotated: `module.<parameter>`.

    Args:
        name: of the module.
        module: that has the weight.
        parameter: name of the weight in the module.
        layout: how the weight holds its neurons.
    """

    name: str
    module: nn.Module
    parameter: str
    layout: FilterMatrix

    @property
    def label(self) -> str:
        """The layer's name, with the parameter where it is not simply `weight`."""
        if self.parameter == "weight":
            return self.name or type(self.module).__name__
        return f"{self.name}.{self.parameter}".lstrip(".")


def sites(model: nn.Module) -> Iterator[Site]:
    """Convolutions of any dimension, linear layers (decoupled ones too), attention projections."""
    for name, module in model.named_modules():
        if isinstance(module, _ConvTransposeNd):
            shape = tuple(module.weight.shape)
            channels = module.in_channels // module.groups
            yield Site(name, module, "weight", FilterMatrix(shape, channels, module.groups, True))
        elif isinstance(module, (_ConvNd, nn.Linear)):
            shape = tuple(module.weight.shape)
            yield Site(name, module, "weight", FilterMatrix(shape, shape[1]))
        elif isinstance(module, nn.MultiheadAttention):
            yield from _attention(name, module)


def _attention(name: str, module: nn.MultiheadAttention) -> Iterator[Site]:
    # out_proj is a linear layer of its own; q, k and v are three layers, stacked or apart.
    if module._qkv_same_embed_dim:
        shape = tuple(module.in_proj_weight.shape)
        yield Site(name, module, "in_proj_weight", FilterMatrix(shape, shape[1], sets=3))
        return
    for part in ("q_proj_weight", "k_proj_weight", "v_proj_weight"):
        shape = tuple(getattr(module, part).shape)
        yield Site(name, module, part, FilterMatrix(shape, shape[1]))


def chosen_sites(model: nn.Module, skip: Collection[str] | None) -> list[Site]:
    """The sites to rotate. `skip` None leaves the output layer out, else the named modules."""
    found = list(sites(model))
    if not found:
        raise ValueError(
            f"{type(model).__name__} has no convolution, linear layer or attention to rotate"
        )
    if skip is None:
        left_out = _output_layers(model, found)
        return [site for site in found if id(site.module) not in left_out]
    if isinstance(skip, str):
        raise ValueError(f"skip expects a tuple of module names; got the string {skip!r}")
    names = dict(model.named_modules())
    for name in skip:
        if not any(_matches(other, name) for other in names):
            layers = ", ".join(site.label for site in found)
            raise ValueError(
                f"skip names {name!r}, which is not a module; the layers are: {layers}"
            )
    return [site for site in found if not any(_matches(site.name, name) for name in skip)]


def _matches(module: str, name: str) -> bool:
    """`fc` means the module fc, everything below it, and any module whose last name is fc."""
    return module == name or module.startswith(name + ".") or module.rpartition(".")[2] == name


def _output_layers(model: nn.Module, found: list[Site]) -> set[int]:
    declared = [m for m in model.modules() if getattr(m, "neuron_role", None) == "output"]
    if declared:
        return {id(part) for module in declared for part in module.modules()}
    if len(found) == 1:
        return set()  # a lone layer is what the caller means
    linear = [site.module for site in found if isinstance(site.module, nn.Linear)]
    # A last linear layer that calls itself hidden is an embedding; its head stands elsewhere.
    if not linear or getattr(linear[-1], "neuron_role", None) == "hidden":
        return set()
    return {id(linear[-1])}
