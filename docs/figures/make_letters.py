"""Draws docs/figures/letters.png from a run: `python docs/figures/make_letters.py runs/letters`.

Features of letters that no network was trained on, softmax beside A-Softmax: the run of
`hypersphere train` and its baseline. A color is a letter, a dot its picture in one of twelve faces.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

import numpy as np
import torch

from hypersphere.data.letters import UNSEEN, letters
from hypersphere.reports.style import color, styled
from hypersphere.training import Config, load_net
from hypersphere.training.baseline import FOLDER
from hypersphere.training.build import make_loaders
from hypersphere.training.tasks.classification import extract_features

SHOWN = "ԱԳԿՋաթდ"  # seven letters of both unseen alphabets


def directions(run: Path) -> tuple[np.ndarray, np.ndarray]:
    """Unit features of the letters shown, in their three principal directions, and labels."""
    config = Config.from_dict(json.loads((run / "run.json").read_text())["config"])
    loaders = make_loaders(config.data, config.seed)
    features, labels = extract_features(
        load_net(run), loaders.over(loaders.split.pairs.dataset), "cpu"
    )
    names = letters(UNSEEN)
    keep = torch.tensor([names[int(label)] in SHOWN for label in labels])
    x = torch.nn.functional.normalize(features[keep].double(), dim=1)
    y = torch.tensor([SHOWN.index(names[int(label)]) for label in labels[keep]])
    means = torch.stack([x[y == c].mean(0) for c in range(len(SHOWN))])
    # The three directions in which the letters differ most.
    _, _, axes = torch.linalg.svd(means - means.mean(0), full_matrices=False)
    shown = torch.nn.functional.normalize(x @ axes[:3].T, dim=1)
    return shown.numpy(), y.numpy()


def main(arguments: list[str]) -> None:
    run = Path(arguments[0] if arguments else "runs/letters")
    record = json.loads((run / "baseline.json").read_text())["rows"]
    accuracy = {row["name"]: row["accuracy"] for row in record}
    panels = [
        (run / FOLDER, "softmax", accuracy["plain network, softmax"]),
        (run, "A-Softmax, m = 4", accuracy["this run"]),
    ]
    with styled() as matplotlib:
        from matplotlib.figure import Figure

        figure = Figure(figsize=(7.2, 3.7))
        for index, (folder, title, share) in enumerate(panels):
            points, labels = directions(folder)
            axes = figure.add_subplot(1, 2, index + 1, projection="3d")
            _sphere(axes)
            for label in range(len(SHOWN)):
                rows = points[labels == label]
                axes.scatter(*rows.T, color=color(label), s=14, depthshade=True, edgecolors="none")
                mean = rows.mean(0)
                axes.text(*(1.18 * mean / np.linalg.norm(mean)), SHOWN[label], color=color(label))
            axes.set_title(f"{title}: {share:.1%} of unseen pairs told right", y=1.04)
            axes.set_axis_off()
            axes.set_box_aspect((1, 1, 1), zoom=1.45)
            axes.view_init(elev=22, azim=35)
        del matplotlib
    figure.savefig(Path(__file__).with_name("letters.png"), dpi=160)


def _sphere(axes: object) -> None:
    turn = np.linspace(0, 2 * np.pi, 73)
    for latitude in np.linspace(-np.pi / 3, np.pi / 3, 5):
        circle = np.cos(latitude) * np.cos(turn), np.cos(latitude) * np.sin(turn)
        axes.plot(*circle, np.full_like(turn, np.sin(latitude)), color="#c4cad1", lw=0.4)
    for longitude in np.linspace(0, np.pi, 6, endpoint=False):
        x, y = np.cos(turn) * np.cos(longitude), np.cos(turn) * np.sin(longitude)
        axes.plot(x, y, np.sin(turn), color="#c4cad1", lw=0.4)


if __name__ == "__main__":
    main(sys.argv[1:])
