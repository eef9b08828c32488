"""More ways to spread neurons than energy: separation, KoLeo, Gram determinant.

They act on the layers of a network as MHE does, and are smaller the more even the neurons are. The
two that have an inner problem are in `holes.py`.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from ..functional import gram_determinant, koleo, separation
from ..registry import register
from .base import Term, WeightRegularizer
from .neurons import Neurons
from .options import number, one_of

__all__ = ["GramDeterminant", "KoLeo", "Separation"]

SOURCE = "Liu et al., AISTATS 2021"


class SpreadingRegularizer(WeightRegularizer):
    """Adds up one value per layer, of all its neurons or of a random batch of them.

    Args:
        hidden: factor of the hidden layers; 0 leaves them out.
        output: factor of the output layer; 0 leaves it out.
        half_space: spread the lines of the hidden neurons instead of their directions.
        output_half_space: the same for the output layer.
        batch: a random batch of so many neurons of each layer in each call. Default: all.
        average: divide the hidden term by the number of hidden layers.
        only: names of the layers to take; see :func:`~hypersphere.regularizers.find_neurons`.
        skip: names of the layers to leave out.
        output_layers: names of the output layers. Default: they are found.
        together: compare the filters of different groups too.
        seed: of the random batches and points.
    """

    def __init__(
        self,
        hidden: float,
        output: float,
        half_space: bool,
        output_half_space: bool,
        batch: int | None,
        average: bool,
        only: Sequence[str] | None,
        skip: Sequence[str],
        output_layers: Sequence[str] | None,
        together: bool,
        seed: int,
    ) -> None:
        number("hidden", hidden)
        super().__init__(hidden, output, only, skip, output_layers, together, seed)
        if batch is not None and batch < 2:
            raise ValueError(f"a batch of neurons needs at least 2, got {batch}")
        self.hidden = hidden
        self.half_space, self.output_half_space = half_space, output_half_space
        self.batch, self.average = batch, average

    def _spread(self, layer: Neurons, neurons: Tensor, half_space: bool) -> Tensor:
        """The value of each set of neurons (sets, N, d): (sets,)."""
        raise NotImplementedError

    def terms(self, layers: list[Neurons]) -> list[Term]:
        hidden_layers = sum(layer.role == "hidden" for layer in layers)
        found = []
        for layer in layers:
            is_output = layer.role == "output"
            factor = self.output if is_output else self.hidden
            if not factor:
                continue
            if self.average and not is_output:
                factor /= hidden_layers
            neurons = layer.read()
            if self.batch is not None and self.batch < neurons.shape[1]:
                drawn = torch.randperm(neurons.shape[1], generator=self.generator)[: self.batch]
                neurons = neurons.index_select(1, drawn.to(neurons.device))
            half_space = self.output_half_space if is_output else self.half_space
            found.append(Term(layer, factor, self._spread(layer, neurons, half_space).mean()))
        return found

    def extra_repr(self) -> str:
        return f"hidden={self.hidden}, output={self.output}, half_space={self.half_space}"


@register("regularizer", "separation", source=SOURCE)
class Separation(SpreadingRegularizer):
    """Minus the smallest distance between two neurons of a layer (MHS, Tammes' problem).

    See :func:`~hypersphere.functional.separation`.

    Args:
        hidden: factor of the hidden layers; 0 leaves them out. The released code has 0.1, on
            squared distances.
        output: factor of the output layer; 0 leaves it out.
        half_space: spread the lines of the hidden neurons instead of their directions.
        reduction: "min" moves the closest pair of a layer alone; "mean" every neuron, away from its
            nearest.
        output_half_space: `half_space` of the output layer.
        batch: a random batch of so many neurons of each layer in each call. Default: all.
        average: divide the hidden term by the number of hidden layers.
        only: names of the layers to take; see :func:`~hypersphere.regularizers.find_neurons`.
        skip: names of the layers to leave out.
        output_layers: names of the output layers. Default: they are found.
        together: compare the filters of different groups too.
        seed: of the random batches.

    >>> Separation(half_space=False)({"w": torch.eye(3)})
    tensor(-1.4142)
    """

    def __init__(
        self,
        hidden: float = 1.0,
        output: float = 1.0,
        half_space: bool = True,
        reduction: str = "min",
        output_half_space: bool = False,
        batch: int | None = None,
        average: bool = False,
        only: Sequence[str] | None = None,
        skip: Sequence[str] = (),
        output_layers: Sequence[str] | None = None,
        together: bool = False,
        seed: int = 0,
    ) -> None:
        super().__init__(
            hidden, output, half_space, output_half_space, batch, average, only, skip,
            output_layers, together, seed,
        )  # fmt: skip
        one_of("reduction", reduction, ("min", "mean"))
        self.reduction = reduction

    def _spread(self, layer: Neurons, neurons: Tensor, half_space: bool) -> Tensor:
        return separation(neurons, half_space, self.reduction, sets=True)

    def extra_repr(self) -> str:
        return f"{super().extra_repr()}, reduction={self.reduction!r}"


@register("regularizer", "koleo", source="Kozachenko and Leonenko's entropy, DINOv2")
class KoLeo(SpreadingRegularizer):
    """Minus the mean log distance of the neurons of a layer to their nearest neighbors.

    See :func:`~hypersphere.functional.koleo`.

    Args:
        hidden: factor of the hidden layers; 0 leaves them out.
        output: factor of the output layer; 0 leaves it out.
        half_space: spread the lines of the hidden neurons instead of their directions.
        output_half_space: `half_space` of the output layer.
        batch: a random batch of so many neurons of each layer in each call. Default: all.
        average: divide the hidden term by the number of hidden layers.
        only: names of the layers to take; see :func:`~hypersphere.regularizers.find_neurons`.
        skip: names of the layers to leave out.
        output_layers: names of the output layers. Default: they are found.
        together: compare the filters of different groups too.
        seed: of the random batches.

    >>> KoLeo(half_space=False)({"w": torch.eye(3)})
    tensor(-0.3466)
    """

    def __init__(
        self,
        hidden: float = 1.0,
        output: float = 1.0,
        half_space: bool = True,
        output_half_space: bool = False,
        batch: int | None = None,
        average: bool = False,
        only: Sequence[str] | None = None,
        skip: Sequence[str] = (),
        output_layers: Sequence[str] | None = None,
        together: bool = False,
        seed: int = 0,
    ) -> None:
        super().__init__(
            hidden, output, half_space, output_half_space, batch, average, only, skip,
            output_layers, together, seed,
        )  # fmt: skip

    def _spread(self, layer: Neurons, neurons: Tensor, half_space: bool) -> Tensor:
        return koleo(neurons, half_space, sets=True)


@register("regularizer", "gram_determinant", source=SOURCE)
class GramDeterminant(SpreadingRegularizer):
    """Minus the mean log eigenvalue of the Gaussian Gram matrix of the neurons of a layer (MGD).

    See :func:`~hypersphere.functional.gram_determinant`. Time is O(N^3) and memory O(N^2): use
    `batch` for layers of many thousand neurons.

    Args:
        hidden: factor of the hidden layers; 0 leaves them out. The released code has 0.01 times the
            number of neurons.
        output: factor of the output layer; 0 leaves it out.
        half_space: spread the lines of the hidden neurons instead of their directions.
        epsilon: 1 / width of the kernel.
        ridge: floor of the eigenvalues.
        output_half_space: `half_space` of the output layer.
        batch: a random batch of so many neurons of each layer in each call. Default: all.
        average: divide the hidden term by the number of hidden layers.
        only: names of the layers to take; see :func:`~hypersphere.regularizers.find_neurons`.
        skip: names of the layers to leave out.
        output_layers: names of the output layers. Default: they are found.
        together: compare the filters of different groups too.
        seed: of the random batches.

    >>> GramDeterminant(half_space=False)({"w": torch.eye(2)})  # -log(1 - exp(-4)) / 2
    tensor(0.0092)
    """

    def __init__(
        self,
        hidden: float = 1.0,
        output: float = 1.0,
        half_space: bool = True,
        epsilon: float = 1.0,
        ridge: float = 1e-6,
        output_half_space: bool = False,
        batch: int | None = None,
        average: bool = False,
        only: Sequence[str] | None = None,
        skip: Sequence[str] = (),
        output_layers: Sequence[str] | None = None,
        together: bool = False,
        seed: int = 0,
    ) -> None:
        super().__init__(
            hidden, output, half_space, output_half_space, batch, average, only, skip,
            output_layers, together, seed,
        )  # fmt: skip
        for name, value in (("epsilon", epsilon), ("ridge", ridge)):
            number(name, value)
            if value == 0:
                raise ValueError(f"{name} must be a finite number > 0, got {value!r}")
        self.epsilon, self.ridge = epsilon, ridge

    def _spread(self, layer: Neurons, neurons: Tensor, half_space: bool) -> Tensor:
        return gram_determinant(neurons, self.epsilon, half_space, self.ridge, sets=True)

    def extra_repr(self) -> str:
        return f"{super().extra_repr()}, epsilon={self.epsilon}, ridge={self.ridge}"
