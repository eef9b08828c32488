"""Draws docs/figures/layers.png: the magnitudes, the angular activations, and Lemmas 1 and 2."""

import importlib.util
import math
from pathlib import Path

import matplotlib.pyplot as plt
import torch

from hypersphere import functional as HF
from hypersphere.reports.style import legend_below, styled

HERE = Path(__file__).parent


def conditioning():
    path = HERE.parents[1] / "examples" / "conditioning.py"
    spec = importlib.util.spec_from_file_location("conditioning", path)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def main() -> None:
    figure, axes = plt.subplots(1, 3, figsize=(9.8, 3.0), layout="constrained")
    n = torch.linspace(0.001, 3, 300)
    for kind in ("sphere", "ball", "tanh", "linear", "segmented", "log", "mixed"):
        axes[0].plot(n, HF.magnitude(n, kind), label=kind)
    axes[0].set(title="magnitudes h, rho = 1", xlabel="|x|", ylim=(0, 3))
    legend_below(axes[0])
    theta = torch.linspace(0, math.pi, 300)
    for kind in ("linear", "cosine", "square_cosine"):
        axes[1].plot(theta, HF.angular(theta.cos(), kind), label=kind)
    for k in (0.1, 0.3, 1.0):
        g = HF.angular(theta.cos(), "sigmoid", k)
        axes[1].plot(theta, g, "--", label=f"sigmoid, k = {k}")
    axes[1].set(title="angular activations g", xlabel="theta")
    axes[1].set_xticks([0, math.pi / 2, math.pi], ["0", "pi/2", "pi"])
    legend_below(axes[1])
    module = conditioning()
    rows = module.condition_numbers()
    for name, style in (("plain", "o-"), ("sphere, projected", "s-"), ("sphere", "^--")):
        axes[2].loglog(module.SCALES, rows[name], style, label=name)
    axes[2].set(title="condition number at (c U, V / c)", xlabel="c")
    legend_below(axes[2])
    figure.savefig(HERE / "layers.png", dpi=130)


if __name__ == "__main__":
    with styled():
        main()
