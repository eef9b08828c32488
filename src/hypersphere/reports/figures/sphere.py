"""Points on the sphere: configurations, and the way neurons travel to them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from ..style import COLUMN_WIDTH, canvas, color, draw_sphere, styled
from ._arrays import array
from .feature_clouds import to_unit_sphere

if TYPE_CHECKING:
    from matplotlib.figure import Figure


def point_configuration(points: Any, title: str = "") -> Figure:
    """Points of R^3 on the unit sphere, with the convex hull's edges; the far side is faint.

    Args:
        points: (n, 3).
        title: of the figure. Default: none.

    Returns:
        The matplotlib figure.
    """
    x = to_unit_sphere(_in_space(points, "points"))
    with styled():
        figure, axes = canvas(height=COLUMN_WIDTH, subplot_kw={"projection": "3d"})
        draw_sphere(axes)
        for a, b in _hull_edges(x):
            axes.plot(*np.stack([x[a], x[b]], 1), color=color(4), linewidth=0.7)
        axes.scatter(*x.T, s=16, color=color(1), depthshade=True)
        axes.set_title(title)
    return figure


def neuron_trajectories(history: Any, mirrored: bool = False, title: str = "") -> Figure:
    """Paths of neurons on the sphere, from crosses to dots (Figs. 5.1, D.1, D.2).

    Args:
        history: (steps, n, 3).
        mirrored: draw the virtual negatives of half-space MHE too.
        title: of the figure. Default: none.

    Returns:
        The matplotlib figure.
    """
    x = array(history, "history", 3)
    if x.shape[2] != 3:
        raise ValueError(
            f"the sphere that can be drawn is that of R^3: expected a history (steps, n, 3), got "
            f"{x.shape}; take three of the directions"
        )
    steps, n, _ = x.shape
    x = to_unit_sphere(x.reshape(-1, 3)).reshape(steps, n, 3)
    with styled():
        figure, axes = canvas(height=COLUMN_WIDTH, subplot_kw={"projection": "3d"})
        draw_sphere(axes)
        for neuron in range(n):
            axes.plot(*x[:, neuron].T, color=color(neuron), linewidth=0.8)
        axes.scatter(*x[0].T, marker="x", s=14, color="0.4", label="start")
        axes.scatter(*x[-1].T, s=20, color=[color(i) for i in range(n)], label="end")
        if mirrored:
            axes.scatter(*-x[-1].T, s=14, facecolors="none", edgecolors="0.4", label="mirror image")
        axes.set_title(title)
        axes.legend(loc="upper center", bbox_to_anchor=(0.5, 0.02), ncols=3)
    return figure


def _in_space(points: Any, name: str) -> np.ndarray:
    x = array(points, name, 2)
    if x.shape[1] != 3:
        raise ValueError(
            f"the sphere that can be drawn is that of R^3: expected {name} (n, 3), got {x.shape}; "
            f"take three of their directions, or draw the angles (pair_angle_histogram)"
        )
    return x


def _hull_edges(x: np.ndarray) -> set[tuple[int, int]]:
    """Edges of the convex hull, none where there is no hull (few points, or all in a plane)."""
    if len(x) < 4 or np.linalg.matrix_rank(x[1:] - x[0], tol=1e-9) < 3:
        return set()
    try:
        from scipy.spatial import ConvexHull
    except ModuleNotFoundError:
        return set()
    triangles = ConvexHull(x).simplices
    return {(min(t[i], t[i - 1]), max(t[i], t[i - 1])) for t in triangles for i in range(3)}
