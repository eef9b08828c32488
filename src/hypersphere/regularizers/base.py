"""What all regularizers of weights share: they find the layers, add up terms and report."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import asdict, dataclass
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from ..functional import separation_distance
from .checks import names
from .neurons import Neurons, find_neurons

__all__ = ["LayerReport", "Report", "WeightRegularizer"]


class Term(NamedTuple):
    """factor * value is what one layer adds to the loss."""

    neurons: Neurons
    factor: float
    value: Tensor


@dataclass
class LayerReport:
    """One layer: `sets` groups of `neurons` directions in R^dim; angles in degrees."""

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
    """Layer by layer what a regularizer sees; prints as a table."""

    layers: list[LayerReport]

    @property
    def total(self) -> float:
        """The value of the regularizer: the sum of factor * value."""
        return sum(layer.factor * layer.value for layer in self.layers)

    def to_dict(self) -> dict[str, Any]:
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
        return "\n".join([*lines, f"{'total':{width}} {'':32} {self.total:>12.6g}"])


class WeightRegularizer(nn.Module):
    """A penalty on the neurons of a network: `regularizer(module)` is a scalar tensor.

    Subclasses give `terms`. What changes from call to call (generators, projections, counters) is
    in `tensors()` and comes back through `restore`: together they make a flat state dict of tensors
    whose keys depend on the network seen so far, so that a fresh object can load it.
    """

    def __init__(
        self,
        only: Sequence[str] | None,
        skip: Sequence[str],
        output_layers: Sequence[str] | None,
        together: bool,
        seed: int,
    ) -> None:
        super().__init__()
        names("only", only)
        names("skip", skip)
        names("output_layers", output_layers)
        self.only, self.skip = only, skip
        self.output_layers, self.together = output_layers, together
        self.generator = torch.Generator().manual_seed(seed)

    def terms(self, layers: list[Neurons]) -> list[Term]:
        raise NotImplementedError

    def find(self, module: nn.Module | Mapping[str, Tensor]) -> list[Neurons]:
        """The layers that this regularizer acts on; see :func:`find_neurons`."""
        return find_neurons(module, self.only, self.skip, self.output_layers, self.together)

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
                f"{type(self).__name__}: the factors of all layers found are zero; give hidden or "
                f"output a positive weight"
            )
        values = torch.stack([term.value.to(terms[0].value) for term in terms])
        return (values * values.new_tensor([term.factor for term in terms])).sum()

    @torch.no_grad()
    def report(self, module: nn.Module | Mapping[str, Tensor]) -> Report:
        """The terms layer by layer, leaving the state of the regularizer as it is."""
        before = {key: value.clone() for key, value in self.tensors().items()}
        try:
            terms = self._terms(module)
        finally:
            self.restore(before)
        return Report([_describe(term) for term in terms])

    # --- state -------------------------------------------------------------------------------

    def tensors(self) -> dict[str, Tensor]:
        return {"generator": self.generator.get_state()}

    def restore(self, tensors: Mapping[str, Tensor]) -> None:
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
