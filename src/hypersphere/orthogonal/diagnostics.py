"""What a rotation has kept and what it costs: orthogonality, energy, determinant, size."""

from __future__ import annotations

import math
from dataclasses import asdict, dataclass
from typing import Any

import torch
from torch import Tensor, nn

from ..finding import find_layers
from ..functional import hyperspherical_energy
from .input_side import base_weight, effective_weight
from .rotation import FREE, MAPS, Matrix, Rotation, TwoSided, matrices, required_rotations


@torch.no_grad()
def orthogonality_error(model: nn.Module) -> float:
    r"""Distance from orthogonality, :math:`\max |R^T R - I|` over the current R of every layer.

    Args:
        model: a rotated model.

    Returns:
        The largest entry, computed in float64.

    Raises:
        ValueError: if no layer has a matrix R.

    >>> from hypersphere.orthogonal import rotate
    >>> orthogonality_error(rotate(nn.Linear(6, 4), "gram_schmidt")) < 1e-5
    True
    """
    found: list[Any] = [R for _, R in matrices(model)]
    if not found:
        raise ValueError(
            "no layer has a matrix R to measure: all were rotated with a function or module T(v), "
            "which need not be linear; report(model) shows their energies"
        )
    return float(max(R.orthogonality_error() for R in found))


def orthogonality_penalty(model: nn.Module, squared: bool = True) -> Tensor:
    """OR, Eq. 7.7 without its weight: the sum of |R^T R - I|_F^2 over the layers.

    R is the whole block-diagonal matrix: a block that is shared counts as often as it occurs.
    Only matrices that are free to leave orthogonality count ("regularized", "ogd", "none").

    Args:
        model: a rotated model.
        squared: False sums the norms themselves, as the released code does.

    Returns:
        A scalar.

    >>> from hypersphere.orthogonal import rotate
    >>> orthogonality_penalty(rotate(nn.Linear(4, 4), "regularized")).item() < 1e-9
    True
    """
    free = [R for R in _block_matrices(model) if R.method in FREE]
    if not free:
        raise ValueError(
            "no layer has a free matrix to penalize: rotate(model, method='regularized')"
        )
    terms = []
    with torch.autocast(device_type=free[0].U.device.type, enabled=False):
        for R in free:
            error = _gram_error(R.U.float() if R.U.dtype.itemsize < 4 else R.U).flatten(1)
            repeats = R.blocks / R.U.shape[1]
            if squared:
                terms.append(repeats * error.square().sum())
            else:
                terms.append(math.sqrt(repeats) * torch.linalg.vector_norm(error, dim=1).sum())
    return torch.stack(terms).sum()


def _block_matrices(model: nn.Module) -> list[Matrix]:
    found: list[Any] = []
    for _, R in matrices(model):
        found += [R.inputs, R.outputs] if isinstance(R, TwoSided) else [R]
    return [R for R in found if isinstance(R, Matrix)]


def _gram_error(R: Tensor) -> Tensor:
    return R.mT @ R - torch.eye(R.shape[-1], dtype=R.dtype, device=R.device)


