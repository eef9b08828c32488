"""The geometry of the weight matrices of any checkpoint, and what stands out in it.

Names and shapes are enough: a matrix (N, d), or a kernel (N, ...), holds N neurons. The energy of a
layer is put between two marks, that of random directions (1) and the least that any N directions
can have (0), so that layers of different sizes can be compared.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from ...functional import hyperspherical_energy, normalize
from ..results import Result
from .geometry import Norms, effective_rank

__all__ = [
    "InspectedLayer",
    "InspectionResult",
    "inspect_weights",
    "least_energy",
    "random_energy",
]

# Power of the energies: random directions have a finite mean from R^3 on.
S = 1.0
# Neurons beyond which a sample of them stands for all.
MAX_NEURONS = 4096
DUPLICATE_DEGREES = 5.0


@dataclass
class InspectedLayer:
    """One weight matrix.

    Args:
        name: of the tensor.
        neurons: number of neurons N.
        dim: dimension d of a neuron.
        energy: mean energy over pairs, s = 1, without the second of two near duplicates.
        random: that of random directions in R^d.
        least: a lower bound of that of any N directions in R^d, exact for N <= d + 1.
        relative: (energy - least) / (random - least): 0 is the best possible, 1 as good as random.
            NaN in R^2, where the mean energy of random directions is infinite.
        smallest_angle: between two neurons, in degrees.
        duplicates: number of neurons with another one within 5 degrees, of those measured.
        zeros: number of neurons of length 0, of all N.
        effective_rank: exp(H(p)), p the singular values over their sum, <= min(measured, d).
        spectrum: singular values relative to the largest, at most 64 of them, evenly chosen.
        largest_share: share of the largest squared singular value in their sum.
        norms: lengths of all N neurons.
        finite: whether all entries are finite.
        measured: number of neurons that everything but zeros and norms is of: N, or a sample.
    """

    name: str
    neurons: int
    dim: int
    energy: float
    random: float
    least: float
    relative: float
    smallest_angle: float
    duplicates: int
    zeros: int
    effective_rank: float
    spectrum: list[float]
    largest_share: float
    norms: Norms
    finite: bool
    measured: int

    @property
    def full_rank(self) -> int:
        """The largest rank that the measured neurons can have."""
        return min(self.measured, self.dim)

    def remarks(self) -> Iterator[str]:
        """What stands out, in words.

        Returns:
            Sentences, none if nothing does.
        """
        if not self.finite:
            yield f"{self.name} has entries that are not finite; nothing else can be said of it."
            return
        full = self.full_rank
        if self.zeros:
            yield f"{self.name}: {self.zeros} of {self.neurons} neurons are zero."
        if self.duplicates:
            all_or_some = (
                f"{self.neurons} neurons"
                if self.measured == self.neurons
                else f"the {self.measured} neurons looked at, a sample of {self.neurons},"
            )
            yield (
                f"{self.name}: {self.duplicates} of {all_or_some} have a near duplicate "
                f"(smallest angle {self.smallest_angle:.2g} degrees)."
            )
        if 1.5 < self.relative < math.inf:
            yield (
                f"{self.name}: the neurons lie closer together than random directions, "
                f"{self.relative:.2g} times as far above the least energy."
            )
        elif self.relative < 0.5 and self.neurons > 2:
            yield f"{self.name}: the neurons are spread far better than random directions."
        if full >= 8 and self.effective_rank < 0.1 * full:
            yield f"{self.name}: effective rank {self.effective_rank:.1f} of {full}."
        if full >= 8 and self.largest_share > 0.5:
            yield (
                f"{self.name}: one direction carries {100 * self.largest_share:.0f} % of the "
                "squared weights."
            )
        if self.norms.smallest > 0 and self.norms.largest > 20 * self.norms.smallest:
            yield (
                f"{self.name}: lengths of neurons range from {self.norms.smallest:.2g} to "
                f"{self.norms.largest:.2g}."
            )


@dataclass
class InspectionResult(Result):
    """Result of :func:`inspect_weights`.

    Args:
        layers: one entry per weight matrix, in the order of the checkpoint.
        skipped: names of tensors that are no matrices of neurons.
        parameters: number of entries of all tensors.
    """

    layers: list[InspectedLayer]
    skipped: list[str]
    parameters: int

    def remarks(self) -> list[str]:
        """What stands out, in words.

        Returns:
            Sentences; never empty.
        """
        if not self.layers:
            return ["No weight was inspected: expected matrices of floating-point numbers."]
        found = [remark for layer in self.layers for remark in layer.remarks()]
        return found or ["Nothing stands out: no duplicates, no lost rank, no outlying lengths."]

    def header(self) -> Sequence[str]:
        return ("layer", "neurons", "dim", "energy (0 best, 1 random)", "smallest angle",
                "duplicates", "rank", "largest share", "norm")  # fmt: skip

    def rows(self) -> Iterator[Sequence[object]]:
        for layer in self.layers:
            yield (
                layer.name,
                layer.neurons,
                layer.dim,
                f"{layer.relative:.2f}",
                f"{layer.smallest_angle:.1f}",
                layer.duplicates,
                f"{layer.effective_rank:.1f} / {layer.full_rank}",
                f"{100 * layer.largest_share:.1f} %",
                f"{layer.norms.mean:.3g} +- {layer.norms.deviation:.2g}",
            )
        yield from ((remark,) for remark in self.remarks())


@torch.no_grad()
def inspect_weights(tensors: Mapping[str, Tensor]) -> InspectionResult:
    """The geometry of every weight matrix of a state dict.

    Args:
        tensors: names and tensors. Floating-point tensors of two dimensions or more with at least
            two rows and two columns count, (N, ...) as N neurons; everything else is skipped. Of
            more than 4096 neurons an even sample of 4096 is measured; zeros and lengths are those
            of all.

    Returns:
        The figures of each layer, and in words what stands out.

    >>> result = inspect_weights({"fc.weight": torch.eye(3), "fc.bias": torch.zeros(3)})
    >>> round(result.layers[0].smallest_angle, 6), result.skipped
    (90.0, ['fc.bias'])
    """
    layers, skipped = [], []
    for name, tensor in tensors.items():
        usable = tensor.is_floating_point() and tensor.ndim >= 2 and len(tensor) >= 2
        if usable and tensor[0].numel() >= 2:
            layers.append(_inspect(name, tensor.detach()))
        else:
            skipped.append(name)
    return InspectionResult(layers, skipped, sum(tensor.numel() for tensor in tensors.values()))


def _inspect(name: str, tensor: Tensor) -> InspectedLayer:
    rows = tensor.flatten(1).float().cpu()
    neurons, dim = rows.shape
    nan = math.nan
    random, least = random_energy(dim), least_energy(neurons)
    if not bool(rows.isfinite().all()):
        lost = Norms(nan, nan, nan, nan)
        return InspectedLayer(name, neurons, dim, nan, random, least, nan, nan, 0, 0, nan, [], nan,
                              lost, False, neurons)  # fmt: skip
    zeros, norms = int((rows.norm(dim=1) == 0).sum()), Norms.of(rows)
    if neurons > MAX_NEURONS:
        rows = rows[torch.linspace(0, neurons - 1, MAX_NEURONS).long()]
    nonzero = rows[rows.norm(dim=1) > 0]
    energy = smallest = nan
    close = 0
    if len(nonzero) > 1:
        nearest, which = _nearest(nonzero)
        smallest = float(nearest.min())
        duplicate = nearest < DUPLICATE_DEGREES
        close = int(duplicate.sum())
        # Duplicates are counted, and one of each is left out: they would be all of the energy
        apart = nonzero[~(duplicate & (which < torch.arange(len(which))))]
        energy = float(hyperspherical_energy(apart, S)) if len(apart) > 1 else nan
    values = torch.linalg.svdvals(rows.double())
    squares = values.square()
    total = float(squares.sum())
    shown = values[torch.linspace(0, len(values) - 1, min(64, len(values))).long()]
    return InspectedLayer(
        name,
        neurons,
        dim,
        energy,
        random,
        least,
        (energy - least) / (random - least) if math.isfinite(random) else nan,
        smallest,
        close,
        zeros,
        effective_rank(rows),
        (shown / values[0].clamp_min(1e-300)).tolist(),
        float(squares[0]) / total if total > 0 else nan,
        norms,
        True,
        len(rows),
    )


def _nearest(rows: Tensor) -> tuple[Tensor, Tensor]:
    """Angle of each row to its nearest other one, in degrees, and the number of that one."""
    unit = normalize(rows.double())
    nearest, numbers = [], []
    for start in range(0, len(unit), 1024):
        cos = unit[start : start + 1024] @ unit.T
        cos.diagonal(offset=start).fill_(-math.inf)  # below the -1 of opposite rows
        index = cos.argmax(1)
        # By the chord: acos loses half of the digits near 0
        chord = (unit[start : start + 1024] - unit[index]).norm(dim=1)
        nearest.append(2 * torch.rad2deg((chord / 2).clamp(max=1).asin()))
        numbers.append(index)
    return torch.cat(nearest), torch.cat(numbers)


def random_energy(dim: int, s: float = S) -> float:
    """Mean of \\|x - y\\|^-s over independent uniform directions.

    2^(d-2-s) Gamma(d/2) Gamma((d-1-s)/2) / (sqrt(pi) Gamma(d-1-s/2)).

    Args:
        dim: dimension d of the space.
        s: power, below d - 1 for a finite mean.

    Returns:
        The mean; inf from s = d - 1 on.

    >>> round(random_energy(3), 6)
    1.0
    """
    if s >= dim - 1:
        return math.inf
    log = (dim - 2 - s) * math.log(2) + math.lgamma(dim / 2) + math.lgamma((dim - 1 - s) / 2)
    return math.exp(log - 0.5 * math.log(math.pi) - math.lgamma(dim - 1 - s / 2))


def least_energy(n: int, s: float = S) -> float:
    """The mean energy of a regular simplex of n points, which none of n points in any space beats.

    By convexity: the mean squared distance of n unit vectors is at most 2n / (n - 1).

    Args:
        n: number of points, >= 2.
        s: power > 0.

    Returns:
        (2n / (n - 1))^(-s/2).

    >>> least_energy(2)
    0.5
    """
    return (2 * n / (n - 1)) ** (-s / 2)
