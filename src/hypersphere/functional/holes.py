"""Holes between directions as losses: polarization (MHP) and covering (MHC).

Both are problems of two levels (Liu et al., "Learning with Hyperspherical Uniformity", AISTATS
2021): an inner one over a direction v, the place farthest from the neurons, and an outer one over
the neurons. The inner one is solved first, without a graph, and the gradient of the outer one is
taken at that v held fixed, which is right at the inner optimum (Danskin). The paper follows one v
by gradient steps; here several points descend at once with step lengths of their own, and
``points`` passes the ones of the last call on.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

from ._kernels.autograd import full_precision
from ._kernels.energy.potential import Potential
from ._kernels.spreading.cosines import in_range, point_cosines
from ._kernels.spreading.holes import Objective, deepest_share, find_holes, starting_points
from ._kernels.spreading.row_blocks import as_sets
from .angles import normalize
from .energy import check_kernel, distance_floor

__all__ = ["covering", "covering_points", "polarization", "polarization_points"]

COUNT, STEPS = 32, 30


def polarization(
    weight: Tensor,
    s: float = 2.0,
    half_space: bool = False,
    distance: str = "euclidean",
    points: Tensor | None = None,
    sets: bool = False,
) -> Tensor:
    r"""Minus the smallest potential of the neurons on the sphere, to be minimized:

    .. math:: -\min_{|v| = 1} \frac{1}{N} \sum_i f_s(|v - \hat w_i|), \quad f_s(z) = z^{-s},
        \quad f_0(z) = \log z^{-1}

    Neurons move towards the places where they are missed most (maximum hyperspherical
    polarization).

    Args:
        weight: (N, ...), one neuron or feature per row, N >= 2; (sets, N, d) with ``sets=True``.
            Lengths do not matter, and a zero row counts as orthogonal to everything.
        s: power of the Riesz kernel, >= 0; 0 is the logarithm.
        half_space: the potential of the 2N directions {w, -w}.
        distance: "euclidean", or "geodesic" for the angle in radians.
        points: (P, d), or (sets, P, d), where to look for the minimum, for example from
            :func:`polarization_points`. Default: 32 points are searched anew.
        sets: whether the first dimension counts separate sets.

    Returns:
        A scalar, or (sets,) with ``sets=True``; in float32 or wider. It is an upper bound of the
        value at the exact inner minimum. Distances are floored at :func:`distance_floor`, as in the
        energy.

    >>> triangle = torch.tensor([[1.0, 0.0], [-0.5, 0.75**0.5], [-0.5, -(0.75**0.5)]])
    >>> polarization(triangle)  # opposite to a corner: -(1 + 1 + 1 / 4) / 3
    tensor(-0.7500)
    """
    objective = _potential(s, half_space, distance)
    with full_precision(weight.device.type):
        w = in_range(as_sets(weight, sets, "polarization"))
        v = _given(points, w, sets)
        v = _search(w, objective, COUNT, STEPS, None, None) if v is None else v
        value = _value(w, v, objective, half_space)
    return -value if sets else -value[0]


def covering(
    weight: Tensor,
    sharpness: float = 10.0,
    half_space: bool = False,
    points: Tensor | None = None,
    sets: bool = False,
) -> Tensor:
    r"""A smooth form of the largest squared distance from a direction to its nearest neuron:

    .. math:: \max_{|v| = 1} -\frac{1}{\gamma} \log \frac{1}{N}
        \sum_i \exp(-\gamma |v - \hat w_i|^2)

    Minimizing it shrinks the largest hole (minimum hyperspherical covering). For a large sharpness
    it tends to 4 sin^2(r / 2), r the covering radius; see :func:`covering_radius` for that.

    Args:
        weight: (N, ...), one neuron or feature per row, N >= 2; (sets, N, d) with ``sets=True``.
            Lengths do not matter, and a zero row counts as orthogonal to everything.
        sharpness: gamma > 0. The value exceeds the squared distance by at most log(N) / gamma.
        half_space: mirror images -w cover as well.
        points: (P, d), or (sets, P, d), where to look for the maximum, for example from
            :func:`covering_points`. Default: 32 points are searched anew.
        sets: whether the first dimension counts separate sets.

    Returns:
        A scalar, or (sets,) with ``sets=True``; in float32 or wider. It is a lower bound of the
        value at the exact inner maximum. Equal neurons are no special case.

    >>> octahedron = torch.cat([torch.eye(3), -torch.eye(3)])
    >>> covering(octahedron, sharpness=1000.0)  # 2 - 2 / sqrt(3), and log(2) / 1000
    tensor(0.8460)
    """
    objective = _log_sum(sharpness, half_space)
    with full_precision(weight.device.type):
        w = in_range(as_sets(weight, sets, "covering"))
        v = _given(points, w, sets)
        v = _search(w, objective, COUNT, STEPS, None, None) if v is None else v
        # -log(mean exp(-g (2 - 2 cos))) / g, with F = log(mean exp(2 g cos)) / 2g
        value = 2 - 2 * _value(w, v, objective, half_space)
    return value if sets else value[0]


def polarization_points(
    weight: Tensor,
    s: float = 2.0,
    half_space: bool = False,
    distance: str = "euclidean",
    count: int = COUNT,
    steps: int = STEPS,
    start: Tensor | None = None,
    generator: torch.Generator | None = None,
    sets: bool = False,
) -> Tensor:
    """Unit vectors at local minima of the potential of the neurons, the lowest first.

    Args:
        weight: (N, ...), one neuron per row; (sets, N, d) with ``sets=True``.
        s: power of the Riesz kernel; see :func:`polarization`.
        half_space: the potential of the 2N directions {w, -w}.
        distance: "euclidean" or "geodesic".
        count: number of points that descend, P.
        steps: number of gradient steps.
        start: (p, d), or (sets, p, d), points to begin with, for example those of the last call.
            The others begin opposite to the mean direction and at random.
        generator: of the random points. Default: the same ones in each call.
        sets: whether the first dimension counts separate sets.

    Returns:
        (P, d), or (sets, P, d) with ``sets=True``, without a graph.

    >>> polarization_points(torch.tensor([[1.0, 0.0], [1.0, 0.0]]), count=1)
    tensor([[-1., -0.]])
    """
    objective = _potential(s, half_space, distance)
    return _points(weight, objective, "polarization_points", count, steps, start, generator, sets)


def covering_points(
    weight: Tensor,
    sharpness: float = 10.0,
    half_space: bool = False,
    count: int = COUNT,
    steps: int = STEPS,
    start: Tensor | None = None,
    generator: torch.Generator | None = None,
    sets: bool = False,
) -> Tensor:
    """Unit vectors in the holes between the neurons, the largest hole first.

    Args:
        weight: (N, ...), one neuron per row; (sets, N, d) with ``sets=True``.
        sharpness: gamma of :func:`covering`.
        half_space: mirror images -w cover as well.
        count: number of points that descend, P.
        steps: number of gradient steps.
        start: (p, d), or (sets, p, d), points to begin with, for example those of the last call.
            The others begin opposite to the mean direction and at random.
        generator: of the random points. Default: the same ones in each call.
        sets: whether the first dimension counts separate sets.

    Returns:
        (P, d), or (sets, P, d) with ``sets=True``, without a graph.

    >>> covering_points(torch.tensor([[1.0, 0.0], [1.0, 0.0]]), count=1)
    tensor([[-1., -0.]])
    """
    objective = _log_sum(sharpness, half_space)
    return _points(weight, objective, "covering_points", count, steps, start, generator, sets)


def _points(
    weight: Tensor,
    objective: Objective,
    name: str,
    count: int,
    steps: int,
    start: Tensor | None,
    generator: torch.Generator | None,
    sets: bool,
) -> Tensor:
    if count < 1 or steps < 0:
        raise ValueError(f"{name} expects count >= 1 and steps >= 0, got {count} and {steps}")
    with full_precision(weight.device.type):
        w = in_range(as_sets(weight.detach(), sets, name))
        v = _search(w, objective, count, steps, _given(start, w, sets), generator)
    return v if sets else v[0]


def _search(
    w: Tensor,
    objective: Objective,
    count: int,
    steps: int,
    start: Tensor | None,
    generator: torch.Generator | None,
) -> Tensor:
    w = w.detach()
    if generator is None:
        generator = torch.Generator().manual_seed(0)
    return find_holes(w, starting_points(w, count, start, generator), objective, steps)


def _given(points: Tensor | None, w: Tensor, sets: bool) -> Tensor | None:
    """Points of the user as (B, P, d), or None."""
    if points is None:
        return None
    v = points if sets else points[None]
    if v.ndim != 3 or v.shape[1] < 1 or v.shape[::2] != w.shape[::2]:
        expected = f"({len(w)}, P, {w.shape[2]})" if sets else f"(P, {w.shape[2]})"
        raise ValueError(f"expected points {expected}, P >= 1; got {tuple(points.shape)}")
    return normalize(v.detach().to(w))


def _value(w: Tensor, v: Tensor, objective: Objective, half_space: bool) -> Tensor:
    """The smallest F over the points, with the mean gradient of equal ones: (B,)."""
    value, _ = objective(point_cosines(w, v))
    shared = (value * deepest_share(value.detach(), v, half_space)).sum(1)
    return shared + (value.amin(1) - shared).detach()


def _potential(s: float, half_space: bool, distance: str) -> Objective:
    """F = mean f_s, by the kernel of the energy."""
    check_kernel(s, distance)

    def objective(cos: Tensor) -> tuple[Tensor, Tensor]:
        floor = distance_floor(s, cos.dtype)
        potential = Potential(float(s), distance == "geodesic", half_space, floor)
        count = cos.shape[-1] * (2 if half_space else 1)
        if torch.is_grad_enabled():
            return potential.energy(cos).sum(-1) / count, cos
        value, slope, factor = potential.energy_and_slope(cos)
        return value.sum(-1) / count, slope * (factor / count)

    return objective


def _log_sum(sharpness: float, half_space: bool) -> Objective:
    """F = log(mean exp(2 g cos)) / 2g, and over cosines of both signs in the half space."""
    if not 0 < sharpness < math.inf:
        raise ValueError(f"sharpness must be a finite number > 0, got {sharpness}")

    def objective(cos: Tensor) -> tuple[Tensor, Tensor]:
        both = torch.cat([cos, -cos], -1) if half_space else cos
        scaled = 2 * sharpness * both
        value = (torch.logsumexp(scaled, -1) - math.log(both.shape[-1])) / (2 * sharpness)
        share = torch.softmax(scaled, -1)
        if half_space:
            share = share[..., : cos.shape[-1]] - share[..., cos.shape[-1] :]
        return value, share

    return objective
