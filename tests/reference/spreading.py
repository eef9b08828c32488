"""Ways to spread directions, straight from the equations: loops over pairs, float64."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from .energy import directions, kernel


def squared_distance(x: Tensor, y: Tensor) -> Tensor:
    """|x - y|^2 of unit vectors; a zero vector counts as orthogonal to everything."""
    return 2 - 2 * (x @ y)


def points(weight: Tensor, half_space: bool) -> list[Tensor]:
    u = directions(weight)
    return u + [-x for x in u] if half_space else u


def nearest_distances(weight: Tensor, half_space: bool = False) -> list[Tensor]:
    """For each neuron, the smallest distance to another one, or to another one's mirror image."""
    u = directions(weight)
    found = []
    for i, x in enumerate(u):
        best = None
        for j, y in enumerate(u):
            if i == j:
                continue
            for sign in (1, -1) if half_space else (1,):
                d = squared_distance(x, sign * y).clamp_min(1e-300).sqrt()
                best = d if best is None or d < best else best
        found.append(best)
    return found


def separation(weight: Tensor, half_space: bool = False, reduction: str = "min") -> Tensor:
    distances = torch.stack(nearest_distances(weight, half_space))
    return -(distances.min() if reduction == "min" else distances.mean())


def koleo(weight: Tensor, half_space: bool = False) -> Tensor:
    return -torch.stack(nearest_distances(weight, half_space)).log().mean()


def potential(
    weight: Tensor, v: Tensor, s: float, half_space: bool = False, distance: str = "euclidean"
) -> Tensor:
    """Mean of f_s(|v - w_i|) over the neurons."""
    total = torch.zeros((), dtype=torch.float64)
    v = v.double() / v.double().norm()
    found = points(weight, half_space)
    for x in found:
        if distance == "euclidean":
            d = squared_distance(x, v).sqrt()
        else:
            d = torch.arccos((x @ v).clamp(-1, 1))
        total = total + kernel(d, s)
    return total / len(found)


def depth(weight: Tensor, v: Tensor, sharpness: float, half_space: bool = False) -> Tensor:
    """-log(mean exp(-g |v - w_i|^2)) / g, a smooth smallest squared distance."""
    total = torch.zeros((), dtype=torch.float64)
    v = v.double() / v.double().norm()
    found = points(weight, half_space)
    for x in found:
        total = total + torch.exp(-sharpness * squared_distance(x, v))
    return -torch.log(total / len(found)) / sharpness


def gram_determinant(
    weight: Tensor, epsilon: float = 1.0, half_space: bool = False, ridge: float = 1e-6
) -> Tensor:
    """-log det(K + ridge) / n of the n neurons, or of the 2N neurons and mirror images."""
    u = points(weight, half_space)
    n = len(u)
    rows = []
    for i in range(n):
        row = []
        for j in range(n):
            if i == j:
                row.append(torch.ones((), dtype=torch.float64) + ridge)
            else:
                row.append(torch.exp(-(epsilon**2) * squared_distance(u[i], u[j])))
        rows.append(torch.stack(row))
    return -torch.linalg.slogdet(torch.stack(rows))[1] / n


def uniformity(x: Tensor, t: float = 2.0) -> Tensor:
    """log of the mean of exp(-t |x_i - x_j|^2) over pairs."""
    u = directions(x)
    total, pairs = torch.zeros((), dtype=torch.float64), 0
    for i in range(len(u)):
        for j in range(i):
            total = total + torch.exp(-t * squared_distance(u[i], u[j]))
            pairs += 1
    return torch.log(total / pairs)


def alignment(x: Tensor, y: Tensor, alpha: float = 2.0) -> Tensor:
    """Mean of |x_i - y_i|^alpha of unit vectors."""
    total = torch.zeros((), dtype=torch.float64)
    for a, b in zip(directions(x), directions(y), strict=True):
        total = total + (a - b).norm() ** alpha
    return total / len(x)


def supervised_contrastive(
    x: Tensor, labels: Tensor, prototypes: Tensor | None = None, temperature: float = 0.1
) -> Tensor:
    """SupCon over the batch and the prototypes; a sample without positives does not count."""
    u, y = directions(x), labels.tolist()
    classes = [] if prototypes is None else directions(prototypes)
    losses = []
    for i in range(len(u)):
        positives = [u[j] for j in range(len(u)) if j != i and y[j] == y[i]]
        others = [u[j] for j in range(len(u)) if j != i] + classes
        if classes:
            positives.append(classes[y[i]])
        if not positives:
            continue
        norm = torch.logsumexp(torch.stack([u[i] @ a / temperature for a in others]), 0)
        losses.append(-sum(u[i] @ p / temperature - norm for p in positives) / len(positives))
    return torch.stack(losses).mean()


# --- known optima --------------------------------------------------------------------------------


def simplex(dim: int) -> Tensor:
    """dim + 1 points in R^dim at cosine -1 / dim."""
    centered = torch.eye(dim + 1, dtype=torch.float64) - 1 / (dim + 1)
    basis = torch.linalg.qr(centered[:, :dim]).Q
    rows = centered @ basis
    return rows / rows.norm(dim=1, keepdim=True)


def cross_polytope(dim: int) -> Tensor:
    eye = torch.eye(dim, dtype=torch.float64)
    return torch.cat([eye, -eye])


def icosahedron() -> Tensor:
    golden = (1 + math.sqrt(5)) / 2
    corner = torch.tensor([[0, 1, golden], [0, 1, -golden]], dtype=torch.float64)
    half = torch.cat([corner.roll(k, 1) for k in range(3)])
    rows = torch.cat([half, -half])
    return rows / rows.norm(dim=1, keepdim=True)
