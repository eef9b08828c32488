"""Figures 5.1, D.1 and D.2: ten neurons on the sphere, moved by nothing but a regularizer.

    python examples/trajectories.py [--out folder]

Figure 5.1: orthonormal regularization groups ten neurons around three axes, since more than three
cannot be orthogonal in R^3; MHE spreads them over the sphere, half-space MHE spreads the ten lines.
Figures D.1, D.2: the larger the weight beta of a neuron (or of two) in weighted MHE, the less it
moves. All start from the same ten random directions and follow plain SGD.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from hypersphere import functional as HF
from hypersphere.reports.style import color, draw_sphere

BETAS = (1.0, 2.0, 4.0, 10.0)
PENALTIES: dict[str, Callable[[Tensor], Tensor]] = {
    "orthonormal": HF.orthonormal_penalty,
    "MHE": lambda w: HF.hyperspherical_energy(w, 2.0),
    "half-space MHE": lambda w: HF.hyperspherical_energy(w, 2.0, half_space=True),
}


def start(n: int = 10, seed: int = 1) -> Tensor:
    return HF.uniform_on_sphere(n, 3, torch.Generator().manual_seed(seed), torch.float64)


def descend(
    penalty: Callable[[Tensor], Tensor], w: Tensor, lr: float, steps: int, unit: bool
) -> Tensor:
    """Directions of the neurons after every step of SGD: (steps + 1, n, 3).

    unit: put the neurons back on the sphere after each step.
    """
    w = w.clone().requires_grad_()
    optimizer = torch.optim.SGD([w], lr=lr)
    path = [HF.normalize(w.detach())]
    for _ in range(steps):
        optimizer.zero_grad()
        penalty(w).backward()
        optimizer.step()
        if unit:
            w.data = HF.normalize(w.data)
        path.append(HF.normalize(w.detach()))
    return torch.stack(path)


def figure_5_1(steps: int = 800) -> dict[str, Tensor]:
    """Paths under the three regularizers."""
    rates = {"orthonormal": 0.005, "MHE": 0.15, "half-space MHE": 0.15}
    w = start()
    return {
        name: descend(penalty, w, rates[name], steps, unit=name != "orthonormal")
        for name, penalty in PENALTIES.items()
    }


def weighted(beta: float, heavy: int, steps: int = 300) -> Tensor:
    """Path under weighted MHE (Eq. D.10), the first `heavy` neurons having weight beta."""
    w = start()
    weights = torch.ones(len(w), dtype=w.dtype)
    weights[:heavy] = beta
    return descend(
        lambda x: HF.hyperspherical_energy(x, 2.0, weights=weights),
        w,
        lr=0.5,
        steps=steps,
        unit=True,
    )


def length(path: Tensor, neuron: int) -> float:
    """How far a neuron travelled, in radians."""
    return float(HF.angle(path[1:, neuron], path[:-1, neuron]).sum())


def main(argv: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--out", type=Path, help="folder for the three figures")
    options = parser.parse_args(argv)
    paths = figure_5_1()
    print(f"{'':16} {'energy E_2':>11} {'half space':>11} {'smallest angle':>15}")
    for name, path in paths.items():
        end = path[-1]
        energies = [float(HF.hyperspherical_energy(end, 2.0, half)) for half in (False, True)]
        angle = float(torch.rad2deg(HF.separation_distance(end)))
        print(f"{name:16} {energies[0]:11.4f} {energies[1]:11.4f} {angle:14.1f}°")
    print(f"\n{'beta':>6} {'one heavy: way of w1':>22} {'two heavy: w1, w2':>22}")
    for beta in BETAS:
        one, two = weighted(beta, 1), weighted(beta, 2)
        print(f"{beta:6g} {length(one, 0):22.3f} {length(two, 0):12.3f} {length(two, 1):9.3f}")
    if options.out is not None:
        options.out.mkdir(parents=True, exist_ok=True)
        draw_5_1(paths, options.out / "figure-5.1.png")
        for heavy, number in ((1, "D.1"), (2, "D.2")):
            panels = {f"beta = {beta:g}": weighted(beta, heavy) for beta in BETAS}
            draw_weighted(panels, heavy, options.out / f"figure-{number}.png")
    return 0


def _spheres(count: int) -> tuple[Any, list[Any]]:
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    figure, axes = pyplot.subplots(
        1, count, figsize=(3 * count, 3.2), subplot_kw={"projection": "3d"}
    )
    for panel in axes:
        draw_sphere(panel)
    return figure, list(axes)


def draw_5_1(paths: dict[str, Tensor], file: Path) -> None:
    """Paths in grey, dots where they end, circles for mirrored neurons."""
    figure, panels = _spheres(len(paths))
    for panel, (name, path) in zip(panels, paths.items(), strict=True):
        for neuron in range(path.shape[1]):
            panel.plot(*path[:, neuron].T.numpy(), color="0.45", linewidth=0.9)
        panel.scatter(*path[-1].T.numpy(), color=color(1), s=28, depthshade=False)
        if name == "half-space MHE":
            panel.scatter(*(-path[-1]).T.numpy(), s=20, facecolors="none", edgecolors=color(1))
        panel.set_title(name)
    _save(figure, file)


def draw_weighted(panels_paths: dict[str, Tensor], heavy: int, file: Path) -> None:
    """The heavy neurons' paths and lines from the origin, the others as dots."""
    figure, panels = _spheres(len(panels_paths))
    colors = (color(0), color(2))
    for panel, (title, path) in zip(panels, panels_paths.items(), strict=True):
        panel.scatter(*path[-1, heavy:].T.numpy(), color=color(1), s=24, depthshade=False)
        for neuron in range(heavy):
            x, y, z = path[:, neuron].T.numpy()
            panel.plot(x, y, z, "s--", color=colors[neuron], markersize=2, linewidth=0.8)
            panel.plot(*[(0, float(v[-1])) for v in (x, y, z)], color=colors[neuron])
        panel.set_title(title)
    _save(figure, file)


def _save(figure: Any, file: Path) -> None:
    from matplotlib import pyplot

    figure.savefig(file, dpi=90, bbox_inches="tight")
    pyplot.close(figure)


if __name__ == "__main__":
    sys.exit(main())
