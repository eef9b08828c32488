"""The orthogonality family: orthonormal (3.2.4), orthogonal (4.5) and SRIP (6.6) penalties."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from torch import Tensor

from ..functional import normalize, orthogonal_penalty, orthonormal_penalty, spectral_penalty
from .base import Term, WeightRegularizer
from .checks import number
from .neurons import Neurons

__all__ = ["SRIP", "Orthogonal", "Orthonormal"]


class _GramRegularizer(WeightRegularizer):
    def __init__(
        self,
        weight: float,
        output: float,
        normalize: bool,
        only: Sequence[str] | None,
        skip: Sequence[str],
        output_layers: Sequence[str] | None,
        together: bool,
    ) -> None:
        super().__init__(only, skip, output_layers, together, seed=0)
        number("weight", weight)
        number("output", output)
        self.weight, self.output, self.normalize = weight, output, normalize

    def neurons(self, layer: Neurons) -> Tensor:
        return normalize(layer.read()) if self.normalize else layer.read()

    def selected(self, layers: list[Neurons]) -> list[tuple[Neurons, float]]:
        factors = [self.output if layer.role == "output" else self.weight for layer in layers]
        return [(layer, factor) for layer, factor in zip(layers, factors, strict=True) if factor]

    def collect(self, layers: list[Neurons], penalty: Callable[..., Tensor]) -> list[Term]:
        chosen = self.selected(layers)
        return [Term(x, factor, penalty(self.neurons(x), sets=True)) for x, factor in chosen]

    def extra_repr(self) -> str:
        return f"weight={self.weight}, output={self.output}, normalize={self.normalize}"


class Orthonormal(_GramRegularizer):
    """weight * sum over layers of |W^T W - I|_F^2, a neuron a column (3.2.4).

    Args:
        weight: factor of the hidden layers; the text uses 1e-5.
        output: factor of the output layer, 0 by default.
        normalize: compare directions, i.e. unit neurons.
        only, skip, output_layers, together: which layers, see
            :func:`~hypersphere.regularizers.find_neurons`.
    """

    def __init__(
        self,
        weight: float = 1e-5,
        output: float = 0.0,
        normalize: bool = False,
        only: Sequence[str] | None = None,
        skip: Sequence[str] = (),
        output_layers: Sequence[str] | None = None,
        together: bool = False,
    ) -> None:
        super().__init__(weight, output, normalize, only, skip, output_layers, together)

    def terms(self, layers: list[Neurons]) -> list[Term]:
        return self.collect(layers, orthonormal_penalty)


class Orthogonal(_GramRegularizer):
    """weight * sum over layers of |W^T W - diag(W^T W)|_F^2 (4.5); arguments as Orthonormal."""

    def __init__(
        self,
        weight: float = 1e-5,
        output: float = 0.0,
        normalize: bool = False,
        only: Sequence[str] | None = None,
        skip: Sequence[str] = (),
        output_layers: Sequence[str] | None = None,
        together: bool = False,
    ) -> None:
        super().__init__(weight, output, normalize, only, skip, output_layers, together)

    def terms(self, layers: list[Neurons]) -> list[Term]:
        return self.collect(layers, orthogonal_penalty)


class SRIP(_GramRegularizer):
    """weight * sum over layers of the spectral norm of W^T W - I, by power iteration (6.6, [29]).

    The vector of the iteration is kept from call to call and saved with the state; see
    :func:`~hypersphere.functional.spectral_penalty`. Other arguments as Orthonormal.
    """

    def __init__(
        self,
        weight: float = 1e-5,
        output: float = 0.0,
        iterations: int = 2,
        normalize: bool = False,
        only: Sequence[str] | None = None,
        skip: Sequence[str] = (),
        output_layers: Sequence[str] | None = None,
        together: bool = False,
    ) -> None:
        super().__init__(weight, output, normalize, only, skip, output_layers, together)
        if iterations < 1:
            raise ValueError(f"power iteration needs iterations >= 1, got {iterations}")
        self.iterations = iterations
        self.vectors: dict[str, Tensor] = {}

    def terms(self, layers: list[Neurons]) -> list[Term]:
        found = []
        for layer, factor in self.selected(layers):
            neurons = self.neurons(layer)
            start = self.vectors.get(layer.name)
            value, vector = spectral_penalty(
                neurons, start, self.iterations, self.generator, sets=True
            )
            self.vectors[layer.name] = vector
            found.append(Term(layer, factor, value))
        return found

    def tensors(self) -> dict[str, Tensor]:
        return super().tensors() | {f"vector/{name}": v for name, v in self.vectors.items()}

    def restore(self, tensors: Mapping[str, Tensor]) -> None:
        super().restore(tensors)
        marked = {k: v for k, v in tensors.items() if k.startswith("vector/")}
        self.vectors = {key.removeprefix("vector/"): v for key, v in marked.items()}
