"""Energies straight from the equations: double loops over pairs, float64."""

from __future__ import annotations

import math

import torch
from torch import Tensor


def directions(weight: Tensor) -> list[Tensor]:
    rows = weight.double().flatten(1)
    return [row / row.norm() if float(row.detach().norm()) > 0 else row for row in rows]


def kernel(distance: Tensor, s: float) -> Tensor:
    return torch.log(1 / distance) if s == 0 else distance ** (-s)


def energy(
    weight: Tensor,
    s: float,
    half_space: bool = False,
    distance: str = "euclidean",
    weights: Tensor | None = None,
    reduction: str = "sum",
) -> Tensor:
    """Eq. 5.1, 5.5 and D.10; the half space adds the mirrored neurons (5.3.4)."""
    u = directions(weight)
    beta = [1.0] * len(u) if weights is None else weights.tolist()
    points = list(zip(u, beta, strict=True))
    if half_space:
        points += [(-x, b) for x, b in points]
    total = torch.zeros((), dtype=torch.float64)
    for i, (x, a) in enumerate(points):
        for j, (y, b) in enumerate(points):
            if i == j:
                continue
            if distance == "euclidean":
                d = (a * x - b * y).norm()
            elif half_space and abs(i - j) == len(u):
                d = torch.tensor(math.pi, dtype=torch.float64)  # w and -w: no gradient to lose
            else:
                d = torch.arccos((x @ y).clamp(-1, 1))
            total = total + kernel(d, s)
    n = len(points)
    return total if reduction == "sum" else total / (n * (n - 1))


def class_energy(weight: Tensor, labels: Tensor, s: float, distance: str = "euclidean") -> Tensor:
    """The second term of Eq. 5.8."""
    u = directions(weight)
    total = torch.zeros((), dtype=torch.float64)
    for y in labels.tolist():
        for j in range(len(u)):
            if j != y:
                cos = (u[y] @ u[j]).clamp(-1, 1)
                d = (u[y] - u[j]).norm() if distance == "euclidean" else torch.arccos(cos)
                total = total + kernel(d, s)
    return total / (len(labels) * (len(u) - 1))


def angle_distortion(weight: Tensor, projection: Tensor, measure: str) -> Tensor:
    """Eq. 6.6 over the number of ordered pairs."""
    u = directions(weight)
    v = [projection.double() @ x for x in u]
    total = torch.zeros((), dtype=torch.float64)
    for i in range(len(u)):
        for j in range(len(u)):
            if i != j:
                before = u[i] @ u[j]
                after = v[i] @ v[j] / (v[i].norm() * v[j].norm())
                if measure == "angle":
                    before, after = before.arccos(), after.arccos()
                total = total + (before - after) ** 2
    return total / (len(u) * (len(u) - 1))
