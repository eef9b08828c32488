"""How well it recognizes: ROC, CMC, and how hard it is to fool."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import numpy as np

from ..style import canvas, color, legend_below, styled
from ._arrays import array

if TYPE_CHECKING:
    from matplotlib.figure import Figure


def roc_curves(curves: Mapping[str, Any], smallest: float = 1e-4) -> Figure:
    """True accept rate over false accept rate, the latter on a log scale (Figs. 2.12, D.6).

    Args:
        curves: name -> (false accept rates, true accept rates), or the result of
            `evaluation.verification`.
        smallest: the false accept rate at which the axis begins.

    Returns:
        The matplotlib figure.
    """
    with styled():
        figure, axes = canvas()
        for index, (name, curve) in enumerate(curves.items()):
            far, tar = (curve.roc.far, curve.roc.tar) if hasattr(curve, "roc") else curve
            x, y = array(far, "false accept rate", 1), array(tar, "true accept rate", 1)
            style = {"color": color(index), "linestyle": ("-", "--", ":", "-.")[index // 2 % 4]}
            axes.plot(np.clip(x, smallest, 1), y, label=name, drawstyle="steps-post", **style)
        axes.set(xscale="log", xlim=(smallest, 1), ylim=(0, 1.02))
        axes.set(xlabel="false accept rate", ylabel="true accept rate")
        legend_below(axes)
    return figure


def cmc_curves(curves: Mapping[str, Any]) -> Figure:
    """Identification rate within the first k ranks, from k = 1 on (Figs. 2.12, D.5).

    Args:
        curves: name -> rates at rank 1, 2, ..., or the result of `evaluation.identification`, whose
            curve with the most distractors is drawn.

    Returns:
        The matplotlib figure.
    """
    with styled():
        figure, axes = canvas()
        for index, (name, rates) in enumerate(curves.items()):
            y = array(rates.cmc[-1] if hasattr(rates, "cmc") else rates, name, 1)
            axes.plot(np.arange(1, len(y) + 1), y, marker="o", markersize=2.5, label=name,
                      color=color(index))  # fmt: skip
        axes.set(xscale="log", xlabel="rank", ylabel="identification rate", ylim=(0, 1.02))
        legend_below(axes)
    return figure


def adversarial_strength(strengths: Mapping[str, Any]) -> Figure:
    """Smallest perturbation that fools the network, images sorted by it (Fig. C.1).

    Args:
        strengths: name -> (n,) norms of the perturbations.

    Returns:
        The matplotlib figure.
    """
    with styled():
        figure, axes = canvas()
        for index, (name, values) in enumerate(strengths.items()):
            y = np.sort(array(values, name, 1))
            axes.plot(np.linspace(0, 100, len(y)), y, label=name, color=color(index))
        axes.set(xlabel="images, sorted (%)", ylabel="perturbation to fool (norm)")
        legend_below(axes)
    return figure
