"""How a set of directions covers the sphere (F.9): separation, covering radius, holes."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from .._optional import require
from .angles import angle, check_rows, normalize, uniform_on_sphere

__all__ = [
    "covering_radius",
    "expected_hole_moment",
    "hole_moment",
    "hole_radii",
    "separation_distance",
]

# Up to this dimension the convex hull of some thousand points is a matter of seconds.
MAX_HULL_DIM = 6


def separation_distance(points: Tensor) -> Tensor:
    """Smallest angle between two different points, Eq. F.37; differentiable in those two points.

    Args:
        points: (n, d), one direction per row, of any positive length; n >= 2.

    Returns:
        A scalar, in radians.

    >>> separation_distance(torch.eye(3))
    tensor(1.5708)
    """
    check_rows(points, "points", least=2)
    with torch.no_grad():
        u = normalize(points.detach().double())
        best, pair = math.inf, (0, 1)
        for start in range(0, len(u), 1024):  # O(n * 1024) memory
            rows = u[start : start + 1024]
            distance = torch.cdist(rows, u, compute_mode="donot_use_mm_for_euclid_dist")
            distance.diagonal(offset=start).fill_(math.inf)
            nearest = int(distance.argmin())
            i, j = divmod(nearest, len(u))
            if float(distance[i, j]) < best:
                best, pair = float(distance[i, j]), (start + i, j)
    return angle(points[pair[0]], points[pair[1]])


def covering_radius(
    points: Tensor,
    samples: int = 100_000,
    generator: torch.Generator | None = None,
) -> Tensor:
    """Largest angle between any direction and its nearest point, Eq. F.36.

    If some open half space holds no point the answer is exact in every dimension. Otherwise it is
    exact up to d = 6, through the facets of the convex hull, and above that the best of `samples`
    random directions after local refinement: a lower bound. Needs scipy.

    Args:
        points: (n, d), one direction per row, of any positive length.
        samples: random directions tried where the answer is a lower bound.
        generator: source of the random directions.

    Returns:
        A scalar, in radians.

    >>> covering_radius(torch.cat([torch.eye(3), -torch.eye(3)]))  # octahedron: arccos(1/sqrt(3))
    tensor(0.9553)
    """
    check_rows(points, "points", least=1)
    u = normalize(points.detach().double().cpu())
    gap = _distance_to_hull(u)
    if gap > 1e-12:
        # All points lie in one open half space: the antipode of the hull's nearest point.
        radius = math.acos(max(-1.0, -gap))
    elif u.shape[1] <= MAX_HULL_DIM:
        caps = _empty_caps(u)
        radius = float(caps.max()) if caps is not None else math.pi / 2
    elif int(torch.linalg.matrix_rank(u)) < u.shape[1]:
        # A hyperplane holds all points, and the origin is in their hull: its normal.
        radius = math.pi / 2
    else:
        radius = _sampled_covering_radius(u, samples, generator)
    return torch.tensor(radius, dtype=points.dtype, device=points.device)


def hole_radii(points: Tensor) -> Tensor:
    """Euclidean radii rho_i = 2 sin(alpha_i / 2) of the empty caps over the hull's facets (F.9).

    A facet with more than d corners counts once. Needs scipy.

    Args:
        points: (n, d) with d <= 6, spanning R^d, one direction per row.

    Returns:
        One radius per facet, in descending order.

    >>> hole_radii(torch.cat([torch.eye(3), -torch.eye(3)])).shape  # the octahedron's 8 faces
    torch.Size([8])
    """
    check_rows(points, "points", least=1)
    if points.shape[1] > MAX_HULL_DIM:
        raise ValueError(
            f"hole_radii goes through the convex hull, which is practical up to dimension "
            f"{MAX_HULL_DIM}; got points of dimension {points.shape[1]}"
        )
    caps = _empty_caps(normalize(points.detach().double().cpu()))
    if caps is None:
        raise ValueError(
            f"hole_radii expects points whose convex hull has a volume; these {len(points)} points "
            f"lie in a plane of dimension below {points.shape[1]}"
        )
    radii = 2 * torch.sin(caps / 2)
    return radii.sort(descending=True).values.to(points)


def hole_moment(points: Tensor, power: float) -> Tensor:
    """Sum of the hole radii to the given power, Eq. F.38; its power-th root tends to F.39.

    Args:
        points: (n, d) with d <= 6, spanning R^d, one direction per row.
        power: > 0.

    Returns:
        A scalar.
    """
    if not power > 0:
        raise ValueError(f"hole_moment expects power > 0 (Eq. F.38), got {power}")
    return hole_radii(points).pow(power).sum()


def expected_hole_moment(n: int, dim: int, power: float) -> float:
    """Leading term of E[hole_moment] for n uniform random points in R^dim, Lemma 15 (F.43).

    The sphere in R^dim is the dissertation's S^d with d = dim - 1. B_d of Eq. F.41 is taken as
    2/(d+1) kappa_{d^2} / kappa_d^d: with kappa_d squared, as the formula is printed, a random
    polyhedron (d = 2) would have 2n/3 faces instead of Euler's 2n - 4.

    Args:
        n: number of points, >= 1.
        dim: dimension of the space around the sphere, >= 2.
        power: of the radii, >= 0.

    Returns:
        The expectation.

    >>> round(expected_hole_moment(1000, 3, 1e-9))  # power -> 0 counts the facets
    2000
    """
    if n < 1 or dim < 2 or power < 0:
        raise ValueError(f"expected n >= 1, dim >= 2, power >= 0; got {n}, {dim}, {power}")
    d = dim - 1

    def log_kappa(k: int) -> float:
        return math.lgamma((k + 1) / 2) - math.lgamma(k / 2) - math.log(k) - 0.5 * math.log(math.pi)

    log_b = math.log(2 / (d + 1)) + log_kappa(d * d) - d * log_kappa(d)
    ratio = (
        math.lgamma(d + power / d)
        - math.lgamma(d)
        + math.lgamma(n + 1)
        - math.lgamma(n + power / d)
    )
    return math.exp(log_b - power / d * log_kappa(d) + ratio)


def _distance_to_hull(u: Tensor) -> float:
    """Distance from the origin to the convex hull of the rows, 0 if inside.

    Least-distance programming as a non-negative least-squares problem (Lawson and Hanson, ch. 23).
    """
    optimize = require("scipy.optimize", extra="data")
    lifted = torch.cat([u.T, torch.ones(1, len(u), dtype=u.dtype)]).numpy()
    target = torch.zeros(len(lifted), dtype=u.dtype).numpy()
    target[-1] = 1.0
    _, residual = optimize.nnls(lifted, target)
    # With r the residual norm, the hull is at distance r / sqrt(1 - r^2); r = 0 means inside.
    return float(residual / math.sqrt(max(1 - residual**2, 1e-300)))


def _empty_caps(u: Tensor) -> Tensor | None:
    """Geodesic radius of the cap over each facet of the hull; None if the hull is flat."""
    spatial = require("scipy.spatial", extra="data")
    if len(u) <= u.shape[1]:
        return None
    if u.shape[1] == 1:  # both directions there are, each a facet of its own
        return torch.zeros(2, dtype=u.dtype) if bool(u.min() < 0 < u.max()) else None
    try:
        hull = spatial.ConvexHull(u.numpy())
    except spatial.QhullError:
        return None
    equations = torch.from_numpy(hull.equations)
    # Simplices of one facet share its plane n.x = -offset, and so the cap around n.
    planes = torch.unique((equations * 1e9).round(), dim=0) / 1e9
    offsets: Tensor = planes[:, -1]
    return (-offsets).clamp(-1, 1).acos()


def _sampled_covering_radius(u: Tensor, samples: int, generator: torch.Generator | None) -> float:
    best_directions, best_values = [], []
    for start in range(0, samples, 4096):
        z = uniform_on_sphere(min(4096, samples - start), u.shape[1], generator, u.dtype)
        value, index = (z @ u.T).amax(1).topk(min(16, len(z)), largest=False)
        best_values.append(value)
        best_directions.append(z[index])
    keep = torch.cat(best_values).topk(min(64, sum(map(len, best_values))), largest=False).indices
    z = torch.cat(best_directions)[keep]
    # Slide away from the nearest points; log-sum-exp sharpens from a smooth to the true maximum.
    for sharpness in (20.0, 100.0, 500.0, 2500.0, 12500.0):
        for _ in range(60):
            pull = torch.softmax(sharpness * (z @ u.T), dim=1) @ u
            pull -= (pull * z).sum(1, keepdim=True) * z
            z = normalize(z - pull / (1 + sharpness / 10))
            value = (z @ u.T).amax(1)
    best_values.append(value)
    return math.acos(max(-1.0, min(1.0, float(torch.cat(best_values).min()))))
