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
from hypersphere.reports.style import styled


def sphere(axes) -> None:
    turn, height = torch.linspace(0, 2 * math.pi, 37), torch.linspace(0, math.pi, 19)
    x, y = torch.outer(turn.cos(), height.sin()), torch.outer(turn.sin(), height.sin())
    z = torch.outer(torch.ones_like(turn), height.cos())
    axes.plot_wireframe(x.numpy(), y.numpy(), z.numpy(), color="0.88", linewidth=0.4)
    axes.set_box_aspect((1, 1, 1), zoom=1.45)
    axes.set_axis_off()


def main() -> None:
    figure = plt.figure(figsize=(9, 6.4))
    for place, (name, path) in enumerate(trajectories.figure_5_1().items(), start=1):
        axes = figure.add_subplot(2, 3, place, projection="3d")
        sphere(axes)
        for neuron in range(path.shape[1]):
            axes.plot(*path[:, neuron].T.numpy(), color="0.45", linewidth=0.9)
        axes.scatter(*path[-1].T.numpy(), color="tab:red", s=26, depthshade=False)
        if name == "half-space MHE":
            axes.scatter(*(-path[-1]).T.numpy(), color="pink", s=18, depthshade=False)
        axes.set_title(f"10 neurons, {name}", fontsize=9)
    problems = (
        ("Thomson, n = 32", 32, 1.0),
        ("Whyte, n = 24", 24, 0.0),
        ("Tammes, n = 24", 24, math.inf),
    )
    for place, (title, n, s) in enumerate(problems, start=4):
        axes = figure.add_subplot(2, 3, place, projection="3d")
        sphere(axes)
        points = HF.minimize_energy(n, 3, s)
        distance = torch.cdist(points, points).fill_diagonal_(math.inf)
        for i, j in (distance < 1.2 * distance.amin(1, keepdim=True)).triu(1).nonzero().tolist():
            axes.plot(*points[[i, j]].T.numpy(), color="tab:blue", linewidth=0.9, alpha=0.7)
        axes.scatter(*points.T.numpy(), color="tab:red", s=20, depthshade=True)
        axes.set_title(title, fontsize=9)
    figure.savefig(Path(__file__).with_name("regularizers.png"), dpi=90, bbox_inches="tight")


if __name__ == "__main__":
    with styled():
        main()
