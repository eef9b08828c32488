"""Learned features: in the plane, on the sphere, and the angles between them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from ..style import COLUMN_WIDTH, MARKERS, canvas, color, draw_sphere, legend_below, styled
from ._arrays import array, class_names, class_numbers

if TYPE_CHECKING:
    from matplotlib.figure import Figure


def features_2d(features: Any, targets: Any, weights: Any = None, classes: Any = None) -> Figure:
    """2-D features by class, with the classifier directions (Figs. 1.3, 2.2, A.5, C.2, D.4).

    Args:
        features: (n, 2).
        targets: (n,) class numbers.
        weights: (C, 2) rows of the head, drawn as rays. Default: none.
        classes: the name of each class. Default: its number.

    Returns:
        The matplotlib figure.
    """
    x = _of_width(features, 2)
    y = class_numbers(targets, len(x))
    known = class_names(classes, int(y.max()) + 1)
    with styled():
        figure, axes = canvas(height=COLUMN_WIDTH * 0.92)
        for label in np.unique(y):
            style = {"color": color(label), "marker": MARKERS[label // 8 % len(MARKERS)]}
            axes.scatter(
                *x[y == label].T, s=3, linewidths=0, alpha=0.6, label=known[label], **style
            )
        if weights is not None:
            reach = np.abs(x).max()
            for label, w in enumerate(array(weights, "weights", 2)):
                end = w / max(np.linalg.norm(w), 1e-12) * reach
                axes.plot([0, end[0]], [0, end[1]], color=color(label), linewidth=1.0)
        axes.set(xlabel="feature 1", ylabel="feature 2", aspect="equal")
        _legend(axes, len(np.unique(y)))
    return figure


def features_3d(features: Any, targets: Any, weights: Any = None, classes: Any = None) -> Figure:
    """3-D features projected onto the unit sphere, by class (Fig. 2.10).

    Args:
        features: (n, 3).
        targets: (n,) class numbers.
        weights: (C, 3) rows of the head, drawn as rays. Default: none.
        classes: the name of each class. Default: its number.

    Returns:
        The matplotlib figure.
    """
    x = to_unit_sphere(_of_width(features, 3))
    y = class_numbers(targets, len(x))
    known = class_names(classes, int(y.max()) + 1)
    with styled():
        figure, axes = canvas(height=COLUMN_WIDTH, subplot_kw={"projection": "3d"})
        draw_sphere(axes)
        dot = 3 if len(x) > 1000 else 9
        for label in np.unique(y):
            style = {"color": color(label), "marker": MARKERS[label // 8 % len(MARKERS)]}
            axes.scatter(
                *x[y == label].T, s=dot, linewidths=0, alpha=0.7, label=known[label], **style
            )
        if weights is not None:
            for label, w in enumerate(to_unit_sphere(_of_width(weights, 3))):
                axes.plot(*np.stack([np.zeros(3), 1.15 * w], 1), color=color(label), linewidth=1.2)
        _legend(axes, len(np.unique(y)))
    return figure


def pair_angle_histogram(positive: Any, negative: Any) -> Figure:
    """Angles of positive and negative pairs, as densities (Fig. 2.10, second row).

    Args:
        positive: (n,) angles of pairs of one class, in radians.
        negative: (m,) angles of pairs of two classes, in radians.

    Returns:
        The matplotlib figure.
    """
    with styled():
        figure, axes = canvas()
        edges = np.linspace(0, np.pi, 91)
        for name, values, index in (("same class", positive, 0), ("different class", negative, 1)):
            angles = array(values, f"{name} angles", 1)
            label = f"{name} (n = {len(angles):,}, mean {angles.mean():.2f})"
            axes.hist(angles, edges, density=True, alpha=0.6, color=color(index), label=label)
        axes.set(xlabel="angle (rad)", ylabel="density", xlim=(0, np.pi))
        legend_below(axes)
    return figure


def value_histogram(values: Any, name: str, bins: int = 40) -> Figure:
    """Histogram of a learned quantity, such as k of the sigmoid (Fig. 3.4) or the radius.

    Args:
        values: an array of one to four dimensions.
        name: what the quantity is called.
        bins: of the histogram.

    Returns:
        The matplotlib figure.
    """
    data = array(values, name, (1, 2, 3, 4)).ravel()
    with styled():
        figure, axes = canvas()
        axes.hist(data, bins, color=color(0))
        axes.axvline(data.mean(), color="black", linewidth=1, label=f"mean {data.mean():.3f}")
        axes.set(xlabel=name, ylabel="count")
        legend_below(axes)
    return figure


def class_cosine_matrix(matrix: Any, classes: Any = None) -> Figure:
    """Cosine between class means (Fig. 2.5): a bright off-diagonal cell is a confusable pair.

    Args:
        matrix: (C, C) cosines.
        classes: the name of each class. Default: its number.

    Returns:
        The matplotlib figure.
    """
    cosines = array(matrix, "matrix", 2)
    if cosines.shape[0] != cosines.shape[1]:
        raise ValueError(f"expected a square (C, C) matrix, got {cosines.shape}")
    known = class_names(classes, len(cosines))
    with styled():
        figure, axes = canvas(height=COLUMN_WIDTH * 0.85)
        image = axes.imshow(cosines, cmap="cividis", vmin=-1, vmax=1)
        figure.colorbar(image, ax=axes, label="cosine", shrink=0.85)
        axes.grid(False)
        if len(cosines) <= 20:
            ticks = range(len(cosines))
            axes.set_xticks(ticks, known, rotation=90)
            axes.set_yticks(ticks, known)
        axes.set(xlabel="class", ylabel="class")
    return figure


def _of_width(values: Any, width: int) -> np.ndarray:
    x = array(values, "features", 2)
    if x.shape[1] != width:
        raise ValueError(
            f"features_{width}d draws features of {width} dimensions, (n, {width}); got {x.shape}: "
            f"train with --model.features {width}, or give their {width} principal directions"
        )
    return x


def to_unit_sphere(x: np.ndarray) -> np.ndarray:
    """Rows of length one; zero rows stay.

    Args:
        x: (n, d).

    Returns:
        (n, d).
    """
    norm = np.linalg.norm(x, axis=1, keepdims=True)
    return x / np.where(norm > 0, norm, 1)


def _legend(axes: Any, count: int) -> None:
    if count <= 24:
        columns = 1 if count <= 12 else 2
        axes.legend(loc="center left", bbox_to_anchor=(1.0, 0.5), markerscale=3, ncols=columns)
