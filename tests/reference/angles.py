"""Angles and coverage of the sphere, by loops and brute force."""

import itertools
import math

import mpmath
import torch


def exact_angle(x, y):
    """arccos(x.y / |x||y|) of the vectors as stored, with 60 digits in between."""
    with mpmath.workdps(60):
        dot = mpmath.fsum(mpmath.mpf(float(a)) * float(b) for a, b in zip(x, y, strict=True))
        squares = [mpmath.fsum(mpmath.mpf(float(a)) ** 2 for a in v) for v in (x, y)]
        return float(mpmath.acos(dot / mpmath.sqrt(squares[0] * squares[1])))


def cosine(x, y):
    """x.y / (|x| |y|), 0 if either is zero."""
    x, y = [float(v) for v in x], [float(v) for v in y]
    norms = math.hypot(*x) * math.hypot(*y)
    return sum(a * b for a, b in zip(x, y, strict=True)) / norms if norms > 0 else 0.0


def separation_distance(points):
    """Eq. F.37: min over i != j of arccos(w_i, w_j)."""
    pairs = itertools.combinations(points, 2)
    return min(math.acos(max(-1.0, min(1.0, cosine(a, b)))) for a, b in pairs)


def covering_radius_on_grid(points, steps=400):
    """Eq. F.36 for points in R^3, over a fine grid of directions: a lower bound."""
    z = torch.linspace(-1, 1, steps, dtype=torch.float64)
    phi = torch.linspace(0, 2 * math.pi, 2 * steps, dtype=torch.float64)
    zz, pp = torch.meshgrid(z, phi, indexing="ij")
    r = (1 - zz**2).clamp_min(0).sqrt()
    u = torch.stack([r * pp.cos(), r * pp.sin(), zz], -1).reshape(-1, 3)
    w = torch.stack([p / p.norm() for p in points.double()])
    return float((u @ w.T).clamp(-1, 1).acos().amin(1).max())


def hole_angles(points):
    """Caps through three points of R^3 that hold no other point: brute force over triples (F.9)."""
    w = torch.stack([p / p.norm() for p in points.double()])
    found = []
    for i, j, k in itertools.combinations(range(len(w)), 3):
        normal = torch.linalg.cross(w[j] - w[i], w[k] - w[i])
        if float(normal.norm()) < 1e-12:
            continue
        for n in (normal / normal.norm(), -normal / normal.norm()):
            height = float(n @ w[i])
            if float((w @ n).max()) <= height + 1e-12:
                found.append(math.acos(max(-1.0, min(1.0, height))))
    return sorted(found, reverse=True)
