"""Regularizers with an inner problem: they look for the places that the neurons leave empty."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import torch  # noqa: F401 - for the examples
from torch import Tensor

from ..functional import covering, covering_points, polarization, polarization_points
from ..registry import register
from .neurons import Neurons
from .options import energy_options, number
from .spreading import SOURCE, SpreadingRegularizer

__all__ = ["Covering", "Polarization"]


class HoleRegularizer(SpreadingRegularizer):
    """Keeps the points of the inner problem from call to call, layer by layer.

    Each call goes on from the better half of the points of the last one; the other half starts at
    random, to find holes that have opened elsewhere. In evaluation mode the points stay as they
    are. They are part of the state dict.
    """

    found: dict[str, Tensor]

    def _begin(self, points: int, steps: int) -> None:
        """Called by the constructor."""
        if points < 1 or steps < 1:
            raise ValueError(
                f"the inner problem needs points >= 1 and steps >= 1, got {points} and {steps}"
            )
        self.points, self.steps = points, steps
        self.found = {}

    def _search(self, neurons: Tensor, half_space: bool, start: Tensor | None) -> Tensor:
        """The points (sets, P, d) of the inner problem."""
        raise NotImplementedError

    def _places(self, layer: Neurons, neurons: Tensor, half_space: bool) -> Tensor:
        """The points of this call, which the next one starts from."""
        last = self.found.get(layer.name)
        if last is not None and last.shape[::2] != neurons.shape[::2]:
            raise ValueError(
                f"{layer.name}: the points of the last call are for {last.shape[0]} sets of "
                f"dimension {last.shape[2]}, the layer has {neurons.shape[0]} of "
                f"{neurons.shape[2]}; use one {type(self).__name__} per network"
            )
        start = None if last is None else last[:, : (self.points + 1) // 2]
        found = self._search(neurons, half_space, start)
        if self.training:
            self.found[layer.name] = found
        return found

    def tensors(self) -> dict[str, Tensor]:
        return super().tensors() | {f"points/{name}": v for name, v in self.found.items()}

    def restore(self, tensors: Mapping[str, Tensor]) -> None:
        super().restore(tensors)
        marked = {k: v for k, v in tensors.items() if k.startswith("points/")}
        self.found = {key.removeprefix("points/"): v for key, v in marked.items()}


@register("regularizer", "polarization", source=SOURCE)
class Polarization(HoleRegularizer):
    """Minus the smallest potential of the neurons of a layer on the sphere (MHP).

    See :func:`~hypersphere.functional.polarization`.

    Args:
        hidden: factor of the hidden layers; 0 leaves them out. The released code has 1.
        output: factor of the output layer; 0 leaves it out. The released code has 10.
        half_space: the potential of the neurons and their mirror images, in hidden layers.
        s: power of the Riesz kernel.
        distance: "euclidean" or "geodesic".
        points: points that look for the smallest potential in each call.
        steps: steps that each of them makes.
        output_half_space: `half_space` of the output layer.
        batch: a random batch of so many neurons of each layer in each call. Default: all.
        average: divide the hidden term by the number of hidden layers.
        only: names of the layers to take; see :func:`~hypersphere.regularizers.find_neurons`.
        skip: names of the layers to leave out.
        output_layers: names of the output layers. Default: they are found.
        together: compare the filters of different groups too.
        seed: of the random batches and points.

    >>> Polarization(half_space=False)({"w": torch.tensor([[1.0, 0.0], [1.0, 0.0]])})
    tensor(-0.2500)
    """

    def __init__(
        self,
        hidden: float = 1.0,
        output: float = 1.0,
        half_space: bool = True,
        s: float = 2.0,
        distance: str = "euclidean",
        points: int = 8,
        steps: int = 5,
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
        self._begin(points, steps)
        energy_options(s, distance)
        self.s, self.distance = s, distance

    def _search(self, neurons: Tensor, half_space: bool, start: Tensor | None) -> Tensor:
        return polarization_points(
            neurons, self.s, half_space, self.distance, self.points, self.steps, start,
            self.generator, sets=True,
        )  # fmt: skip

    def _spread(self, layer: Neurons, neurons: Tensor, half_space: bool) -> Tensor:
        places = self._places(layer, neurons, half_space)
        return polarization(neurons, self.s, half_space, self.distance, places, sets=True)

    def extra_repr(self) -> str:
        return f"{super().extra_repr()}, s={self.s}, distance={self.distance!r}"


@register("regularizer", "covering", source=SOURCE)
class Covering(HoleRegularizer):
    """The largest squared distance from a direction to its nearest neuron, smoothly (MHC).

    See :func:`~hypersphere.functional.covering`.

    Args:
        hidden: factor of the hidden layers; 0 leaves them out. The released code has 0.01.
        output: factor of the output layer; 0 leaves it out. The released code has 0.1.
        half_space: mirror images of the neurons cover as well, in hidden layers.
        sharpness: gamma; the larger, the closer to the nearest neuron alone.
        points: points that look for the largest hole in each call.
        steps: steps that each of them makes.
        output_half_space: `half_space` of the output layer.
        batch: a random batch of so many neurons of each layer in each call. Default: all.
        average: divide the hidden term by the number of hidden layers.
        only: names of the layers to take; see :func:`~hypersphere.regularizers.find_neurons`.
        skip: names of the layers to leave out.
        output_layers: names of the output layers. Default: they are found.
        together: compare the filters of different groups too.
        seed: of the random batches and points.

    >>> Covering(half_space=False)({"w": torch.tensor([[1.0, 0.0], [1.0, 0.0]])})
    tensor(4.)
    """

    def __init__(
        self,
        hidden: float = 1.0,
        output: float = 1.0,
        half_space: bool = True,
        sharpness: float = 10.0,
        points: int = 8,
        steps: int = 5,
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
        self._begin(points, steps)
        number("sharpness", sharpness)
        if sharpness == 0:
            raise ValueError(f"sharpness must be a finite number > 0, got {sharpness!r}")
        self.sharpness = sharpness

    def _search(self, neurons: Tensor, half_space: bool, start: Tensor | None) -> Tensor:
        return covering_points(
            neurons, self.sharpness, half_space, self.points, self.steps, start, self.generator,
            sets=True,
        )  # fmt: skip

    def _spread(self, layer: Neurons, neurons: Tensor, half_space: bool) -> Tensor:
        places = self._places(layer, neurons, half_space)
        return covering(neurons, self.sharpness, half_space, places, sets=True)

    def extra_repr(self) -> str:
        return f"{super().extra_repr()}, sharpness={self.sharpness}"
