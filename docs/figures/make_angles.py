"""Draws docs/figures/angles.png: what float32 keeps of an angle, by its cosine and by vectors."""

from pathlib import Path

import matplotlib.pyplot as plt
import mpmath
import torch

from hypersphere import functional as HF
from hypersphere.reports.style import legend_below, styled


def exact(x: torch.Tensor, y: torch.Tensor) -> float:
    with mpmath.workdps(60):
        a, b = mpmath.matrix(x.tolist()), mpmath.matrix(y.tolist())
        u, v = a / mpmath.norm(a), b / mpmath.norm(b)
        return float(2 * mpmath.atan2(mpmath.norm(u - v), mpmath.norm(u + v)))


def main() -> None:
    generator = torch.Generator().manual_seed(0)
    theta = torch.logspace(-7, -0.01, 120, dtype=torch.float64)
    x = HF.uniform_on_sphere(120, 16, generator, torch.float64)
    z = HF.uniform_on_sphere(120, 16, generator, torch.float64)
    z = HF.normalize(z - (z * x).sum(1, keepdim=True) * x)
    y = x * theta.cos()[:, None] + z * theta.sin()[:, None]
    single = x.float(), y.float()
    # The rounded vectors have an exact angle of their own; 60 digits are more than enough for it.
    true = torch.tensor([exact(a, b) for a, b in zip(*single, strict=True)], dtype=torch.float64)
    figure, axes = plt.subplots(figsize=(5.2, 3.0), layout="constrained")
    for label, value, style in (
        ("arccos(cosine(x, y))", HF.arccos(HF.cosine(*single)), "o"),
        ("angle(x, y)", HF.angle(*single), "s"),
    ):
        error = ((value.double() - true) / true).abs().clamp_min(1e-9)
        axes.loglog(theta, error, style, markersize=3, label=label)
    axes.set(xlabel="angle (rad)", ylabel="relative error", ylim=(5e-10, 10))
    legend_below(axes)
    axes.grid(alpha=0.3)
    figure.savefig(Path(__file__).with_name("angles.png"), dpi=140)


if __name__ == "__main__":
    with styled():
        main()
