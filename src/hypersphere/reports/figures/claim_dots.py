"""What was found about a claim: a dot per seed, the interval, the text's number beside."""

from __future__ import annotations

import textwrap
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from ..style import canvas, color, styled

if TYPE_CHECKING:
    from matplotlib.figure import Figure

VERDICT_COLORS = {"holds": 2, "open": 7, "reversed": 1, "unfinished": 4}


def claim_dots(record: Mapping[str, Any]) -> Figure:
    """The comparisons of a claim below one another.

    Args:
        record: one of `reports.claims.read_claims`.

    Returns:
        The matplotlib figure: per comparison a dot per seed, the mean with its 95 % interval in the
        color of the verdict, and a diamond for the difference of the text.
    """
    comparisons = record["comparisons"]
    with styled():
        figure, axes = canvas(height=0.55 + 0.42 * len(comparisons), width=5.6)
        for number, one in enumerate(comparisons):
            y, shade = -number, color(VERDICT_COLORS[one["verdict"]])
            values = list(one["values"].values())
            # Seeds one above the other, so that equal values stay visible.
            heights = [y + 0.24 * (i / max(1, len(values) - 1) - 0.5) for i in range(len(values))]
            axes.plot(values, heights, "o", color=shade, alpha=0.45, markersize=3)
            if one["low"] is not None:
                axes.plot([one["low"], one["high"]], [y, y], color=shade, linewidth=2.2)
            if one["mean"] is not None:
                axes.plot([one["mean"]], [y], "|", color=shade, markersize=11, markeredgewidth=2)
            if one["text"] is not None:
                axes.plot([one["text"]], [y], "D", color="black", markersize=4, fillstyle="none")
        axes.axvline(0, color="black", linewidth=0.8)
        metrics = [one["metric"].replace("_", " ") for one in comparisons]
        several = len(set(metrics)) > 1  # then each row names its own
        rows = [
            f"{one['label']}, {name}" if several else one["label"]
            for one, name in zip(comparisons, metrics, strict=True)
        ]
        labels = ["\n".join(textwrap.wrap(row, 32)) for row in rows]
        axes.set_yticks([-n for n in range(len(comparisons))], labels)
        axes.set_ylim(-len(comparisons) + 0.5, 0.5)
        axes.grid(axis="y", visible=False)
        sides = {one["claimed"] for one in comparisons}
        label = "difference" if several else f"difference in {metrics[0]}"
        label += f" (claimed: {sides.pop()})" if len(sides) == 1 else ""
        label += (
            "; diamond: the text's" if any(one["text"] is not None for one in comparisons) else ""
        )
        axes.set_xlabel(label)
    return figure
