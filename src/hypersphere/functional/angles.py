"""Angles between vectors, and how a set of directions covers the sphere.

Everything else in the package stands on these functions. Angles are in radians. Inputs in float16
or bfloat16 are computed in float32 or wider and returned in their own type. A zero vector has no
direction: it stays zero when normalized, its cosine with anything is 0 and its angle with anything
pi / 2, with finite gradients.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

from .._optional import require

__all__ = [
    "angle",
    "arccos",
    "cos_multiple",
    "cosine",
    "covering_radius",
    "expected_hole_moment",
    "geodesic_distance",
    "hole_moment",
    "hole_radii",
    "normalize",
    "pairwise_angle",
    "pairwise_cosine",
    "row_norm",
    "separation_distance",
    "uniform_on_sphere",
]

# Up to this dimension the convex hull of some thousand points is a matter of seconds.
MAX_HULL_DIM = 6


def _widen(x: Tensor) -> Tensor:
    """float32 for the 16-bit types: squares and arc cosines need the digits."""
    if not x.is_floating_point():
        raise TypeError(
            f"expected a floating-point tensor, got {x.dtype}; convert it with .float()"
        )
    return x.float() if x.dtype in (torch.float16, torch.bfloat16) else x


def _double(x: Tensor) -> Tensor:
    """float64 where the device has it: rounded unit vectors blur angles below their own eps."""
    return _widen(x) if x.device.type == "mps" else _widen(x).double()


def _scaled_norm(x: Tensor, dim: int) -> tuple[Tensor, Tensor, Tensor]:
    """x / scale, its norm (1 where x is zero) and the scale, with no overflow or underflow.

    The scale is the largest entry, as a constant: norm and direction do not depend on it, so
    neither do their gradients.
    """
    largest = x.detach().abs().amax(dim, keepdim=True)
    scale = torch.where(largest > 0, largest, torch.ones_like(largest))
    scaled = x / scale
    squares = scaled.square().sum(dim, keepdim=True)
    return scaled, torch.where(squares > 0, squares, torch.ones_like(squares)).sqrt(), scale


def row_norm(x: Tensor, dim: int = -1, keepdim: bool = False) -> Tensor:
    """Euclidean norm |x| along `dim`, with gradient 0 (not NaN) at the zero vector.

    >>> row_norm(torch.tensor([[3.0, 4.0], [0.0, 0.0]]))
    tensor([5., 0.])
    """
    wide = _widen(x)
    _, norm, scale = _scaled_norm(wide, dim)
    nonzero = (wide.detach() != 0).any(dim, keepdim=True)
    result = (norm * scale * nonzero).to(x.dtype)
    return result if keepdim else result.squeeze(dim)


def normalize(x: Tensor, dim: int = -1) -> Tensor:
    """x / |x| along `dim`; zero vectors stay zero, and no length is too small or too large.

    >>> normalize(torch.tensor([[3e-30, 4e-30], [0.0, 0.0]]))
    tensor([[0.6000, 0.8000],
            [0.0000, 0.0000]])
    """
    scaled, norm, _ = _scaled_norm(_widen(x), dim)
    return (scaled / norm).to(x.dtype)


def cosine(x: Tensor, y: Tensor, dim: int = -1) -> Tensor:
    """cos(theta) between corresponding vectors, in [-1, 1]; shapes broadcast.

    >>> cosine(torch.tensor([1.0, 0.0]), torch.tensor([[2.0, 2.0], [0.0, 0.0]]))
    tensor([0.7071, 0.0000])
    """
    _same_length(x, y, dim)
    u, v = normalize(_widen(x), dim), normalize(_widen(y), dim)
    return (u * v).sum(dim).clamp(-1, 1).to(torch.promote_types(x.dtype, y.dtype))


def pairwise_cosine(x: Tensor, y: Tensor | None = None) -> Tensor:
    """cos(theta) of every row of x (n, d) with every row of y (m, d): (n, m); y defaults to x."""
    y = x if y is None else y
    _rows(x, "x")
    _rows(y, "y")
    _same_length(x, y, -1)
    u, v = normalize(_widen(x)), normalize(_widen(y))
    return (u @ v.T).clamp(-1, 1).to(torch.promote_types(x.dtype, y.dtype))


class _Arccos(torch.autograd.Function):
    @staticmethod
    def forward(cos: Tensor) -> Tensor:
        return cos.clamp(-1, 1).acos()

    @staticmethod
    def setup_context(ctx, inputs, output) -> None:  # type: ignore[no-untyped-def]
        ctx.save_for_backward(inputs[0])

    @staticmethod
    def backward(ctx, grad: Tensor) -> Tensor:  # type: ignore[no-untyped-def, override]
        (cos,) = ctx.saved_tensors
        # Note [Gradient of arccos at the ends]: -1 / sin(theta) is infinite at theta = 0 and pi.
        # There sin^2(theta) is floored at the rounding error of cos, below which it is noise.
        return -grad * (1 - cos * cos).clamp_min(torch.finfo(cos.dtype).eps).rsqrt()


def arccos(cos: Tensor) -> Tensor:
    """theta = arccos(cos) in [0, pi], exact to float precision, with a finite gradient at +-1.

    Cosines beyond +-1 by rounding count as +-1. See Note [Gradient of arccos at the ends]. From
    vectors rather than cosines, :func:`angle` also resolves angles below sqrt(eps).

    >>> c = torch.tensor([-1.0, 0.0, 1.0], requires_grad=True)
    >>> arccos(c).sum().backward()
    >>> c.grad.isfinite().all()
    tensor(True)
    """
    return _Arccos.apply(_widen(cos)).to(cos.dtype)


def _angle_from_chords(minus: Tensor, plus: Tensor) -> Tensor:
    """2 atan2(|u - v|, |u + v|): accurate where arccos(u.v) loses half the digits."""
    undefined = (minus == 0) & (plus == 0)  # two zero vectors
    one = torch.ones_like(minus)
    return 2 * torch.atan2(torch.where(undefined, one, minus), torch.where(undefined, one, plus))


def angle(x: Tensor, y: Tensor, dim: int = -1) -> Tensor:
    """Angle between corresponding vectors, in [0, pi]; exact however small or close to pi it is.

    Computed in float64 inside, so a float32 result has all its digits down to 1e-9 rad.

    >>> angle(torch.tensor([1.0, 0.0]), torch.tensor([1.0, 1e-6]))
    tensor(1.0000e-06)
    """
    _same_length(x, y, dim)
    u, v = normalize(_double(x), dim), normalize(_double(y), dim)
    theta = _angle_from_chords(row_norm(u - v, dim), row_norm(u + v, dim))
    return theta.to(torch.promote_types(x.dtype, y.dtype))


def pairwise_angle(x: Tensor, y: Tensor | None = None) -> Tensor:
    """Angle between every row of x (n, d) and every row of y (m, d): (n, m); y defaults to x."""
    y = x if y is None else y
    _rows(x, "x")
    _rows(y, "y")
    _same_length(x, y, -1)
    u, v = normalize(_double(x)), normalize(_double(y))
    mode = "donot_use_mm_for_euclid_dist"  # the matrix-product form loses small distances
    theta = _angle_from_chords(
        torch.cdist(u, v, compute_mode=mode), torch.cdist(u, -v, compute_mode=mode)
    )
    return theta.to(torch.promote_types(x.dtype, y.dtype))


def geodesic_distance(x: Tensor, y: Tensor, dim: int = -1) -> Tensor:
    """Length of the shortest arc between x/|x| and y/|y| on the unit sphere, which is the angle."""
    return angle(x, y, dim)


def cos_multiple(cos: Tensor, m: int) -> Tensor:
    """cos(m theta) from cos(theta), by T_m = 2 cos(theta) T_{m-1} - T_{m-2} (the polynomial 2.7).

    >>> cos_multiple(torch.tensor(0.5), 3)  # theta = pi / 3
    tensor(-1.)
    """
    if not isinstance(m, int) or isinstance(m, bool) or m < 0:
        raise ValueError(f"cos_multiple expects an integer m >= 0, got {m!r}")
    wide = _widen(cos)
    before, now = torch.ones_like(wide), wide
    if m == 0:
        return before.to(cos.dtype)
    for _ in range(m - 1):
        before, now = now, 2 * wide * now - before
    return now.to(cos.dtype)


def uniform_on_sphere(
    n: int,
    dim: int,
    generator: torch.Generator | None = None,
    dtype: torch.dtype | None = None,
    device: torch.device | str | None = None,
) -> Tensor:
    """n points drawn independently and uniformly on the unit sphere of R^dim: (n, dim).

    >>> uniform_on_sphere(3, 5).norm(dim=1).round(decimals=5)
    tensor([1., 1., 1.])
    """
    if n < 0 or dim < 1:
        raise ValueError(f"uniform_on_sphere expects n >= 0 and dim >= 1, got n={n}, dim={dim}")
    dtype = dtype or torch.get_default_dtype()
    wide = torch.float32 if dtype in (torch.float16, torch.bfloat16) else dtype
    return normalize(torch.randn(n, dim, generator=generator, dtype=wide, device=device)).to(dtype)


# --- how a configuration of points covers the sphere (F.9) -------------------------------------


def separation_distance(points: Tensor) -> Tensor:
    """Smallest angle between two different points, Eq. F.37; differentiable in those two points.

    points: (n, d), one direction a row, any positive length; n >= 2.

    >>> separation_distance(torch.eye(3))
    tensor(1.5708)
    """
    _rows(points, "points", least=2)
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

    points: (n, d), one direction a row. If some open half space holds no point the answer is exact
    in every dimension. Otherwise it is exact up to d = 6, through the facets of the convex hull,
    and above that the best of `samples` random directions after local refinement: a lower bound.
    Needs scipy.

    >>> covering_radius(torch.cat([torch.eye(3), -torch.eye(3)]))  # octahedron: arccos(1/sqrt(3))
    tensor(0.9553)
    """
    _rows(points, "points", least=1)
    u = normalize(points.detach().double().cpu())
    gap = _distance_to_hull(u)
    if (
        gap > 1e-12
    ):  # all points lie in one open half space: the antipode of the hull's nearest point
        radius = math.acos(max(-1.0, -gap))
    elif u.shape[1] <= MAX_HULL_DIM:
        caps = _empty_caps(u)
        radius = float(caps.max()) if caps is not None else math.pi / 2
    else:
        radius = _sampled_covering_radius(u, samples, generator)
    return torch.tensor(radius, dtype=points.dtype, device=points.device)


