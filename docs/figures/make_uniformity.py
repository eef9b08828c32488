"""Draws docs/figures/uniformity.png: ten neurons in R^3 under each way of spreading them."""

import math
import sys
from collections.abc import Callable
from pathlib import Path

import matplotlib

matplotlib.use("Agg")
import matplotlib.pyplot as plt
import torch
from torch import Tensor

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "examples"))
import trajectories

from hypersphere import functional as HF
from hypersphere.regularizers import Covering, Polarization
from hypersphere.reports.style import color, draw_sphere, styled

STEPS = 1500


def on_one_layer(regularizer: torch.nn.Module) -> Callable[[Tensor], Tensor]:
    """A regularizer with an inner problem, which goes on from its last points."""
    return lambda w: regularizer({"neurons": w})


# Each with the angle, in radians, that its neurons may move in the first step.
LOSSES: dict[str, tuple[Callable[[Tensor], Tensor], float]] = {
    "MHE, s = 2": (lambda w: HF.hyperspherical_energy(w, 2.0), 0.05),
    "separation": (HF.separation, 0.05),
    "polarization": (on_one_layer(Polarization(half_space=False, points=32)), 0.1),
    "covering": (on_one_layer(Covering(half_space=False, points=32)), 0.2),
    "Gram determinant": (HF.gram_determinant, 0.05),
    "KoLeo": (HF.koleo, 0.05),
}


def descend(loss: Callable[[Tensor], Tensor], w: Tensor, step: float) -> Tensor:
    """Directions after each of the steps, whose length falls to zero: (STEPS + 1, n, 3)."""
    path = [HF.normalize(w)]
    for k in range(STEPS):
        w = path[-1].clone().requires_grad_()
        (gradient,) = torch.autograd.grad(loss(w), w)
        # Where the loss is smooth the gradient vanishes and the steps with it; where it is a
        # maximum or minimum of several things it does not, and the steps have to shrink.
        length = step * (1 - k / STEPS) / max(1.0, float(gradient.norm(dim=1).max()))
        path.append(HF.normalize(w.detach() - length * gradient))
    return torch.stack(path)


def draw(axes, path: Tensor, title: str) -> None:
    draw_sphere(axes)
    for neuron in range(path.shape[1]):
        axes.plot(*path[:, neuron].T.numpy(), color="0.45", linewidth=0.9)
    points = path[-1]
    distance = torch.cdist(points, points).fill_diagonal_(math.inf)
    for i, j in (distance < 1.25 * distance.amin(1, keepdim=True)).triu(1).nonzero().tolist():
        axes.plot(*points[[i, j]].T.numpy(), color=color(4), linewidth=0.9)
    axes.scatter(*points.T.numpy(), color=color(1), s=22, depthshade=True)
    smallest = math.degrees(float(HF.separation_distance(points)))
    hole = math.degrees(float(HF.covering_radius(points)))
    axes.set_title(f"{title}\nsmallest angle {smallest:.1f}°, hole {hole:.1f}°")


def main() -> None:
    figure = plt.figure(figsize=(7.2, 5.2))
    for place, (name, (loss, step)) in enumerate(LOSSES.items(), start=1):
        path = descend(loss, trajectories.start(), step)
        draw(figure.add_subplot(2, 3, place, projection="3d"), path, name)
    figure.savefig(Path(__file__).with_name("uniformity.png"), dpi=120, bbox_inches="tight")


if __name__ == "__main__":
    with styled():
        main()
