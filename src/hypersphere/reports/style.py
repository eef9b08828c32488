"""One look for every figure: colors that color-blind readers can tell apart, column width."""

from __future__ import annotations

import math
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from .._optional import require

if TYPE_CHECKING:
    from matplotlib.figure import Figure

__all__ = ["COLORS", "MARKERS", "canvas", "color", "draw_sphere", "legend_below", "save", "styled"]

# Okabe and Ito's palette without yellow, which vanishes on white, and four colors between them.
COLORS: tuple[str, ...] = (
    *("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#56B4E9", "#E69F00", "#000000", "#7F7F7F"),
    *("#5D3A9B", "#8B4513", "#A3B600", "#00A6A6"),
)
# Beyond twelve classes color alone does not carry: the marker changes with every round.
MARKERS = ("o", "^", "s", "D", "v", "P")
BELOW_AXIS = 30  # points from an axis to the legend below it
SPHERE = "#c4cad1"  # its circles of latitude and longitude
COLUMN_WIDTH = 3.4  # inches: readable in a two-column page

_SETTINGS = {
    "font.size": 8,
    "axes.titlesize": 8,
    "axes.labelsize": 8,
    "legend.fontsize": 7,
    "legend.frameon": False,
    "legend.loc": "upper right",  # never "best": it looks at every point, slow for much data
    "xtick.labelsize": 7,
    "ytick.labelsize": 7,
    "lines.linewidth": 1.3,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.grid": True,
    "grid.alpha": 0.25,
    "grid.linewidth": 0.5,
    "figure.constrained_layout.use": True,
    "savefig.dpi": 200,
    "svg.hashsalt": "hypersphere",  # the same figure gives the same file
}


def color(index: int) -> str:
    """A color of the palette.

    Args:
        index: any whole number; the palette repeats.

    Returns:
        The color as #rrggbb.
    """
    return COLORS[index % len(COLORS)]


@contextmanager
def styled() -> Iterator[Any]:
    """The package's matplotlib settings, for the figures made inside and no others."""
    matplotlib = require("matplotlib", extra="report")
    cycle = matplotlib.rcsetup.cycler(color=COLORS)
    with matplotlib.rc_context({**_SETTINGS, "axes.prop_cycle": cycle}):
        yield matplotlib


def legend_below(axes: Any, columns: int | None = None) -> None:
    """A legend under the axes, where no data can be.

    Args:
        axes: with labeled curves or points.
        columns: of the legend. Default: as many as fit names of this length.
    """
    labels = axes.get_legend_handles_labels()[1]
    if not labels:
        return
    fitting = max(1, min(len(labels), int(44 / (max(map(len, labels)) + 5))))
    from matplotlib.transforms import ScaledTranslation

    # Below ticks and label, whose height is that of their letters, however tall the axes are.
    down = ScaledTranslation(0, -BELOW_AXIS / 72, axes.figure.dpi_scale_trans)
    axes.legend(
        loc="upper center",
        bbox_to_anchor=(0.5, 0),
        bbox_transform=axes.transAxes + down,
        borderaxespad=0,
        ncols=columns or fitting,
        frameon=False,
    )


def draw_sphere(axes: Any, zoom: float = 1.65) -> None:
    """Draw a faint unit sphere, without box or ticks.

    Args:
        axes: three-dimensional axes.
        zoom: the size of the sphere in the axes. Default: it fills them.
    """
    turn = [math.radians(degrees) for degrees in range(0, 365, 5)]
    for latitude in (math.radians(degrees) for degrees in range(-60, 61, 30)):
        radius = math.cos(latitude)
        ring = [radius * math.cos(t) for t in turn], [radius * math.sin(t) for t in turn]
        axes.plot(*ring, [math.sin(latitude)] * len(turn), color=SPHERE, linewidth=0.4)
    for longitude in (math.radians(degrees) for degrees in range(0, 180, 30)):
        x = [math.cos(t) * math.cos(longitude) for t in turn]
        y = [math.cos(t) * math.sin(longitude) for t in turn]
        axes.plot(x, y, [math.sin(t) for t in turn], color=SPHERE, linewidth=0.4)
    axes.set_box_aspect((1, 1, 1), zoom=zoom)
    axes.set_axis_off()


def canvas(
    rows: int = 1, columns: int = 1, height: float = 2.5, width: float | None = None, **options: Any
) -> tuple[Figure, Any]:
    """A figure and its axes; no window, no global state.

    Args:
        rows: of axes.
        columns: of axes.
        height: of a row, in inches.
        width: of the figure, in inches. Default: one column-width per column, at most two.
        options: further arguments of `Figure.subplots`.

    Returns:
        The figure and its axes.
    """
    require("matplotlib", extra="report")
    from matplotlib.figure import Figure

    size = (width or COLUMN_WIDTH * min(columns, 2), height * rows)
    figure = Figure(figsize=size, layout="constrained")
    return figure, figure.subplots(rows, columns, **options)


def save(figure: Figure, path: str | Path) -> list[Path]:
    """Write a figure.

    Args:
        figure: a matplotlib figure.
        path: the file; a path without ending gives both .png and .svg.

    Returns:
        The files that were written.
    """
    target = Path(path)
    target.parent.mkdir(parents=True, exist_ok=True)
    names = [target] if target.suffix else [target.with_suffix(".png"), target.with_suffix(".svg")]
    for name in names:
        metadata = {"Date": None} if name.suffix == ".svg" else None
        with styled():
            figure.savefig(name, metadata=metadata)
    return names


def grid_shape(n: int) -> tuple[int, int]:
    """A near-square grid.

    Args:
        n: number of pictures.

    Returns:
        Rows and columns.
    """
    columns = max(1, math.ceil(math.sqrt(n)))
    return math.ceil(n / columns), columns
