"""Point configurations of minimum energy (5.3.7): Thomson, Whyte and Tammes problems.

The energy landscape has exponentially many minima, so the search is a crowd: random starts descend
together by a batched L-BFGS in float64, and the best are
finished by Newton steps on the sphere, which reach machine precision in a few iterations.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from ._kernels.energy.potential import Potential, distance_floor
from .angles import normalize, uniform_on_sphere
from .energy import _value_and_gradient

__all__ = ["minimize_energy"]

Objective = Callable[[Tensor], tuple[Tensor, Tensor]]  # (R, n, d) -> (R,), (R, n, d)

# Coordinates beyond which the dense Hessian of the finish would cost more than it gives.
MAX_NEWTON = 1500
# Powers above which d^-s is handled by its logarithm, in `steep.py`.
STEEP = 12.0


def minimize_energy(
    n: int,
    dim: int,
    s: float = 1.0,
    half_space: bool = False,
    restarts: int | None = None,
    seed: int = 0,
) -> Tensor:
    """n unit vectors in R^dim of the lowest energy E_s found (Eq. 5.6): float64, (n, dim).

    Args:
        s: 1 is Thomson's problem (harmonic, Coulomb), 0 Whyte's (logarithmic), math.inf Tammes'
            (the largest smallest distance, reached by raising s and then polishing the contacts).
        half_space: spread the 2n points {x, -x}, i.e. n lines instead of n points.
        restarts: random starts; by default as many as the published optima on the 2-sphere up to
            n = 100 needed, fewer for large problems.
        seed: the same seed gives the same points.

    >>> x = minimize_energy(4, 3)
    >>> (x @ x.T)[0, 1:]  # the regular tetrahedron
    tensor([-0.3333, -0.3333, -0.3333], dtype=torch.float64)
    """
    if n < 1 or dim < 1:
        raise ValueError(f"minimize_energy expects n >= 1 points in dim >= 1, got n={n}, dim={dim}")
    if not s >= 0:
        raise ValueError(f"minimize_energy expects s >= 0 (math.inf for Tammes), got s={s}")
    if restarts is not None and restarts < 1:
        raise ValueError(f"restarts must be at least 1, got {restarts}")
    if dim == 1 and n > (1 if half_space else 2):
        raise ValueError(f"a line has only two directions: {n} points need dim >= 2")
    generator = torch.Generator().manual_seed(seed)
    count = restarts or _default_restarts(n, dim, s)
    start = uniform_on_sphere(count * n, dim, generator, torch.float64).view(count, n, dim)
    if n == 1 or dim == 1:
        return start[0] if n == 1 else torch.tensor([[1.0], [-1.0]], dtype=torch.float64)
    if s > STEEP:
        from ._kernels.energy.points_large_s import minimize_steep

        return minimize_steep(start, s, half_space)
    objective = riesz(s, half_space)
    crowd, energy = descend(objective, start)
    finished = torch.stack([newton(x, s, half_space) for x in crowd[energy.argsort()[:2]]])
    return finished[int(objective(finished)[0].argmin())]


def _default_restarts(n: int, dim: int, s: float) -> int:
    # On the 2-sphere at least one start in 20 ends in the best known Thomson configuration for each
    # n <= 100; packings have more and deeper wrong basins.
    crowd = 100 + 2 * n if s > STEEP else 20 + 3 * n // 2
    affordable = int(1.5e7 / (n * n * dim))  # keeps a thousand points within a minute
    return max(1, min(crowd, affordable))


def riesz(s: float, half_space: bool) -> Objective:
    """E_s and its gradient for a crowd of configurations, by the kernel of `energy.py`."""
    potential = Potential(float(s), False, half_space, distance_floor(s, torch.float64))

    def objective(x: Tensor) -> tuple[Tensor, Tensor]:
        # A few configurations at a time: their cosines stay in the cache.
        some = max(1, 2**16 // x.shape[1] ** 2)
        parts = [_value_and_gradient(part, None, potential, True) for part in x.split(some)]
        return torch.cat([value for value, _ in parts]), torch.cat(
            [g for _, g in parts if g is not None]
        )

    return objective


def descend(
    objective: Objective,
    x: Tensor,
    iterations: int = 600,
    memory: int = 10,
    tolerance: float = 1e-11,
) -> tuple[Tensor, Tensor]:
    """L-BFGS for all configurations of a crowd (R, n, d) at once; each stops on its own.

    The energy ignores lengths, so its gradient is tangent and no constraint is needed.
    """
    final, energies = x.clone(), x.new_zeros(len(x))
    index = torch.arange(len(x))
    value, gradient = objective(x)
    steps: list[Tensor] = []
    changes: list[Tensor] = []
    quiet = torch.zeros(len(x), dtype=torch.long)
    for _ in range(iterations):
        direction = _two_loop(gradient, steps, changes)
        slope = (direction * gradient).sum((1, 2))
        lost = slope >= 0
        if bool(lost.any()):
            direction[lost] = -gradient[lost]
            slope = (direction * gradient).sum((1, 2))
        if not steps:  # no scale yet: move a fraction of the typical spacing
            direction = direction / direction.norm(dim=-1).amax(-1)[:, None, None]
            direction *= 0.3 * x.shape[1] ** (-1 / (x.shape[2] - 1))
            slope = (direction * gradient).sum((1, 2))
        new, new_value, new_gradient = _backtrack(objective, x, value, gradient, direction, slope)
        steps.append(new - x)
        changes.append(new_gradient - gradient)
        steps, changes = steps[-memory:], changes[-memory:]
        small = value - new_value <= tolerance * new_value.abs().clamp_min(1e-3)
        quiet = torch.where(small, quiet + 1, 0)
        x, value, gradient = new, new_value, new_gradient
        done = quiet >= 3
        if bool(done.any()):
            final[index[done]], energies[index[done]] = x[done], value[done]
            keep = ~done
            if not bool(keep.any()):
                return normalize(final), energies
            index, x, value, gradient, quiet = (t[keep] for t in (index, x, value, gradient, quiet))
            steps, changes = [t[keep] for t in steps], [t[keep] for t in changes]
    final[index], energies[index] = x, value
    return normalize(final), energies


def _two_loop(gradient: Tensor, steps: list[Tensor], changes: list[Tensor]) -> Tensor:
    """-H gradient by the L-BFGS recursion, a row a configuration; bad pairs count 0."""
    q = -gradient.flatten(1)
    pairs = []
    for step, change in zip(steps, changes, strict=True):
        a, b = step.flatten(1), change.flatten(1)
        curvature = (a * b).sum(1)
        usable = curvature > 1e-14 * b.square().sum(1)
        pairs.append((a, b, torch.where(usable, 1 / torch.where(usable, curvature, 1.0), 0.0)))
    alphas = []
    for a, b, rho in reversed(pairs):
        alpha = rho * (a * q).sum(1)
        alphas.append(alpha)
        q = q - alpha[:, None] * b
    if pairs:
        a, b, rho = pairs[-1]
        scale = 1 / (rho * b.square().sum(1)).clamp_min(1e-300)
        q = q * torch.where(rho > 0, scale, 1.0)[:, None]
    for (a, b, rho), alpha in zip(pairs, reversed(alphas), strict=True):
        q = q + (alpha - rho * (b * q).sum(1))[:, None] * a
    return q.view_as(gradient)


def _backtrack(
    objective: Objective,
    x: Tensor,
    value: Tensor,
    gradient: Tensor,
    direction: Tensor,
    slope: Tensor,
) -> tuple[Tensor, Tensor, Tensor]:
    """Halve the step of those that did not go down enough (Armijo); after 12 halvings stay."""
    new = x + direction
    new_value, new_gradient = objective(new)
    factor = 1.0
    for trial in range(12):
        failed = ~(new_value <= value + 1e-4 * factor * slope)
        if not bool(failed.any()):
            break
        factor *= 0.5 if trial else 0.3
        some = x[failed] + factor * direction[failed]
        new[failed] = some
        new_value[failed], new_gradient[failed] = objective(some)
    worse = ~(new_value <= value)
    if bool(worse.any()):
        new[worse], new_value[worse], new_gradient[worse] = x[worse], value[worse], gradient[worse]
    return new, new_value, new_gradient


def newton(x: Tensor, s: float, half_space: bool, iterations: int = 30) -> Tensor:
    """Second-order finish of one configuration (n, d) at power s; see :func:`newton_step`.

    Above 1500 coordinates the L-BFGS result is returned as it is.
    """
    if x.shape[0] * (x.shape[1] - 1) > MAX_NEWTON:
        return x
    objective = riesz(s, half_space)
    value = objective(x[None])[0][0]
    for _ in range(iterations):
        first, second = _pair_derivatives(x @ x.T, s, half_space)
        new = newton_step(x, first, second, lambda y: objective(y[None])[0][0], value)
        if new is None:
            break
        x, value = new
    # The energy has no digits left to fall; the gradient still has.
    for _ in range(4):
        move, slope = newton_direction(x, *_pair_derivatives(x @ x.T, s, half_space))
        trial = normalize(x + move)
        _, new_slope = newton_direction(trial, *_pair_derivatives(trial @ trial.T, s, half_space))
        if not new_slope < slope:
            break
        x = trial
    return x


def newton_step(
    x: Tensor,
    first: Tensor,
    second: Tensor,
    energy: Callable[[Tensor], Tensor],
    value: Tensor,
    rank_one: float = 0.0,
) -> tuple[Tensor, Tensor] | None:
    """A Newton step, shortened until F goes down: the new points and their F, or None."""
    move, _ = newton_direction(x, first, second, rank_one)
    for _ in range(8):
        trial = normalize(x + move)
        reached = energy(trial)
        if bool(reached < value):
            return trial, reached
        move = move / 4
    return None


def newton_direction(
    x: Tensor, first: Tensor, second: Tensor, rank_one: float = 0.0
) -> tuple[Tensor, float]:
    """Newton direction (n, d) on the product of spheres, and the norm of the gradient.

    For F = sum_{i<j} c(g_ij) of the cosines g, with c' = first and c'' = second (n, n), the Hessian
    has blocks c' I + c'' x_j x_i^T between i != j and sum_j c'' x_j x_j^T - (x_i . grad_i) I on the
    diagonal. It is taken in tangent coordinates, n (d - 1) of them; rotations are its kernel and
    stay untouched, and |eigenvalues| are used so that saddles repel. `rank_one` a subtracts
    a grad grad^T from it.
    """
    n, d = x.shape
    gradient = first @ x
    eye = torch.eye(d, dtype=x.dtype)
    blocks = torch.einsum("ij,ja,ib->iajb", second, x, x)
    blocks += first[:, None, :, None] * eye[None, :, None]
    own = torch.einsum("ij,ja,jb->iab", second, x, x)
    own -= (x * gradient).sum(1)[:, None, None] * eye
    blocks[torch.arange(n), :, torch.arange(n), :] = own
    # The trailing d - 1 columns of an orthogonal basis whose first vector is x_i
    basis = torch.linalg.qr(torch.cat([x[:, :, None], eye.expand(n, d, d)], 2)).Q[:, :, 1:]
    size = n * (d - 1)
    hessian = torch.einsum("iap,iajb->ipjb", basis, blocks)
    hessian = torch.einsum("ipjb,jbq->ipjq", hessian, basis).reshape(size, size)
    tangent = torch.einsum("iap,ia->ip", basis, gradient).reshape(size)
    if rank_one:
        hessian -= rank_one * torch.outer(tangent, tangent)
    eigenvalues, vectors = torch.linalg.eigh(hessian)
    curvature = eigenvalues.abs()
    inverse = torch.where(curvature > 1e-12 * curvature.max(), 1 / curvature.clamp_min(1e-300), 0.0)
    step = -(vectors @ (inverse * (vectors.T @ tangent)))
    move = (basis @ step.view(n, d - 1, 1))[..., 0]
    longest = float(move.norm(dim=1).max().clamp_min(1e-300))
    return move * min(1.0, 0.5 * n ** (-1 / (d - 1)) / longest), float(tangent.norm())


def _pair_derivatives(cos: Tensor, s: float, half_space: bool) -> tuple[Tensor, Tensor]:
    """c' and c'' of c(g) = (2 - 2g)^(-s/2), or -log(2 - 2g)/2, both zero on the diagonal."""

    def one_side(g: Tensor) -> tuple[Tensor, Tensor]:
        square = (2 - 2 * g).clamp_min(distance_floor(s, g.dtype) ** 2)
        first = (s or 1.0) * square.pow(-s / 2 - 1)
        return first, (s + 2) * first / square

    first, second = one_side(cos)
    if half_space:
        mirrored = one_side(-cos)
        first, second = first - mirrored[0], second + mirrored[1]
    return first.fill_diagonal_(0), second.fill_diagonal_(0)