def hole_radii(points: Tensor) -> Tensor:
    """Euclidean radii rho_i = 2 sin(alpha_i / 2) of the empty caps over the hull's facets (F.9).

    points: (n, d) with d <= 6, spanning R^d. A facet with more than d corners counts once.
    Returns one radius a facet, in descending order. Needs scipy.

    >>> hole_radii(torch.cat([torch.eye(3), -torch.eye(3)])).shape  # the octahedron's 8 faces
    torch.Size([8])
    """
    _rows(points, "points", least=1)
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
    """Sum of the hole radii to the given power, Eq. F.38; its power-th root tends to F.39."""
    if not power > 0:
        raise ValueError(f"hole_moment expects power > 0 (Eq. F.38), got {power}")
    return hole_radii(points).pow(power).sum()


def expected_hole_moment(n: int, dim: int, power: float) -> float:
    """Leading term of E[hole_moment] for n uniform random points in R^dim, Lemma 15 (F.43).

    The sphere in R^dim is the text's S^d with d = dim - 1. B_d of Eq. F.41 is taken as
    2/(d+1) kappa_{d^2} / kappa_d^d: with kappa_d squared, as the formula is printed, a random
    polyhedron (d = 2) would have 2n/3 faces instead of Euler's 2n - 4.

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
    if u.shape[1] == 1:
        return torch.tensor([math.pi / 2, math.pi / 2], dtype=u.dtype)
    try:
        hull = spatial.ConvexHull(u.numpy())
    except spatial.QhullError:
        return None
    equations = torch.from_numpy(hull.equations)
    # Simplices of one facet share its plane n.x = -offset, and so the cap around n.
    planes = torch.unique((equations * 1e9).round(), dim=0) / 1e9
    return (-planes[:, -1]).clamp(-1, 1).acos()


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


def _rows(x: Tensor, name: str, least: int = 0) -> None:
    if x.ndim != 2 or x.shape[0] < least or x.shape[1] < 1:
        at_least = f" with n >= {least}" if least else ""
        raise ValueError(f"expected {name} of shape (n, d){at_least}, got {tuple(x.shape)}")


def _same_length(x: Tensor, y: Tensor, dim: int) -> None:
    if x.ndim == 0 or y.ndim == 0 or x.shape[dim] != y.shape[dim]:
        raise ValueError(
            f"expected vectors of equal length along dim {dim}, got shapes "
            f"{tuple(x.shape)} and {tuple(y.shape)}"
        )
