"""The orthogonality family: orthonormal (3.2.4), orthogonal (4.5) and SRIP (6.6) penalties."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from torch import Tensor

from ..functional import normalize, orthogonal_penalty, orthonormal_penalty, spectral_penalty
from ..registry import register
from .base import WeightRegularizer
from .neurons import Neurons

__all__ = ["SRIP", "Orthogonal", "Orthonormal"]


class _GramRegularizer(WeightRegularizer):
    """What the three share: their options, and neurons of unit length if asked for."""

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
        super().__init__(weight, output, only, skip, output_layers, together)
        self.normalize = normalize

    def neurons(self, layer: Neurons) -> Tensor:
        """The neurons that are compared.

        Args:
            layer: one of the layers found.

        Returns:
            (sets, N, d).
        """
        return normalize(layer.read()) if self.normalize else layer.read()

    def extra_repr(self) -> str:
        return f"weight={self.weight}, output={self.output}, normalize={self.normalize}"


@register("regularizer", "orthonormal", source="3.2.4")
class Orthonormal(_GramRegularizer):
    """weight * sum over layers of |W^T W - I|_F^2, one neuron per column (3.2.4).

    Args:
        weight: factor of the hidden layers; the dissertation uses 1e-5.
        output: factor of the output layer. Default: 0, which leaves it out.
        normalize: compare directions: neurons are taken to unit length first.
        only: names of layers to take, with wildcards; a name also stands for the layers below it.
            Default: all.
        skip: names of layers to leave out, with wildcards.
        output_layers: names of the output layers. Default: found, see
            :func:`~hypersphere.regularizers.find_neurons`.
        together: compare the filters of different groups of a convolution too.
    """

    def layer_penalty(self, layer: Neurons) -> Tensor:
        """|W^T W - I|_F^2, summed over the sets of a layer.

        Args:
            layer: one of the layers found.

        Returns:
            A scalar.
        """
        return orthonormal_penalty(self.neurons(layer), sets=True)


@register("regularizer", "orthogonal", source="4.5")
class Orthogonal(_GramRegularizer):
    """weight * sum over layers of |W^T W - diag(W^T W)|_F^2, one neuron per column (4.5).

    Args:
        weight: factor of the hidden layers; the dissertation uses 1e-5.
        output: factor of the output layer. Default: 0, which leaves it out.
        normalize: compare directions: neurons are taken to unit length first.
        only: names of layers to take, with wildcards; a name also stands for the layers below it.
            Default: all.
        skip: names of layers to leave out, with wildcards.
        output_layers: names of the output layers. Default: found, see
            :func:`~hypersphere.regularizers.find_neurons`.
        together: compare the filters of different groups of a convolution too.
    """

    def layer_penalty(self, layer: Neurons) -> Tensor:
        """|W^T W - diag(W^T W)|_F^2, summed over the sets of a layer.

        Args:
            layer: one of the layers found.

        Returns:
            A scalar.
        """
        return orthogonal_penalty(self.neurons(layer), sets=True)


@register("regularizer", "srip", source="6.6")
class SRIP(_GramRegularizer):
    """weight * sum over layers of the spectral norm of W^T W - I, by power iteration (6.6, [29]).

    The vector of the iteration is kept from call to call and saved with the state; see
    :func:`~hypersphere.functional.spectral_penalty`.

    Args:
        weight: factor of the hidden layers; the dissertation uses 1e-5.
        output: factor of the output layer. Default: 0, which leaves it out.
        iterations: power iterations per call, from the vector of the last one.
        normalize: compare directions: neurons are taken to unit length first.
        only: names of layers to take, with wildcards; a name also stands for the layers below it.
            Default: all.
        skip: names of layers to leave out, with wildcards.
        output_layers: names of the output layers. Default: found, see
            :func:`~hypersphere.regularizers.find_neurons`.
        together: compare the filters of different groups of a convolution too.
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

    def layer_penalty(self, layer: Neurons) -> Tensor:
        """The spectral norm of W^T W - I, summed over the sets of a layer.

        Args:
            layer: one of the layers found.

        Returns:
            A scalar.
        """
        neurons, start = self.neurons(layer), self.vectors.get(layer.name)
        value, self.vectors[layer.name] = spectral_penalty(
            neurons, start, self.iterations, self.generator, sets=True
        )
        return value

    def tensors(self) -> dict[str, Tensor]:
        """Generator and vectors of the power iteration.

        Returns:
            The state by name.
        """
        return super().tensors() | {f"vector/{name}": v for name, v in self.vectors.items()}

    def restore(self, tensors: Mapping[str, Tensor]) -> None:
        """Take over a state.

        Args:
            tensors: as :meth:`tensors` returned it.
        """
        super().restore(tensors)
        marked = {k: v for k, v in tensors.items() if k.startswith("vector/")}
        self.vectors = {key.removeprefix("vector/"): v for key, v in marked.items()}
