"""Theorem 2: how the minimal energy of N points on the sphere grows with N.

    python examples/asymptotics.py [--draw asymptotics.png]

On S^d the minimal energy grows as p(N) = N^2 for 0 < s < d, N^2 log N for s = d and N^(1 + s/d) for
s > d. The limits of E / p(N) are known in the first two cases: the energy integral of the uniform
measure (D.1, D.2) and the ratio of volumes (D.4). Minimal configurations come from the solver.
"""

from __future__ import annotations

import argparse
import math
import sys

import torch

from hypersphere import functional as HF

SIZES = (12, 20, 32, 48, 64, 80)


def energy_integral(s: float, d: int) -> float:
    """I_s of the uniform measure on S^d, 0 < s < d (Eq. D.1), in closed form.

    >>> energy_integral(1.0, 2)  # on the ordinary sphere the mean of 1 / distance is 1
    1.0
    """
    if not 0 < s < d:
        raise ValueError(f"the energy integral is finite for 0 < s < d; got s={s}, d={d}")
    logarithm = math.lgamma((d + 1) / 2) + math.lgamma((d - s) / 2) - math.lgamma(d - s / 2)
    return round(2 ** (d - s - 1) / math.sqrt(math.pi) * math.exp(logarithm), 12)


def sampled_energy_integral(s: float, d: int, pairs: int = 200_000, seed: int = 0) -> float:
    """The same integral by drawing pairs of points."""
    generator = torch.Generator().manual_seed(seed)
    u = HF.uniform_on_sphere(pairs, d + 1, generator, torch.float64)
    v = HF.uniform_on_sphere(pairs, d + 1, generator, torch.float64)
    return float((u - v).norm(dim=1).pow(-s).mean())


def critical_limit(d: int) -> float:
    """Limit of E / (N^2 log N) at s = d (Eq. D.4).

    >>> round(critical_limit(2), 12)
    0.25
    """
    return math.gamma((d + 1) / 2) / (d * math.sqrt(math.pi) * math.gamma(d / 2))


def growth(n: int, s: float, d: int) -> float:
    """p(N) of Theorem 2."""
    if s < d:
        return float(n**2)
    return n**2 * math.log(n) if s == d else n ** (1 + s / d)


def minimal_energies(s: float, d: int = 2, sizes: tuple[int, ...] = SIZES) -> list[float]:
    """Energies over ordered pairs (Eq. 5.6) of the best configurations found."""
    found = []
    for n in sizes:
        points = HF.minimize_energy(n, d + 1, s, restarts=4)
        found.append(float(HF.hyperspherical_energy(points, s, reduction="sum")))
    return found


def estimated_limit(s: float, d: int, sizes: tuple[int, ...], energies: list[float]) -> float:
    """Limit of E / p(N) from finite N, by the known form of the next term.

    s < d: E / N^2 = limit - c N^(s/d - 1). s = d: E / N^2 = limit log N + c. s > d: the last ratio.
    """
    n = torch.tensor(sizes, dtype=torch.float64)
    e = torch.tensor(energies, dtype=torch.float64)
    if s > d:
        return float(e[-1]) / growth(sizes[-1], s, d)
    known = torch.ones_like(n) if s < d else n.log()
    other = n ** (s / d - 1) if s < d else torch.ones_like(n)
    return float(torch.linalg.lstsq(torch.stack([known, other], 1), e / n**2).solution[0])


def main(argv: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--draw", help="a picture of E / p(N) over N")
    options = parser.parse_args(argv)
    curves = {}
    print(f"{'s':>4} {'d':>3}  E / p(N) for N = {SIZES}{'':8} estimate      limit")
    for s in (0.5, 1.0, 1.5, 2.0, 3.0):
        energies = minimal_energies(s)
        ratios = [e / growth(n, s, 2) for n, e in zip(SIZES, energies, strict=True)]
        curves[s] = ratios
        limit = energy_integral(s, 2) if s < 2 else critical_limit(2) if s == 2 else math.nan
        shown = " ".join(f"{ratio:.4f}" for ratio in ratios)
        estimate = estimated_limit(s, 2, SIZES, energies)
        print(f"{s:4.1f} {2:3d}  {shown:48} {estimate:10.5f} {limit:10.5f}")
    if options.draw:
        draw(curves, options.draw)
    return 0


def draw(curves: dict[float, list[float]], path: str) -> None:
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    figure, axes = pyplot.subplots(figsize=(5, 3.4))
    for s, ratios in curves.items():
        (line,) = axes.plot(SIZES, ratios, "o-", label=f"s = {s:g}")
        if s <= 2:
            limit = energy_integral(s, 2) if s < 2 else critical_limit(2)
            axes.axhline(limit, color=line.get_color(), linestyle=":", linewidth=1)
    axes.set_xlabel("N")
    axes.set_ylabel("E / p(N)")
    axes.legend(fontsize=8, loc="lower right")
    figure.savefig(path, dpi=120, bbox_inches="tight")
    pyplot.close(figure)


if __name__ == "__main__":
    sys.exit(main())