@torch.no_grad()
def energy(rows: Tensor, sets: int = 1, s: float = 1.0, half_space: bool = False) -> float:
    """Mean pair energy of the rows (E of 7.3.2 over n(n-1)), averaged over the sets."""
    parts = rows.double().reshape(sets, rows.shape[0] // sets, -1)
    if parts.shape[1] < 2:
        return 0.0
    each = [hyperspherical_energy(part, s=s, half_space=half_space) for part in parts]
    return float(torch.stack(each).mean())


@torch.no_grad()
def energies(model: nn.Module, s: float = 1.0, half_space: bool = False) -> dict[str, float]:
    """Energy of the present weights of every layer, rotated or plain: before, during, after.

    Args:
        model: any model.
        s: power of the Riesz kernel; 1 is the energy of 7.3.2.
        half_space: energy of the directions {w, -w}.

    Returns:
        The mean energy of a pair of neurons, by the name of the layer.

    >>> list(energies(nn.Sequential(nn.Linear(4, 3), nn.Linear(3, 2))))
    ['0', '1']
    """
    return {
        site.label: energy(site.layout.rows(site.read()), site.layout.sets, s, half_space)
        for site in find_layers(model)
        if site.state != "quantized"
    }


@dataclass
class RotatedLayer:
    """One rotated layer.

    Args:
        name: of the layer.
        method: how R is made from its parameter.
        neurons: number of neurons.
        dim: length of a neuron.
        blocks: number of blocks of R.
        parameters: trained numbers of R, and lengths of neurons if they are learned. The
            "# Parameters" of Tables F.4 and F.5 count whole matrices; Cayley and the exponential
            train what is above the diagonal.
        baseline_parameters: numbers of the plain weight.
        energy_start: mean energy of a pair of neurons when the layer was rotated.
        energy_now: the same now.
        orthogonality_error: largest entry of R^T R - I; None without a matrix R.
        determinant: of R; None without a matrix R.
    """

    name: str
    method: str
    neurons: int
    dim: int
    blocks: int
    parameters: int
    baseline_parameters: int
    energy_start: float
    energy_now: float
    orthogonality_error: float | None
    determinant: float | None


@dataclass
class RotationReport:
    """All rotated layers; `str` prints a table.

    Args:
        layers: one entry per layer.
    """

    layers: list[RotatedLayer]

    @property
    def parameters(self) -> int:
        """Trained numbers of all R."""
        return sum(layer.parameters for layer in self.layers)

    @property
    def baseline_parameters(self) -> int:
        """Numbers of all plain weights."""
        return sum(layer.baseline_parameters for layer in self.layers)

    def to_dict(self) -> dict[str, Any]:
        """The report as plain values.

        Returns:
            "layers", a list with a dictionary per layer.
        """
        return asdict(self)

    def __str__(self) -> str:
        def figure(value: float | None, form: str) -> str:
            return "" if value is None else format(value, form)

        width = max(12, *(len(layer.name) for layer in self.layers))
        lines = [
            f"{'layer':{width}} {'method':>16} {'n':>5} {'d':>6} {'blocks':>6} {'trained':>10} "
            f"{'baseline':>10} {'E start':>9} {'E now':>9} {'|RtR-I|':>9} {'det R':>6}"
        ]
        for x in self.layers:
            lines.append(
                f"{x.name:{width}} {x.method:>16} {x.neurons:5} {x.dim:6} {x.blocks:6} "
                f"{x.parameters:10,} {x.baseline_parameters:10,} {x.energy_start:9.5f} "
                f"{x.energy_now:9.5f} {figure(x.orthogonality_error, '9.1e'):>9} "
                f"{figure(x.determinant, '+.2f'):>6}"
            )
        lines.append(f"{'all':{width}} {self.parameters:>47,} {self.baseline_parameters:10,}")
        return "\n".join(lines)


@torch.no_grad()
def report(model: nn.Module) -> RotationReport:
    """Per rotated layer: energy at the start and now (7.2: equal), orthogonality, det R, sizes.

    Args:
        model: a rotated model.

    Returns:
        The report; printed, it is a table.

    >>> from hypersphere.orthogonal import rotate
    >>> layer = report(rotate(nn.Conv2d(64, 64, 3), "cayley", blocks=4)).layers[0]
    >>> layer.dim, layer.parameters, layer.baseline_parameters
    (576, 41184, 36864)
    """
    layers = []
    for label, module, parameter, rotation in required_rotations(model):
        layout, turn = rotation.layout, rotation.map
        weight = effective_weight(module, parameter, rotation)
        known = isinstance(turn, MAPS)
        lengths = [] if rotation.lengths is None else [rotation.lengths]
        trained = [*turn.parameters(), *lengths]
        layers.append(
            RotatedLayer(
                name=label,
                method=rotation.method,
                neurons=layout.neurons * layout.sets,
                dim=layout.dim,
                blocks=int(turn.blocks) if known else 1,  # type: ignore[arg-type]
                parameters=sum(p.numel() for p in trained),
                baseline_parameters=weight.numel(),
                energy_start=_start_energy(module, parameter, rotation),
                energy_now=energy(layout.rows(weight), layout.sets),
                orthogonality_error=turn.orthogonality_error() if known else None,  # type: ignore[operator]
                determinant=turn.determinant() if known else None,  # type: ignore[operator]
            )
        )
    return RotationReport(layers)


def _start_energy(module: Any, parameter: str, rotation: Rotation) -> float:
    """As noted when the layer was rotated, or that of its neurons, which R has not changed."""
    noted = float(rotation.start_energy)
    if not math.isnan(noted):
        return noted
    if rotation.side == "input":
        neurons = base_weight(module, parameter, rotation)
    else:
        neurons = module.parametrizations[parameter].original
    return energy(rotation.layout.rows(neurons), rotation.layout.sets)
