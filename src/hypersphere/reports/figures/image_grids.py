"""Grids of small images: filters, generated samples, reconstructions."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import numpy as np

from ..style import COLUMN_WIDTH, canvas, grid_shape, styled
from ._arrays import array

if TYPE_CHECKING:
    from matplotlib.figure import Figure


def filters(weight: Any, most: int = 64) -> Figure:
    """First-layer filters as pictures, each with its own contrast (Figs. 6.3, C.4).

    Args:
        weight: (out, in, height, width); three input channels show as color, others as their mean.
        most: draw at most this many filters.

    Returns:
        The matplotlib figure.
    """
    w = array(weight, "weight", 4)[:most]
    low, high = w.min((1, 2, 3), keepdims=True), w.max((1, 2, 3), keepdims=True)
    scaled = (w - low) / np.where(high > low, high - low, 1)
    pictures = scaled if w.shape[1] == 3 else scaled.mean(1, keepdims=True)
    return image_grid(pictures)


def image_grid(images: Any, title: str = "") -> Figure:
    """Images in a near-square grid (Fig. D.3).

    Args:
        images: (n, H, W), (n, 1, H, W) or (n, 3, H, W), from 0 to 1.
        title: of the figure. Default: none.

    Returns:
        The matplotlib figure.
    """
    x = _pictures(images, "images")
    rows, columns = grid_shape(len(x))
    with styled():
        figure, axes = canvas(height=COLUMN_WIDTH * rows / columns + (0.2 if title else 0))
        axes.imshow(_tile(x, rows, columns), cmap="gray", vmin=0, vmax=1, interpolation="nearest")
        axes.set_axis_off()
        axes.set_title(title)
    return figure


def reconstructions(inputs: Any, outputs: Mapping[str, Any]) -> Figure:
    """Inputs above what the autoencoder makes of them, from angles or norms only (Fig. 1.1).

    Args:
        inputs: (n, H, W), (n, 1, H, W) or (n, 3, H, W), from 0 to 1.
        outputs: name -> images of the same shape.

    Returns:
        The matplotlib figure.
    """
    rows = {"input": _pictures(inputs, "inputs")}
    for name, given in outputs.items():
        rows[name] = _pictures(given, name)
        if len(rows[name]) != len(rows["input"]):
            raise ValueError(f"{name} has {len(rows[name])} images for {len(rows['input'])} inputs")
    with styled():
        figure, axes = canvas(len(rows), height=0.55, width=COLUMN_WIDTH * 1.5, squeeze=False)
        for axis, (name, x) in zip(axes[:, 0], rows.items(), strict=True):
            axis.imshow(_tile(x, 1, len(x)), cmap="gray", vmin=0, vmax=1, interpolation="nearest")
            axis.set_xticks([])
            axis.set_yticks([])
            axis.grid(False)
            axis.set_ylabel(name, rotation=0, ha="right", va="center")
    return figure


def _pictures(images: Any, name: str) -> np.ndarray:
    """(n, H, W, channels) in 0..1."""
    x = array(images, name, (3, 4))
    x = x[:, None] if x.ndim == 3 else x
    if x.shape[1] not in (1, 3):
        raise ValueError(f"{name} should have 1 or 3 channels, got shape {x.shape}")
    return np.clip(x, 0, 1).transpose(0, 2, 3, 1)


def _tile(x: np.ndarray, rows: int, columns: int) -> np.ndarray:
    height, width, channels = x.shape[1:]
    sheet = np.ones((rows * (height + 1) - 1, columns * (width + 1) - 1, channels))
    for index, picture in enumerate(x):
        row, column = divmod(index, columns)
        top, left = row * (height + 1), column * (width + 1)
        sheet[top : top + height, left : left + width] = picture
    return sheet[..., 0] if channels == 1 else sheet
