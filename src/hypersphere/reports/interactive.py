"""The interactive plots of a page, as the plain dictionaries that plotly.js draws."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from .run_data import RunData
from .style import COLORS, color

__all__ = ["Plot", "curve_plots", "energy_plot", "feature_plot", "plot_layout"]
__all__ += ["shown_classes", "thin"]

Plot = dict[str, Any]
MOST_POINTS = 3000  # of a cloud: more would not be seen, and would not fit
MOST_STEPS = 1500  # of a curve
MOST_CLASSES = 24  # of a cloud: more colors cannot be told apart
_FIRST = ("loss", "accuracy", "error")  # what a reader looks for comes first
_DASHES = ("solid", "dash", "dot", "dashdot")


def curve_plots(runs: Sequence[RunData]) -> dict[str, Plot]:
    """One plot per metric: loss, accuracy, ...; train and test, and all runs, in one picture.

    Args:
        runs: the runs to compare.

    Returns:
        metric -> plot.
    """
    plots: dict[str, Plot] = {}
    found = dict.fromkeys(k for run in runs for s in ("train", "test") for k in run.keys(s))
    metrics = sorted(found, key=lambda k: _FIRST.index(k) if k in _FIRST else len(_FIRST))
    for metric in metrics:
        traces = []
        for index, run in enumerate(runs):
            for split in ("test", "train"):
                steps, values = thin(*run.series(split, metric))
                if not steps:
                    continue
                name = split if len(runs) == 1 else f"{run.name}: {split}"
                tint = color(index) if len(runs) > 1 else color(0 if split == "test" else 1)
                dash = "solid" if split == "test" else "dot"
                mode = "lines" if len(steps) > 1 else "markers"
                traces.append(
                    {"type": "scatter", "mode": mode, "name": name, "x": steps, "y": values,
                     "line": {"color": tint, "dash": dash, "width": 2}, "marker": {"color": tint}}
                )  # fmt: skip
        if traces:
            plots[metric] = {"data": traces, "layout": plot_layout("iteration", metric)}
            ys: list[Any] = [v for trace in traces for v in trace["y"]]  # type: ignore[attr-defined]
            shown = [float(v) for v in ys if v is not None]
            if shown and max(shown) - min(shown) < 1e-9:  # plotly would show -1 to 1
                room = max(0.1 * abs(shown[0]), 0.01)
                low = shown[0] - room if shown[0] - room > 0 or shown[0] < 0 else 0
                plots[metric]["layout"]["yaxis"]["range"] = [low, shown[0] + room]
    return plots


def energy_plot(runs: Sequence[RunData]) -> Plot | None:
    """Energy of each layer over the run, each divided by where it began (Figs. 6.2, 7.3, F.2).

    Args:
        runs: the runs to compare.

    Returns:
        The plot; None where no run has energies.
    """
    traces = []
    for run_index, run in enumerate(runs):
        for index, (layer, (steps, energies)) in enumerate(run.layers("energy").items()):
            start = energies[0] if energies[0] else 1.0
            x, y = thin(steps, [e / start for e in energies])
            traces.append(
                {"type": "scatter", "mode": "lines+markers", "x": x, "y": y,
                 "name": layer if len(runs) == 1 else f"{run.name}: {layer}",
                 "line": {"color": color(index), "dash": _DASHES[run_index % 4], "width": 2},
                 "marker": {"size": 4}, "customdata": thin(steps, energies)[1],
                 "hovertemplate": "step %{x}<br>energy %{customdata:.4g}<br>%{y:.3f} of the start"}
            )  # fmt: skip
    if not traces:
        return None
    return {"data": traces, "layout": plot_layout("iteration", "energy (start: 1)")}


def feature_plot(run: RunData) -> tuple[Plot, list[str]] | None:
    """Features by class: in the plane for 2-D runs, else on the unit sphere.

    Args:
        run: the run.

    Returns:
        The plot and notes in words; None where the run has no features.
    """
    if not run.features:
        return None
    features = np.asarray(run.features["features"], dtype=float)
    labels = np.asarray(run.features["labels"]).astype(int)
    notes = []
    keep = np.arange(len(features))
    if len(features) > MOST_POINTS:
        keep = np.linspace(0, len(features) - 1, MOST_POINTS).astype(int)
        notes.append(f"{MOST_POINTS:,} of {len(features):,} points are shown.")
    if features.shape[1] == 1:
        features = np.concatenate([features, np.zeros_like(features)], 1)
    if features.shape[1] > 3:
        features = _principal(features)
    directions = run.features.get("directions")
    wide = directions.shape[1] if directions is not None and directions.ndim == 2 else 3
    if features.shape[1] == 3 and wide > 3:
        notes.append(
            f"The features have {wide} dimensions; shown are their 3 principal ones, so the "
            f"angles in the picture are not those of the features. To see the features themselves, "
            f"train with --model.features 3."
        )
    classes = [str(c) for c in run.features.get("classes", range(labels.max() + 1))]
    flat = features.shape[1] == 2
    if not flat:
        features = features / np.maximum(np.linalg.norm(features, axis=1, keepdims=True), 1e-12)
    traces = [] if flat else _wire_sphere()
    present = np.unique(labels[keep])
    if len(some := shown_classes(present)) < len(present):
        notes.append(f"{len(some)} of {len(present)} classes are shown.")
        present = some
    for place, label in enumerate(present):
        rows = keep[labels[keep] == label]
        points = np.round(features[rows], 4)
        name = classes[label] if 0 <= label < len(classes) else str(label)
        trace: Plot = {
            "mode": "markers", "name": name, "customdata": rows.tolist(),
            "x": points[:, 0].tolist(), "y": points[:, 1].tolist(),
            "marker": {"size": 4 if flat else 3, "opacity": 0.8, "color": color(place),
                       "symbol": ("circle", "diamond", "square")[place // len(COLORS) % 3]},
            "hovertemplate": f"class {name}, point %{{customdata}}<extra></extra>",
        }  # fmt: skip
        if flat:
            trace["type"] = "scattergl" if len(keep) > 2000 else "scatter"
        else:
            trace |= {"type": "scatter3d", "z": points[:, 2].tolist()}
        traces.append(trace)
    layout = plot_layout("feature 1", "feature 2")
    layout["legend"] = {"itemsizing": "constant", "orientation": "h", "y": -0.05}
    if flat:
        layout["yaxis"]["scaleanchor"] = "x"
    else:
        axis = {"visible": False, "range": [-1.05, 1.05]}
        layout["scene"] = {"xaxis": axis, "yaxis": axis, "zaxis": axis, "aspectmode": "cube",
                           "camera": {"eye": {"x": 0.95, "y": 0.95, "z": 0.55}}}  # fmt: skip
        layout["margin"] = {"l": 0, "r": 0, "t": 10, "b": 10}
    layout["height"] = 560
    return {"data": traces, "layout": layout}, notes


def shown_classes(present: np.ndarray) -> np.ndarray:
    """The classes of a cloud: all, or as many as there are colors if they are too many.

    Args:
        present: (C,) class numbers.

    Returns:
        Class numbers, evenly spread over those that are there.
    """
    if len(present) <= MOST_CLASSES:
        return present
    return present[np.linspace(0, len(present) - 1, len(COLORS)).astype(int)]


def thin(steps: Sequence[float], values: Sequence[float]) -> tuple[list[float], list[float]]:
    """At most MOST_STEPS points, first and last kept; NaN becomes a gap.

    Args:
        steps: (n,).
        values: (n,).

    Returns:
        Steps and values.
    """
    index: Any = range(len(steps))
    if len(steps) > MOST_STEPS:
        index = np.linspace(0, len(steps) - 1, MOST_STEPS).astype(int).tolist()
    kept = [values[i] if np.isfinite(values[i]) else None for i in index]
    return [steps[i] for i in index], kept  # type: ignore[return-value]


def plot_layout(xlabel: str, ylabel: str) -> Plot:
    """The look of a plot; the page changes its colors in the dark.

    Args:
        xlabel: text below the horizontal axis.
        ylabel: text beside the vertical one.

    Returns:
        A layout of plotly. `uirevision` keeps zoom and camera when the data are replaced.
    """
    axis = {"gridcolor": "#e3e6ea", "zerolinecolor": "#c8ccd2", "automargin": True}
    return {
        "xaxis": {**axis, "title": {"text": xlabel}},
        "yaxis": {**axis, "title": {"text": ylabel}},
        "margin": {"l": 60, "r": 10, "t": 10, "b": 45},
        "height": 340,
        "paper_bgcolor": "rgba(0,0,0,0)",
        "plot_bgcolor": "rgba(0,0,0,0)",
        "font": {"color": "#1f2933", "family": "system-ui, sans-serif"},
        "legend": {"orientation": "h", "y": -0.25},
        "hovermode": "closest",
        "uirevision": "kept",
    }


def _principal(x: np.ndarray) -> np.ndarray:
    centered = x - x.mean(0)
    _, vectors = np.linalg.eigh(centered.T @ centered)
    return centered @ vectors[:, :-4:-1]


def _wire_sphere() -> list[Plot]:
    """Circles of latitude and longitude as one line, with gaps."""
    turn = np.linspace(0, 2 * np.pi, 49)
    pieces = []
    for latitude in np.linspace(-np.pi / 3, np.pi / 3, 5):
        radius = np.cos(latitude)
        height = np.full_like(turn, np.sin(latitude))
        pieces.append(np.stack([radius * np.cos(turn), radius * np.sin(turn), height], 1))
    for longitude in np.linspace(0, np.pi, 6, endpoint=False):
        radius = np.cos(turn)
        x, y = radius * np.cos(longitude), radius * np.sin(longitude)
        pieces.append(np.stack([x, y, np.sin(turn)], 1))
    xyz: list[list[float | None]] = [[], [], []]
    for piece in np.round(pieces, 3):
        for axis in range(3):
            xyz[axis] += [*piece[:, axis].tolist(), None]
    return [
        {"type": "scatter3d", "mode": "lines", "x": xyz[0], "y": xyz[1], "z": xyz[2],
         "line": {"color": "#b6bcc4", "width": 1}, "hoverinfo": "skip", "showlegend": False}
    ]  # fmt: skip
