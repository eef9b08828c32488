"""The functions that make an operator or a head: g, h and psi (Figs. 2.3, 3.2, 4.3)."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, TypeAlias

import numpy as np
import torch

from ...functional import angular, magnitude
from ..style import canvas, color, legend_below, styled
from ._arrays import array

if TYPE_CHECKING:
    from matplotlib.figure import Figure

# Registered names, or what each label of the legend stands for.
Functions: TypeAlias = Sequence[str] | Mapping[str, str | Callable[[torch.Tensor], torch.Tensor]]


def angular_curves(functions: Functions, ylabel: str = "g(θ)") -> Figure:
    """g over theta, as Figs. 3.2 and 4.3 draw it.

    Args:
        functions: registered names, or a mapping from labels to names or callables of cos(theta).
        ylabel: label of the vertical axis.

    Returns:
        The figure.
    """
    theta = torch.linspace(0, torch.pi, 361, dtype=torch.float64)
    with styled():
        figure, axes = canvas()
        for index, (name, function) in enumerate(_labelled(functions).items()):
            values = array(angular(theta.cos(), function), name, 1)
            axes.plot(theta, values, label=name, color=color(index))
        axes.set(xlabel="θ (rad)", ylabel=ylabel, xlim=(0, np.pi))
        axes.set_xticks(np.linspace(0, np.pi, 5), ["0", "π/4", "π/2", "3π/4", "π"])
        legend_below(axes)
    return figure


def margin_curves(functions: Mapping[str, Callable[[torch.Tensor], torch.Tensor]]) -> Figure:
    """psi over theta, with the rule's bound cos(theta) (Fig. 2.3).

    Args:
        functions: name -> a function of cos(theta).

    Returns:
        The matplotlib figure.
    """
    figure = angular_curves({**functions, "cos θ": lambda c: c}, ylabel="ψ(θ)")
    line = figure.axes[0].lines[-1]
    line.set(color="black", linestyle="--", linewidth=1.0)
    with styled():
        legend_below(figure.axes[0])
    return figure


def magnitude_curves(functions: Functions, largest: float = 3.0) -> Figure:
    """h over the norm of the patch (Fig. 4.3).

    Args:
        functions: registered names, or a mapping from labels to names or callables of |x|.
        largest: where the horizontal axis ends.

    Returns:
        The figure.
    """
    norm = torch.linspace(0, largest, 361, dtype=torch.float64)
    with styled():
        figure, axes = canvas()
        for index, (name, function) in enumerate(_labelled(functions).items()):
            style = ("-", "--", ":", "-.")[index % 4]
            values = array(magnitude(norm, function), name, 1)
            axes.plot(norm, values, style, label=name, color=color(index))
        axes.set(xlabel="patch norm |x|", ylabel="h(|x|)", xlim=(0, largest))
        legend_below(axes)
    return figure


def _labelled(
    functions: Functions,
) -> Mapping[str, str | Callable[[torch.Tensor], torch.Tensor]]:
    return functions if isinstance(functions, Mapping) else {name: name for name in functions}
