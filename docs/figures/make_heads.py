"""Draws docs/figures/heads.png: margins, and what they do to two-dimensional features of digits."""

from pathlib import Path

import matplotlib.pyplot as plt
import torch
from sklearn.datasets import load_digits
from torch import nn

import hypersphere.heads as heads
from hypersphere.evaluation.geometry.separability import angular_fisher_score
from hypersphere.heads import Margin
from hypersphere.reports.style import color, legend_below, styled


def features(head: heads.MarginHead, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    torch.manual_seed(0)
    net = nn.Sequential(nn.Linear(64, 128), nn.ReLU(), nn.Linear(128, 64), nn.ReLU())
    net.append(nn.Linear(64, 2))  # no activation after it (A.1)
    optimizer = torch.optim.Adam([*net.parameters(), *head.parameters()], lr=3e-3)
    for _ in range(1000):
        some = torch.randint(len(x), (128,))
        optimizer.zero_grad()
        head.loss(net(x[some]), y[some]).backward()
        optimizer.step()
        if head.annealing is not None:
            head.annealing.step()
    return net(x).detach()


def main() -> None:
    figure = plt.figure(figsize=(9.8, 3.0), layout="constrained")
    curves, clouds = figure.subfigures(1, 2, width_ratios=(1.1, 1))
    axes = [*curves.subplots(1, 2), *clouds.subplots(1, 2)]
    named = {
        "A-Softmax, m = 2": Margin(m=2),
        "A-Softmax, m = 4": Margin(m=4),
        "AM-Softmax, m = 0.35": Margin(subtract=0.35),
        "ArcFace, m = 0.5": Margin(shift=0.5),
    }
    heads.plot_margins(named, ax=axes[0])
    axes[0].set(title="psi for g = cos", xlabel="theta in degrees")
    legend_below(axes[0])
    theta = torch.linspace(0, torch.pi, 721, dtype=torch.float64)
    for kind in ("cosine", "linear", "sigmoid", "square_cosine"):
        curve = Margin(m=3)(theta.cos(), kind, 0.3 if kind == "sigmoid" else None)
        axes[1].plot(theta.rad2deg(), curve, label=kind)
    axes[1].set(title="g(3 theta), continued", xlabel="theta in degrees", xlim=(0, 180))
    legend_below(axes[1])

    digits = load_digits()
    x = torch.tensor(digits.data / 16, dtype=torch.float32)
    y = torch.tensor(digits.target)
    margin = heads.ASoftmaxHead(2, 10, m=4)
    margin.annealing = heads.LambdaAnnealing(base=100.0, gamma=0.12, minimum=1.0)
    plain = heads.SoftmaxHead(2, 10, bias=False)
    for ax, (title, head) in zip(
        axes[2:], {"softmax": plain, "A-Softmax, m = 4": margin}.items(), strict=True
    ):
        found = features(head, x, y)
        ax.scatter(*found.T, c=[color(label) for label in y.tolist()], s=3)
        score = angular_fisher_score(found, y)
        ax.set(title=title, xlabel=f"angular Fisher score {score:.4f}", aspect="equal")
        ax.set(adjustable="datalim")  # both panels of one size
        ax.set(xticks=[], yticks=[])
        ax.spines[:].set_visible(False)
        ax.axhline(0, color="gray", linewidth=0.5)
        ax.axvline(0, color="gray", linewidth=0.5)
    figure.savefig(Path(__file__).with_name("heads.png"), dpi=130)


if __name__ == "__main__":
    with styled():
        main()
