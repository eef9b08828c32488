"""Watching the sphere: energies and angles of every layer while it trains (Fig. 6.2, 7.3)."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor, nn

from hypersphere.finding import Site, find_layers
from hypersphere.registry import register
from hypersphere.training.sharding import is_spread, whole_weight

__all__ = ["Monitor", "layer_angles", "layer_energies"]


def _neurons(site: Site) -> Tensor:
    """The neurons of a layer, one per row; of weights spread over processes, all of them."""
    if site.reader is not None:  # an adapter's layer, which no process shares
        return site.layout.rows(site.read().detach())
    return site.layout.rows(whole_weight(site.module, site.parameter))


def _layers(model: nn.Module) -> Iterator[tuple[str, Tensor]]:
    """One layer after the other, so that of weights spread over processes only one is whole."""
    for site in find_layers(model):
        if site.state != "quantized":
            weight = _neurons(site)
            if len(weight) > 1:
                yield site.label, weight


@torch.no_grad()
def layer_energies(model: nn.Module, s: float = 2.0, half_space: bool = False) -> dict[str, float]:
    """Mean hyperspherical energy (Eq. 5.1) of each layer, in the full space: not of projections.

    Args:
        model: any network.
        s: exponent of the energy. Default: 2.
        half_space: of the neurons and their negatives. Default: False.

    Returns:
        Energy by name of the layer.
    """
    from hypersphere import functional as HF

    return {
        name: float(HF.hyperspherical_energy(weight, s=s, half_space=half_space))
        for name, weight in _layers(model)
    }


@torch.no_grad()
def layer_angles(model: nn.Module) -> dict[str, dict[str, float]]:
    """Smallest and mean angle between the neurons of each layer.

    Args:
        model: any network.

    Returns:
        {"min": ..., "mean": ...} in radians, by name of the layer.
    """
    from hypersphere import functional as HF

    found = {}
    for name, weight in _layers(model):
        angles = HF.pairwise_angle(weight)
        upper = angles[tuple(torch.triu_indices(len(angles), len(angles), offset=1))]
        found[name] = {"min": float(upper.min()), "mean": float(upper.mean())}
    return found


@register("hook", "monitor", source="Fig. 6.2, 7.3")
class Monitor:
    """Writes {"split": "monitor", "energy": {layer: value}, "angle": {...}} every n updates.

    The mean energy over layers also appears in the progress bar.

    Args:
        every: updates between two measurements. Default: 200.
        s: exponent of the energy. Default: 2.
        half_space: energy of the neurons and their negatives. Default: False.
        angles: measure the angles between neurons, too. Default: True.
    """

    measures = ("energy", "energy_change", "hidden_energy_change")  # of `summarize`

    def __init__(
        self, every: int = 200, s: float = 2.0, half_space: bool = False, angles: bool = True
    ) -> None:
        self.every, self.s, self.half_space, self.angles = every, s, half_space, angles
        self.energy: float | None = None
        self.first: float | None = None
        self.hidden: list[float] = []  # first and last, without the classes

    def start(self, run: Any) -> None:
        """Measure the network before its first update.

        Args:
            run: the run that begins or goes on.
        """
        if run.step == 0:
            self._record(run, 0)

    def after_update(self, run: Any) -> None:
        """Measure every n updates, and after the last.

        Args:
            run: where the run is.
        """
        step = run.step + 1
        if step % self.every == 0 or step == run.settings.steps:
            self._record(run, step)

    def _record(self, run: Any, step: int) -> None:
        # Where every process has the same weights, rank 0 computes for all; weights that are spread
        # over processes take all of them to bring each layer together.
        if not (run.folder.write or is_spread(run.model)):
            return
        values = self._measure(run.model)
        energies = values["energy"]
        self.energy = sum(energies.values()) / max(1, len(energies))
        self.first = self.energy if self.first is None else self.first
        outputs = {site.label for site in find_layers(run.model) if site.role == "output"}
        hidden = [energy for name, energy in energies.items() if name not in outputs]
        if hidden:
            self.hidden = [*self.hidden[:1], sum(hidden) / len(hidden)]
        run.record(step, "monitor", values)

    def _measure(self, model: nn.Module) -> dict[str, Any]:
        values: dict[str, Any] = {"energy": layer_energies(model, self.s, self.half_space)}
        if self.angles:
            values["angle"] = layer_angles(model)
        return values

    def log(self, run: Any) -> dict[str, float]:
        """The mean energy, for the training line of the log.

        Args:
            run: where the run is.

        Returns:
            {"energy": value}; empty before the first measurement.
        """
        return {} if self.energy is None else {"energy": self.energy}

    def summarize(self, run: Any) -> dict[str, float]:
        """The mean energy at the end, and by how much of itself it has changed.

        Args:
            run: the finished run.

        Returns:
            {"energy": value, "energy_change": last / first - 1}, and "hidden_energy_change", the
            same without the class directions.
        """
        if self.energy is None or not self.first:
            return {}
        found = {"energy": self.energy, "energy_change": self.energy / self.first - 1}
        if self.hidden and self.hidden[0]:
            found["hidden_energy_change"] = self.hidden[-1] / self.hidden[0] - 1
        return found

    def state_dict(self) -> dict[str, Any]:
        """What a resumed run needs.

        Returns:
            The last and the first mean energy.
        """
        return {"energy": self.energy, "first": self.first, "hidden": self.hidden}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Go on from there.

        Args:
            state: from `state_dict`.
        """
        self.energy, self.first = state["energy"], state.get("first")
        self.hidden = list(state.get("hidden", []))
