"""What happened while it trained: curves with seeds as bands, energies, errors."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from ..style import canvas, color, legend_below, styled
from ._arrays import array

if TYPE_CHECKING:
    from matplotlib.figure import Figure


def training_curves(
    runs: Mapping[str, Sequence[tuple[Any, Any]]], ylabel: str, log: bool = False
) -> Figure:
    """A line per method over iterations; several seeds become a band (Figs. 3.3, 3.5, 4.4).

    The line is the mean, the band one standard deviation; seeds are interpolated onto the steps of
    the first.

    Args:
        runs: name -> one (steps, values) pair per seed.
        ylabel: title of the vertical axis.
        log: draw the vertical axis on a log scale.

    Returns:
        The matplotlib figure.
    """
    with styled():
        figure, axes = canvas()
        for index, (name, seeds) in enumerate(runs.items()):
            grid, mean, deviation = band(seeds, name)
            label = name if len(seeds) == 1 else f"{name} ({len(seeds)} seeds)"
            axes.plot(grid, mean, label=label, color=color(index))
            if len(seeds) > 1:
                low, high = mean - deviation, mean + deviation
                axes.fill_between(grid, low, high, color=color(index), alpha=0.2, linewidth=0)
        axes.set(xlabel="iteration", ylabel=ylabel, yscale="log" if log else "linear")
        legend_below(axes)
    return figure


def band(seeds: Sequence[tuple[Any, Any]], name: str) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Mean and standard deviation over seeds.

    Args:
        seeds: one (steps, values) pair per seed.
        name: what a message calls them.

    Returns:
        Steps, means and deviations, (n,) each.
    """
    if not seeds:
        raise ValueError(f"{name} has no seeds to draw")
    grid = array(seeds[0][0], f"{name} steps", 1)
    values = [np.interp(grid, array(s, "steps", 1), array(v, name, 1)) for s, v in seeds]
    return grid, np.mean(values, 0), np.std(values, 0)


def energy_curves(layers: Mapping[str, tuple[Any, Any]]) -> Figure:
    """Hyperspherical energy of each layer over iterations (Figs. 6.2, 7.3, E.6, F.2).

    Energies of layers of different sizes do not compare, so each is divided by where it began.

    Args:
        layers: name -> (steps, energies).

    Returns:
        The matplotlib figure.
    """
    with styled():
        figure, axes = canvas()
        for index, (name, (steps, energies)) in enumerate(layers.items()):
            values = array(energies, f"energy of {name}", 1)
            start = values[0] if values[0] != 0 else 1.0
            style = ("-", "--", ":")[index // 8 % 3]
            line = array(steps, "steps", 1)
            axes.plot(line, values / start, style, label=name, color=color(index))
        axes.set(xlabel="iteration", ylabel="energy (start: 1)")
        if len(layers) <= 12:
            legend_below(axes)
    return figure


def error_against(
    values: Any, errors: Mapping[str, Any], xlabel: str, ylabel: str = "error (%)"
) -> Figure:
    """Error against a setting: margin, width, depth, number of projections.

    Args:
        values: (n,) values of the setting.
        errors: name -> (n,) errors, or (n, seeds), drawn as mean and deviation.
        xlabel: what the setting is called.
        ylabel: title of the vertical axis.

    Returns:
        The matplotlib figure.
    """
    x = array(values, xlabel, 1)
    with styled():
        figure, axes = canvas()
        for index, (name, given) in enumerate(errors.items()):
            y = array(given, name, (1, 2))
            if len(y) != len(x):
                raise ValueError(f"{name} has {len(y)} errors for {len(x)} values of {xlabel}")
            mean, spread = (y, None) if y.ndim == 1 else (y.mean(1), y.std(1))
            axes.errorbar(x, mean, spread, marker="o", markersize=3, capsize=2, label=name,
                          color=color(index))  # fmt: skip
        axes.set(xlabel=xlabel, ylabel=ylabel)
        legend_below(axes)
    return figure
