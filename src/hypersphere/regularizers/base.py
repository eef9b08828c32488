"""The base class of regularizers of weights: it finds the layers, adds up terms and reports."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import asdict, dataclass, field
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from ..finding import LeftOut
from ..functional import separation_distance
from .neurons import LoraWeight, Neurons, find_neurons
from .options import number, sequence_of_names

__all__ = ["LayerReport", "Report", "WeightRegularizer"]


class Term(NamedTuple):
    """factor * value is what one layer adds to the loss.

    Args:
        neurons: the layer.
        factor: weight of the layer in the loss.
        value: a scalar tensor.
    """

    neurons: Neurons
    factor: float
    value: Tensor


@dataclass
class LayerReport:
    """What a regularizer sees in one layer.

    Args:
        name: name of the layer.
        role: "hidden" or "output".
        sets: number of sets of neurons that are compared separately, for example groups.
        neurons: neurons per set.
        dim: dimension of a neuron.
        factor: weight of the layer in the loss.
        value: penalty of the layer, before the factor.
        smallest_angle: between two neurons of a set, in degrees.
    """

    name: str
    role: str
    sets: int
    neurons: int
    dim: int
    factor: float
    value: float
    smallest_angle: float


@dataclass
class Report:
    """Layer by layer what a regularizer sees; prints as a table.

    Args:
        layers: one entry per layer.
        left_out: what else has a weight, with the reason.
    """

    layers: list[LayerReport]
    left_out: list[LeftOut] = field(default_factory=list)

    @property
    def total(self) -> float:
        """The value of the regularizer: the sum of factor * value."""
        return sum(layer.factor * layer.value for layer in self.layers)

    def to_dict(self) -> dict[str, Any]:
        """The report as plain values.

        Returns:
            "total" and "layers", a dictionary per layer.
        """
        return {"total": self.total, "layers": [asdict(layer) for layer in self.layers]}

    def __iter__(self) -> Iterator[LayerReport]:
        return iter(self.layers)

    def __str__(self) -> str:
        width = max(5, *(len(layer.name) for layer in self.layers))
        lines = [f"{'layer':{width}} {'role':6} {'neurons':>9} {'dim':>6} {'factor':>8} "
                 f"{'value':>12} {'angle':>7}"]  # fmt: skip
        for item in self.layers:
            count = f"{item.sets}x{item.neurons}" if item.sets > 1 else str(item.neurons)
            lines.append(
                f"{item.name:{width}} {item.role:6} {count:>9} {item.dim:>6} {item.factor:>8.3g} "
                f"{item.value:>12.6g} {item.smallest_angle:>6.1f}°"
            )
        lines.append(f"{'total':{width}} {'':32} {self.total:>12.6g}")
        lines += [f"{x.name or '(itself)'}: {x.what} left out, {x.reason}" for x in self.left_out]
        return "\n".join(lines)


class WeightRegularizer(nn.Module):
    """A penalty on the neurons of a network: `regularizer(module)` is a scalar tensor.

    It finds the layers, weights and adds up their penalties, reports them, and saves its state. A
    regularizer of your own is a subclass with a :meth:`penalty`, a function of the weight matrix of
    one layer:

    >>> from hypersphere.functional import pairwise_cosine
    >>> class Coherence(WeightRegularizer):
    ...     '''Largest cosine between two neurons of a layer.'''
    ...     def penalty(self, weight):
    ...         cos = pairwise_cosine(weight)  # (N, N)
    ...         return cos.fill_diagonal_(-1.0).amax()
    >>> net = nn.Sequential(nn.Linear(8, 6), nn.ReLU(), nn.Linear(6, 3))
    >>> loss = Coherence(weight=0.1)(net)

    With ``@hypersphere.register("regularizer", "coherence")`` above the class, configs know it by
    that name; parameters of its ``__init__`` are its options. Randomness comes from
    ``self.generator``, which is saved. What else changes from call to call goes into
    :meth:`tensors` and comes back through :meth:`restore`; together they make a flat state dict
    whose keys depend on the network seen so far, so that a fresh object can load it. A penalty that
    needs more than one layer at a time overrides :meth:`terms`. Any other callable of the network
    that returns a scalar is a regularizer too; this class is a convenience.

    Args:
        weight: factor of the hidden layers.
        output: factor of the output layer. Default: 0, which leaves it out.
        only: names of layers to take, with wildcards. Default: all.
        skip: names of layers to leave out, with wildcards.
        output_layers: names of the output layers. Default: found, see
            :func:`~hypersphere.regularizers.find_neurons`.
        together: compare the filters of different groups of a convolution too.
        seed: seed of the generator.
    """

    def __init__(
        self,
        weight: float = 1.0,
        output: float = 0.0,
        only: Sequence[str] | None = None,
        skip: Sequence[str] = (),
        output_layers: Sequence[str] | None = None,
        together: bool = False,
        seed: int = 0,
    ) -> None:
        super().__init__()
        number("weight", weight)
        number("output", output)
        sequence_of_names("only", only)
        sequence_of_names("skip", skip)
        sequence_of_names("output_layers", output_layers)
        self.weight, self.output = weight, output
        self.only, self.skip = only, skip
        self.output_layers, self.together = output_layers, together
        self.generator = torch.Generator().manual_seed(seed)
        # Of a layer wrapped by LoRA: the effective weight W + B A, or "base", W alone.
        self.lora: LoraWeight = "effective"

    # --- what a subclass gives: one of these three -----------------------------------------------

    def penalty(self, weight: Tensor) -> Tensor:
        """The penalty of one set of neurons.

        Args:
            weight: (N, d), one neuron per row, N >= 2.

        Returns:
            A scalar, differentiable in the weight.
        """
        raise NotImplementedError(f"{type(self).__name__} has to define penalty(weight)")

    def layer_penalty(self, layer: Neurons) -> Tensor:
        """The penalty of one layer: the sum over its sets of neurons.

        Args:
            layer: one of the layers found.

        Returns:
            A scalar.
        """
        return torch.stack([self.penalty(weight) for weight in layer.read()]).sum()

    def terms(self, layers: list[Neurons]) -> list[Term]:
        """What each layer adds to the loss; layers of factor 0 are left out.

        Args:
            layers: the layers found.

        Returns:
            One term per layer that counts.
        """
        factors = [self.output if layer.role == "output" else self.weight for layer in layers]
        chosen = zip(layers, factors, strict=True)
        return [Term(layer, f, self.layer_penalty(layer)) for layer, f in chosen if f]

    # ---------------------------------------------------------------------------------------------

    def find(self, module: nn.Module | Mapping[str, Tensor]) -> list[Neurons]:
        """The layers that this regularizer acts on; see :func:`find_neurons`.

        Args:
            module: a network, or a mapping from names to weights.

        Returns:
            The layers, in the order of the network.
        """
        return self._find(module, None)

    def _find(
        self, module: nn.Module | Mapping[str, Tensor], left_out: list[LeftOut] | None
    ) -> list[Neurons]:
        where = (self.only, self.skip, self.output_layers, self.together)
        return find_neurons(module, *where, self.lora, left_out)

    def _terms(self, module: nn.Module | Mapping[str, Tensor]) -> list[Term]:
        layers = self.find(module)
        tensors = module.values() if isinstance(module, Mapping) else module.parameters()
        with ExitStack() as stack:  # Gram matrices and projections need more than 16 bits
            for kind in {tensor.device.type for tensor in tensors}:
                stack.enter_context(torch.autocast(kind, enabled=False))
            return self.terms(layers)

    def forward(self, module: nn.Module | Mapping[str, Tensor]) -> Tensor:
        terms = self._terms(module)
        if not terms:
            raise ValueError(
                f"{type(self).__name__}: the factors of all layers found are zero; give the hidden "
                f"layers or the output layer a positive weight"
            )
        values = torch.stack([term.value.to(terms[0].value) for term in terms])
        return (values * values.new_tensor([term.factor for term in terms])).sum()

    @torch.no_grad()
    def report(self, module: nn.Module | Mapping[str, Tensor]) -> Report:
        """The terms layer by layer, leaving the state of the regularizer as it is.

        Args:
            module: a network, or a mapping from names to weights.

        Returns:
            The report; printed, it is a table.
        """
        before = {key: value.clone() for key, value in self.tensors().items()}
        try:
            terms = self._terms(module)
        finally:
            self.restore(before)
        left_out: list[LeftOut] = []
        self._find(module, left_out)
        return Report([_describe(term) for term in terms], left_out)

    # --- state -------------------------------------------------------------------------------

    def tensors(self) -> dict[str, Tensor]:
        """The state: what changes from call to call, as tensors by name.

        Returns:
            A flat dictionary; subclasses add to that of their base.
        """
        return {"generator": self.generator.get_state()}

    def restore(self, tensors: Mapping[str, Tensor]) -> None:
        """Take over a state.

        Args:
            tensors: as :meth:`tensors` returned it.
        """
        self.generator.set_state(tensors["generator"].cpu())

    def _save_to_state_dict(self, destination: Any, prefix: str, keep_vars: bool) -> None:
        for key, value in self.tensors().items():
            destination[prefix + key] = value.detach().clone()

    def _load_from_state_dict(
        self, state_dict: Any, prefix: str, local_metadata: Any, strict: bool,
        missing_keys: list[str], unexpected_keys: list[str], error_msgs: list[str],
    ) -> None:  # fmt: skip
        if prefix + "generator" not in state_dict:
            missing_keys.append(prefix + "generator")
            return
        own = [key for key in state_dict if key.startswith(prefix)]
        self.restore({key[len(prefix) :]: state_dict[key] for key in own})


def _describe(term: Term) -> LayerReport:
    weight = term.neurons.read()
    sets, count, dim = weight.shape
    angle = min(float(separation_distance(part.float())) for part in weight)
    return LayerReport(
        term.neurons.name, term.neurons.role, sets, count, dim,
        float(term.factor), float(term.value), math.degrees(angle),
    )  # fmt: skip
