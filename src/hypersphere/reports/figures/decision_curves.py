"""Whether a decision can be trusted: reliability, quality, and the size of the gallery."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import numpy as np

from ..style import canvas, color, styled
from ._arrays import array

if TYPE_CHECKING:
    from matplotlib.figure import Figure


def reliability_diagram(results: Mapping[str, Any] | Any) -> Figure:
    """Share of pairs of one person against the probability that was given.

    Args:
        results: a result of `evaluation.reliability`, or several: name -> result.

    Returns:
        The matplotlib figure; the diagonal is a perfect calibration.
    """
    results = results if isinstance(results, Mapping) else {"probabilities": results}
    with styled():
        figure, axes = canvas()
        axes.plot([0, 1], [0, 1], color="0.6", linewidth=0.8, linestyle="--")
        for index, (name, result) in enumerate(results.items()):
            mean, share, count = np.array(result.bins, float).T
            label = f"{name} (error {100 * result.error:.1f} %)"
            axes.plot(mean, share, color=color(index), label=label)
            sizes = 6 + 40 * np.sqrt(count / count.max())
            axes.scatter(mean, share, s=sizes, color=color(index))
        axes.set(xlim=(0, 1), ylim=(0, 1))
        axes.set(xlabel="probability given", ylabel="share of one person")
        axes.legend(loc="upper left")
    return figure


def quality_against_norm(result: Any) -> Figure:
    """Agreement with the own person against the norm of the feature, and its mean per tenth.

    Args:
        result: of `evaluation.quality_by_norm`.

    Returns:
        The matplotlib figure.
    """
    norms, agreement = array(result.norms, "norms", 1), array(result.agreement, "agreement", 1)
    with styled():
        figure, axes = canvas()
        axes.scatter(norms, agreement, s=4, alpha=0.3, color=color(0), linewidths=0)
        parts = np.array_split(np.argsort(norms, kind="stable"), min(10, len(norms)))
        means = [(norms[part].mean(), agreement[part].mean()) for part in parts]
        axes.plot(*zip(*means, strict=True), color=color(1), marker="o", markersize=3)
        axes.set(xlabel="norm of the feature", ylabel="cosine with the own person")
    return figure


def error_by_size(results: Mapping[str, Any]) -> Figure:
    """Share of known people found against the number of people in the gallery.

    Args:
        results: name -> result of `evaluation.error_by_gallery_size`.

    Returns:
        The matplotlib figure; dashed without rejecting anybody.
    """
    with styled():
        figure, axes = canvas()
        for index, (name, result) in enumerate(results.items()):
            people = [point.people for point in result.points]
            found, rank = ([getattr(p, key) for p in result.points] for key in ("found", "rank_1"))
            label = f"{name}, FAR {result.far:g}"
            axes.plot(people, found, color=color(index), marker="o", markersize=3, label=label)
            axes.plot(people, rank, color=color(index), linestyle="--")
        axes.set(xscale="log", ylim=(0, 1.02), xlabel="people in the gallery")
        axes.set(ylabel="known people found")
        axes.legend(loc="lower left")
    return figure
