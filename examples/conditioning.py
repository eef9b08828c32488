"""Lemmas 1 and 2 (3.2.3): how scaling a layer conditions plain and hyperspherical learning.

    python examples/conditioning.py [--draw conditioning.png]

One linear layer F = U V^T is learned by G = |F - U V^T|^2 / 2 (Eq. 3.7), or by the cosine operator,
G_S = |F - D_U U V^T D_V|^2 / 2 with rows of unit length (Eq. 3.8). (U, V) and (c U, V / c) give the
same function. Lemma 1: the condition number of G's Hessian there grows at least like c^2. Lemma 2:
the eigenvalues of G_S's Hessian stay. Its proof (B.4.2) brings the rows back to unit length after
every step, which is the weight projection of 4.4.1. Without it G_S does not change with c but its
Hessian does: the block of U shrinks by c^2 and that of V grows by c^2. All three are shown.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable

import torch
from torch import Tensor

from hypersphere import functional as HF

SCALES = (1.0, 2.0, 4.0, 8.0, 16.0, 32.0)
Objective = Callable[[Tensor, Tensor, Tensor], Tensor]


def plain(u: Tensor, v: Tensor, f: Tensor) -> Tensor:
    """G(U, V), Eq. 3.7."""
    return 0.5 * (f - u @ v.T).square().sum()


def hyperspherical(u: Tensor, v: Tensor, f: Tensor) -> Tensor:
    """G_S(U, V), Eq. 3.8: the cosine operator of every pair of rows."""
    return 0.5 * (f - HF.decoupled_linear(v, u).T).square().sum()


def problem(n: int = 6, m: int = 5, k: int = 3, seed: int = 0) -> tuple[Tensor, Tensor, Tensor]:
    """A global optimum (U, V) with rows of unit length, and F = U V^T."""
    generator = torch.Generator().manual_seed(seed)
    u = HF.uniform_on_sphere(n, k, generator, torch.float64)
    v = HF.uniform_on_sphere(m, k, generator, torch.float64)
    return u, v, u @ v.T


def hessian_eigenvalues(objective: Objective, u: Tensor, v: Tensor, f: Tensor) -> Tensor:
    """Eigenvalues of the Hessian in all (n + m) k entries of U and V, ascending."""

    def flat(parameters: Tensor) -> Tensor:
        left, right = parameters.split([u.numel(), v.numel()])
        return objective(left.view_as(u), right.view_as(v), f)

    point = torch.cat([u.flatten(), v.flatten()])
    hessian = torch.func.jacrev(torch.func.grad(flat))(point)
    return torch.linalg.eigvalsh(hessian)


def condition_number(eigenvalues: Tensor, zeros: int) -> float:
    """Largest over smallest nonzero eigenvalue, `zeros` of which are zero by symmetry."""
    magnitudes = eigenvalues.abs().sort().values
    return float(magnitudes[-1] / magnitudes[zeros])


def count_zeros(eigenvalues: Tensor) -> int:
    return int((eigenvalues.abs() < 1e-9 * eigenvalues.abs().max()).sum())


def condition_numbers(scales: tuple[float, ...] = SCALES) -> dict[str, list[float]]:
    """The restricted condition number of each objective at (c U, V / c), for each c."""
    u, v, f = problem()
    zeros = {
        objective: count_zeros(hessian_eigenvalues(objective, u, v, f))
        for objective in (plain, hyperspherical)
    }
    rows: dict[str, list[float]] = {"plain": [], "sphere, projected": [], "sphere": []}
    for c in scales:
        scaled = c * u, v / c
        projected = HF.normalize(scaled[0]), HF.normalize(scaled[1])
        for name, objective, point in (
            ("plain", plain, scaled),
            ("sphere, projected", hyperspherical, projected),
            ("sphere", hyperspherical, scaled),
        ):
            eigenvalues = hessian_eigenvalues(objective, *point, f)
            rows[name].append(condition_number(eigenvalues, zeros[objective]))
    return rows


def draw(rows: dict[str, list[float]], path: str) -> None:
    """Condition numbers over c, on logarithmic axes, with the slope of Lemma 1."""
    from hypersphere._optional import require

    plt = require("matplotlib.pyplot", extra="report")
    figure, axes = plt.subplots(figsize=(5.2, 3.6), layout="constrained")
    labels = {
        "plain": "inner product (Lemma 1)",
        "sphere, projected": "cosine operator, projected (Lemma 2)",
        "sphere": "cosine operator, not projected",
    }
    for name, style in zip(labels, ("o-", "s-", "^--"), strict=True):
        axes.loglog(SCALES, rows[name], style, label=labels[name])
    guide = [rows["plain"][0] * c**2 for c in SCALES]
    axes.loglog(SCALES, guide, ":", color="gray", label="c^2, the bound of Lemma 1")
    axes.set(xlabel="c in (c U, V / c)", ylabel="condition number of the Hessian")
    axes.legend(fontsize=8, loc="upper left")
    figure.savefig(path, dpi=120)
    plt.close(figure)


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--draw", metavar="FILE", help="draw the table to this picture")
    options = parser.parse_args(arguments)
    rows = condition_numbers()
    print(f"{'c':>6} " + " ".join(f"{name:>18}" for name in rows))
    for i, c in enumerate(SCALES):
        print(f"{c:6g} " + " ".join(f"{values[i]:18.4g}" for values in rows.values()))
    if options.draw:
        draw(rows, options.draw)
    return 0


if __name__ == "__main__":
    sys.exit(main())
