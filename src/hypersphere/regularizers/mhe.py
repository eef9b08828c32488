"""Minimum hyperspherical energy (chapter 5): evenly spread neurons, as a term of the loss."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import torch
from torch import Tensor, nn

from ..functional import class_energy, set_energies
from ..registry import register
from .base import Term, WeightRegularizer
from .neurons import Neurons
from .options import energy_options, number

__all__ = ["MHE", "ClassEnergy"]


@register("regularizer", "mhe", source="Eq. 5.4")
class MHE(WeightRegularizer):
    r"""Energies of all layers, each divided by its number of pairs (Eq. 5.4).

    .. math:: \lambda_h \sum_{j<L} \frac{E_s(W_j)}{N_j (N_j - 1)}
        + \lambda_o \frac{E_s(W_L)}{N_L (N_L - 1)}

    Args:
        hidden: lambda_h, the weight of the hidden layers; 0 leaves them out.
        output: lambda_o, the weight of the output layer; 0 leaves it out.
        s: power of the Riesz kernel for the hidden layers, >= 0; 0 is the logarithmic energy.
        half_space: whether the hidden layers repel both w and -w (5.3.4).
        distance: "euclidean", or "geodesic" for the angle (Eq. 5.5), in the hidden layers.
        output_s: s of the output layer. Default: as for the hidden layers.
        output_half_space: half_space of the output layer. Default: False, since opposite classes
            are not redundant (5.3.4).
        output_distance: distance of the output layer. Default: as for the hidden layers.
        batch: number of neurons drawn at random from each layer in each call (5.3.6).
            Default: all neurons.
        average: divide the hidden term by the number of hidden layers (remark in D.1).
        only: names of layers to take, with wildcards; a name also stands for the layers below it.
            Default: all.
        skip: names of layers to leave out, with wildcards.
        output_layers: names of the output layers. Default: found, see
            :func:`~hypersphere.regularizers.find_neurons`.
        together: compare the filters of different groups of a convolution too.
        seed: seed of the mini-batches of neurons.
        neuron_weights: for some layers, by their names, a factor beta per neuron: a large one holds
            its neuron in place (D.10).

    The dissertation uses hidden=10 in the full space and 1 in the half space, output=1 (D.1); see
    :func:`~hypersphere.regularizers.create_published` for these and other sources by name.

    >>> net = nn.Sequential(nn.Linear(3, 3, bias=False), nn.ReLU(), nn.Linear(3, 2, bias=False))
    >>> with torch.no_grad():
    ...     _ = net[0].weight.copy_(torch.eye(3)), net[2].weight.copy_(torch.eye(3)[:2])
    >>> MHE(hidden=10.0, output=1.0, s=2.0, half_space=False)(net).item()  # 10 / 2 + 1 / 2
    5.5
    """

    def __init__(
        self,
        hidden: float = 1.0,
        output: float = 1.0,
        s: float = 2.0,
        half_space: bool = True,
        distance: str = "euclidean",
        output_s: float | None = None,
        output_half_space: bool = False,
        output_distance: str | None = None,
        batch: int | None = None,
        average: bool = False,
        only: Sequence[str] | None = None,
        skip: Sequence[str] = (),
        output_layers: Sequence[str] | None = None,
        together: bool = False,
        seed: int = 0,
        neuron_weights: Mapping[str, Sequence[float] | Tensor] | None = None,
    ) -> None:
        number("hidden", hidden)
        super().__init__(hidden, output, only, skip, output_layers, together, seed)
        energy_options(s, distance)
        energy_options(
            s if output_s is None else output_s, output_distance or distance, prefix="output_"
        )
        if batch is not None and batch < 2:
            raise ValueError(f"a batch of neurons needs at least 2, got {batch}")
        self.hidden = hidden
        self.s, self.half_space, self.distance = s, half_space, distance
        self.output_s = s if output_s is None else output_s
        self.output_half_space = output_half_space
        self.output_distance = output_distance or distance
        self.batch, self.average = batch, average
        given = (neuron_weights or {}).items()
        self.neuron_weights = {name: torch.as_tensor(beta) for name, beta in given}
        for name, beta in self.neuron_weights.items():
            if beta.ndim != 1 or not bool((beta > 0).all()):
                raise ValueError(
                    f"neuron_weights[{name!r}] must be positive numbers, one per neuron; got {beta}"
                )
        if self.neuron_weights and "geodesic" in (distance, self.output_distance):
            raise ValueError(
                "neuron_weights scale the directions (Eq. D.10), which leaves angles as they are: "
                "use them with distance='euclidean'"
            )

    def find(self, module: nn.Module | Mapping[str, Tensor]) -> list[Neurons]:
        """The layers that this regularizer acts on; see :func:`find_neurons`.

        Args:
            module: a network, or a mapping from names to weights.

        Returns:
            The layers, in the order of the network.
        """
        layers = super().find(module)
        names = [layer.name for layer in layers]
        if lost := [name for name in self.neuron_weights if name not in names]:
            raise ValueError(f"neuron_weights of {lost}; the layers are: {', '.join(names)}")
        return layers

    def factor(self, layer: Neurons, hidden_layers: int) -> float:
        """The weight of a layer in the loss.

        Args:
            layer: the layer.
            hidden_layers: number of hidden layers, for the average.

        Returns:
            lambda_o, or lambda_h (over the number of hidden layers).
        """
        if layer.role == "output":
            return self.output
        return self.hidden / hidden_layers if self.average else self.hidden

    def terms(self, layers: list[Neurons]) -> list[Term]:
        """The energy of each layer and its weight.

        Args:
            layers: the layers found.

        Returns:
            One term per layer of nonzero weight.
        """
        hidden_layers = sum(layer.role == "hidden" for layer in layers)
        found = []
        for layer in layers:
            factor = self.factor(layer, hidden_layers)
            if factor:
                found.append(Term(layer, factor, self.energy(layer, layer.read())))
        return found

    def energy(self, layer: Neurons, neurons: Tensor) -> Tensor:
        """Mean energy of a layer's pairs of neurons, averaged over its sets.

        Args:
            layer: the layer, for its role and name.
            neurons: (sets, N, d), one neuron per row.

        Returns:
            A scalar.
        """
        weights = self.neuron_weights.get(layer.name)
        if self.batch is not None and self.batch < neurons.shape[1]:
            drawn = torch.randperm(neurons.shape[1], generator=self.generator)[: self.batch]
            drawn = drawn.to(neurons.device)
            neurons = neurons.index_select(1, drawn)
            weights = None if weights is None else weights.to(neurons.device)[drawn]
        if layer.role == "output":
            settings = (self.output_s, self.output_half_space, self.output_distance)
        else:
            settings = (self.s, self.half_space, self.distance)
        return set_energies(neurons, *settings, weights).mean()

    def extra_repr(self) -> str:
        return (
            f"hidden={self.hidden}, output={self.output}, s={self.s}, "
            f"half_space={self.half_space}, distance={self.distance!r}"
        )


class ClassEnergy(nn.Module):
    """weight times the energy of the classes in the batch against all classes (Eq. 5.8).

    The second term of SphereFace+; the first is the loss of the head.

    Args:
        weight: factor of the energy, the lambda of Eq. 5.8.
        s: power of the Riesz kernel, >= 0; 0 is the logarithmic energy.
        distance: "euclidean", or "geodesic" for the angle in radians.

    Called with a head (or its weight (N, d), one class per row, (N, K, d) with sub-centers) and
    labels (m,), it returns a scalar.

    >>> head = nn.Linear(3, 3, bias=False)
    >>> _ = nn.init.eye_(head.weight)
    >>> ClassEnergy(weight=2.0)(head, torch.tensor([0, 1])).item()
    1.0
    """

    def __init__(self, weight: float = 1.0, s: float = 2.0, distance: str = "euclidean") -> None:
        super().__init__()
        number("weight", weight)
        energy_options(s, distance)
        self.weight, self.s, self.distance = weight, s, distance

    def forward(self, head: nn.Module | Tensor, labels: Tensor) -> Tensor:
        weight = head if isinstance(head, Tensor) else getattr(head, "weight", None)
        if not isinstance(weight, Tensor):
            raise TypeError(
                f"ClassEnergy expects a head with a weight (N, d), one class per row, or that "
                f"weight; got {type(head).__name__}"
            )
        return self.weight * class_energy(weight, labels, self.s, self.distance)

    def extra_repr(self) -> str:
        return f"weight={self.weight}, s={self.s}, distance={self.distance!r}"
