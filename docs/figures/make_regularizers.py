"""Draws docs/figures/regularizers.png: Figure 5.1, and best known configurations of points."""

import math
import sys
from pathlib import Path

import matplotlib

matplotlib.use("Agg")
import matplotlib.pyplot as plt
import torch

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "examples"))
import trajectories

from hypersphere import functional as HF
from hypersphere.reports.style import color, draw_sphere, styled


def main() -> None:
    figure = plt.figure(figsize=(7.2, 5.2))
    for place, (name, path) in enumerate(trajectories.figure_5_1().items(), start=1):
        axes = figure.add_subplot(2, 3, place, projection="3d")
        draw_sphere(axes)
        for neuron in range(path.shape[1]):
            axes.plot(*path[:, neuron].T.numpy(), color="0.45", linewidth=0.9)
        axes.scatter(*path[-1].T.numpy(), color=color(1), s=22, depthshade=False)
        if name == "half-space MHE":
            axes.scatter(*(-path[-1]).T.numpy(), s=18, facecolors="none", edgecolors=color(1))
        axes.set_title(f"10 neurons, {name}")
    problems = (
        ("Thomson, n = 32", 32, 1.0),
        ("Whyte, n = 24", 24, 0.0),
        ("Tammes, n = 24", 24, math.inf),
    )
    for place, (title, n, s) in enumerate(problems, start=4):
        axes = figure.add_subplot(2, 3, place, projection="3d")
        draw_sphere(axes)
        points = HF.minimize_energy(n, 3, s)
        distance = torch.cdist(points, points).fill_diagonal_(math.inf)
        for i, j in (distance < 1.2 * distance.amin(1, keepdim=True)).triu(1).nonzero().tolist():
            axes.plot(*points[[i, j]].T.numpy(), color=color(4), linewidth=0.9)
        axes.scatter(*points.T.numpy(), color=color(1), s=20, depthshade=True)
        axes.set_title(title)
    figure.savefig(Path(__file__).with_name("regularizers.png"), dpi=120, bbox_inches="tight")


if __name__ == "__main__":
    with styled():
        main()
