"""Theorems 3 and 4: random projection keeps angles, with at least the stated chance.

    python examples/angle_preservation.py [--trials 2000]

For each angle, k and epsilon: how often the cosine after the projection lies within the bounds
6.10 and 6.11, next to the probability that the theorems promise. Besides Gaussian matrices the
other sketches of 6.5 are shown; signs (Rademacher) are subgaussian too, so Theorem 3 covers them.
"""

from __future__ import annotations

import argparse
import math
import sys

import torch
from torch import Tensor

from hypersphere import functional as HF

KINDS = ("gaussian", "signs", "hadamard", "count")


def bounds_3(cos: float, eps: float) -> tuple[float, float]:
    """Eq. 6.10."""
    return (cos - eps) / (1 + eps), (cos + eps) / (1 - eps)


def probability_3(k: int, eps: float) -> float:
    """The chance that Theorem 3 promises; 0 where its formula says nothing."""
    return max(0.0, 1 - 2 * math.exp(-k * eps**2 / 8)) ** 2


def bounds_4(cos: float, eps: float) -> tuple[float, float]:
    """Eq. 6.11, for cos > 0."""
    low = (1 + eps) / (1 - eps) * cos - 2 * eps / (1 - eps)
    high = (1 - eps) / (1 + eps) * cos + (1 + 2 * eps - math.sqrt(1 - eps**2)) / (1 + eps)
    return low, high


def probability_4(k: int, eps: float) -> float:
    """The chance that Theorem 4 promises."""
    return max(0.0, 1 - 6 * math.exp(-k / 2 * (eps**2 / 2 - eps**3 / 3)))


def projected_cosines(
    cos: float, d: int, k: int, trials: int, kind: str = "gaussian", seed: int = 0
) -> Tensor:
    """cos of P w1 and P w2 over independent P and pairs (w1, w2) of R^d at the given cosine."""
    generator = torch.Generator().manual_seed(seed)
    found = []
    for start in range(0, trials, 50):
        count = min(50, trials - start)
        u = HF.uniform_on_sphere(count, d, generator)
        v = HF.uniform_on_sphere(count, d, generator)
        v = HF.normalize(v - (u * v).sum(1, keepdim=True) * u)
        w = torch.stack([u, cos * u + math.sqrt(1 - cos**2) * v], 2)  # (count, d, 2)
        if kind == "signs":
            p = torch.randint(0, 2, (count, k, d), generator=generator) * 2.0 - 1
        else:
            p = HF.sketch(kind, d, k, count, generator)
        images = p @ w
        found.append(HF.cosine(images[..., 0], images[..., 1]))
    return torch.cat(found)


def coverage(cosines: Tensor, bounds: tuple[float, float]) -> float:
    """Share of the cosines strictly within the bounds."""
    low, high = bounds
    return float(((cosines > low) & (cosines < high)).float().mean())


def main(argv: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--trials", type=int, default=400)
    options = parser.parse_args(argv)
    print(" angle    k  eps    sketch   Thm 3: held  promised   Thm 4: held  promised")
    kept = True
    for degrees in (20, 60, 85):
        cos = math.cos(math.radians(degrees))
        for k, eps in ((30, 0.8), (200, 0.5), (300, 0.3)):
            for kind in KINDS:
                cosines = projected_cosines(cos, 400, k, options.trials, kind)
                third = coverage(cosines, bounds_3(cos, eps)), probability_3(k, eps)
                fourth = coverage(cosines, bounds_4(cos, eps)), probability_4(k, eps)
                if kind == "gaussian":
                    kept &= third[0] >= third[1] and fourth[0] >= fourth[1]
                print(
                    f"{degrees:>5}° {k:>4} {eps:>4} {kind:>9}   {third[0]:11.4f} {third[1]:9.4f}"
                    f"   {fourth[0]:11.4f} {fourth[1]:9.4f}"
                )
    print("both theorems hold" if kept else "a promise was broken")
    return 0 if kept else 1


if __name__ == "__main__":
    sys.exit(main())
