"""The picture of the README, and what its commands print: `python docs/figures/make_letters.py`.

In the folder of `runs/letters`, the run of `hypersphere train`; it is made if it is not there.
docs/figures/letters.png: features of letters that no network was trained on, softmax beside
A-Softmax. results/first-run.json: the last lines of `train`, and what `points` prints, for
docs/generate.py.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np

from hypersphere.data.letters import UNSEEN, letters
from hypersphere.reports.style import color, draw_sphere, styled
from hypersphere.training import Config, load_net
from hypersphere.training.baseline import FOLDER
from hypersphere.training.build import make_loaders
from hypersphere.training.tasks.classification import extract_features

RUN = Path("runs/letters")
POINTS = "points 24 --dim 4 -s inf"
SHOWN = 4  # letters, evenly spaced in the alphabets: the means of four span three dimensions


def on_the_sphere(features: np.ndarray, labels: np.ndarray, chosen: list[int]) -> np.ndarray:
    """The three directions in which the means of the chosen letters differ."""
    means = np.stack([features[labels == c].mean(0) for c in chosen])
    _, _, axes = np.linalg.svd(means - means.mean(0), full_matrices=False)
    return unit(features @ axes[:3].T)


def unit(x: np.ndarray) -> np.ndarray:
    return x / np.linalg.norm(x, axis=-1, keepdims=True)


def keep_prints() -> None:
    """What `train` says at its end, and what `points` says."""
    environment = {**os.environ, "COLUMNS": "88"}

    def printed(*words: str) -> str:
        command = [sys.executable, "-m", "hypersphere", *words]
        return subprocess.check_output(command, env=environment, text=True)

    begun = (RUN / "run.json").exists()
    lines = printed("train", *(["--resume", str(RUN)] if begun else [])).splitlines()
    first = next(
        i for i, line in enumerate(lines) if line.split() == ["accuracy", "95", "%", "EER"]
    )
    last = next(i for i, line in enumerate(lines) if "everything is in" in line)
    train = "\n".join(lines[first:last]).rstrip()
    record = {"printed": {"train": train, "points": printed(*POINTS.split()).rstrip()}}
    path = Path(__file__).parents[2] / "results" / "first-run.json"
    path.write_text(json.dumps(record, indent=1) + "\n")


def draw(figure: Any, place: float, title: str, points: list[np.ndarray], names: str) -> None:
    axes = figure.add_axes((place, 0.34, 0.5, 0.61), projection="3d")
    draw_sphere(axes, zoom=1.5)
    for label, rows in enumerate(points):
        axes.scatter(*rows.T, color=color(label + 2), s=14, edgecolors="none")
        axes.text(*(1.22 * unit(rows.mean(0))), names[label], color=color(label + 2))
    axes.view_init(elev=22, azim=35)
    figure.text(place + 0.25, 0.955, title, ha="center", fontsize=9)


def draw_angles(figure: Any, place: float, angles: np.ndarray, same: np.ndarray) -> None:
    axes = figure.add_axes((place + 0.05, 0.1, 0.4, 0.22))
    for index, (name, part) in enumerate((("same letter", same), ("different letters", ~same))):
        axes.hist(angles[part], np.linspace(0, 140, 57), color=color(index), alpha=0.7)
        text = f"{name}\nmean {angles[part].mean():.0f}°"
        side = {"ha": "left", "x": 0} if index == 0 else {"ha": "right", "x": 1}
        axes.text(y=0.7, s=text, color=color(index), transform=axes.transAxes, fontsize=7, **side)
    axes.set(xlabel="angle between two pictures (degrees)", yticks=[], xlim=(0, 150))
    axes.spines["left"].set_visible(False)


def main() -> None:
    from matplotlib.figure import Figure

    config = Config.from_dict(json.loads((RUN / "run.json").read_text())["config"])
    loaders = make_loaders(config.data, config.seed)
    pairs = loaders.split.pairs
    alphabet = letters(UNSEEN)
    chosen = [i * len(alphabet) // SHOWN for i in range(SHOWN)]
    rows = json.loads((RUN / "baseline.json").read_text())["rows"]
    accuracy = {row["name"]: row["accuracy"] for row in rows}
    first = None
    with styled():
        figure = Figure(figsize=(7.2, 4.5))
        figure.set_layout_engine("none")
        for place, folder, title, name in (
            (0.0, RUN / FOLDER, "softmax", "plain network, softmax"),
            (0.5, RUN, "A-Softmax, m = 4", "this run"),
        ):
            found, labels = extract_features(load_net(folder), loaders.over(pairs.dataset), "cpu")
            features, numbers = unit(found.double().numpy()), labels.numpy()
            shown = on_the_sphere(features, numbers, chosen)
            points = [shown[numbers == c] for c in chosen]
            means = np.stack([unit(p.mean(0)) for p in points])
            # Turned so that the letters stand where they stand in the first panel.
            u, _, v = np.linalg.svd(means.T @ (means if first is None else first))
            first = means if first is None else first
            points = [p @ u @ v for p in points]
            text = f"{title}: {accuracy[name]:.1%} of unseen pairs told right"
            draw(figure, place, text, points, "".join(alphabet[c] for c in chosen))
            cosines = (features[pairs.first.numpy()] * features[pairs.second.numpy()]).sum(1)
            angles = np.degrees(np.arccos(cosines.clip(-1, 1)))
            draw_angles(figure, place, angles, pairs.same.numpy().astype(bool))
    figure.savefig(Path(__file__).with_name("letters.png"), dpi=160)


if __name__ == "__main__":
    keep_prints()
    main()
