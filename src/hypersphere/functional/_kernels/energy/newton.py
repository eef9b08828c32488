"""Newton's method on the product of spheres, for one point configuration of minimum energy.

For F = sum_{i<j} c(g_ij) of the cosines g = x x^T, with c' = first and c'' = second (n, n):

    gradient  grad_i = sum_j c'_ij x_j,
    Hessian   H_ij   = c'_ij I + c''_ij x_j x_i^T,   i != j,
              H_ii   = sum_j c''_ij x_j x_j^T - (x_i . grad_i) I,

taken in tangent coordinates.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from ...angles import normalize
from .contacts import tangent_bases
from .descent import Objective
from .pair_energy import BLOCK_ENTRIES, value_and_gradient
from .potential import Potential
from .truncated_newton import PairDerivatives, truncated_newton

__all__ = ["MAX_DENSE", "newton", "newton_step", "riesz"]

# Coordinates beyond which the dense Hessian costs more than conjugate gradients do.
MAX_DENSE = 1500


def riesz(potential: Potential) -> Objective:
    """E_s and its gradient for a crowd of configurations (R, n, d)."""

    def objective(x: Tensor) -> tuple[Tensor, Tensor]:
        # A few configurations at a time: their cosines stay in the cache.
        some = max(1, 2**16 // x.shape[1] ** 2)
        parts = [value_and_gradient(part, None, potential, True) for part in torch.split(x, some)]
        values, gradients = zip(*parts, strict=True)
        return torch.cat(values), torch.cat([g for g in gradients if g is not None])

    return objective


def newton(x: Tensor, potential: Potential, iterations: int = 30) -> tuple[Tensor, float]:
    """Second-order finish of one configuration (n, d), and what is left of its gradient.

    The rest is relative to the forces that cancel in it, taken without their directions: in a
    symmetric configuration they may cancel altogether. Up to 1500 coordinates the Hessian is
    formed, above that its products with vectors are.
    """
    objective = riesz(potential)

    def energy(y: Tensor) -> Tensor:
        return objective(y[None])[0][0]

    def rows(y: Tensor) -> PairDerivatives:
        return lambda cos, start: _pair_derivatives(cos, potential, start)

    if x.shape[0] * (x.shape[1] - 1) > MAX_DENSE:
        x, slope = truncated_newton(x, rows, energy)
        return x, slope / _forces(x, potential)
    value = energy(x)
    for _ in range(iterations):
        new = newton_step(x, *_pair_derivatives(x @ x.T, potential), energy, value)
        if new is None:
            break
        x, value = new
    # The energy has no digits left to fall; the gradient still has.
    for _ in range(4):
        move, slope = newton_direction(x, *_pair_derivatives(x @ x.T, potential))
        trial = normalize(x + move)
        _, new_slope = newton_direction(trial, *_pair_derivatives(trial @ trial.T, potential))
        if not new_slope < slope:
            break
        x, slope = trial, new_slope
    return x, slope / _forces(x, potential)


def newton_step(
    x: Tensor,
    first: Tensor,
    second: Tensor,
    energy: Callable[[Tensor], Tensor],
    value: Tensor,
    rank_one: float = 0.0,
) -> tuple[Tensor, Tensor] | None:
    """A Newton step, shortened until F goes down: the new points and their F, or None."""
    move = newton_direction(x, first, second, rank_one)[0]
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
    basis = tangent_bases(x)
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
    move = move * min(1.0, 0.5 * n ** (-1 / (d - 1)) / longest)
    return move, float(tangent.norm())


def _forces(x: Tensor, potential: Potential) -> float:
    """Norm over the points of the sum of the sizes of the forces on each."""
    one_side = potential._replace(half_space=False)
    step = max(1, BLOCK_ENTRIES // len(x))
    sums = []
    for start in range(0, len(x), step):
        cos = x[start : start + step] @ x.T
        sides = (cos, -cos) if potential.half_space else (cos,)
        first = [_pair_derivatives(side, one_side, start)[0].sum(1) for side in sides]
        sums.append(torch.stack(first).sum(0))
    return float(torch.cat(sums).norm().clamp_min(1e-300))


def _pair_derivatives(cos: Tensor, potential: Potential, start: int = 0) -> tuple[Tensor, Tensor]:
    """c' and c'' of c(g) = (2 - 2g)^(-s/2), or -log(2 - 2g)/2, for rows from `start` on.

    Both are zero for a point with itself.
    """
    s = potential.s

    def one_side(g: Tensor) -> tuple[Tensor, Tensor]:
        square = (2 - 2 * g).clamp_min(potential.floor**2)
        first = (s or 1.0) * square.pow(-s / 2 - 1)
        return first, (s + 2) * first / square

    first, second = one_side(cos)
    if potential.half_space:
        mirrored = one_side(-cos)
        first, second = first - mirrored[0], second + mirrored[1]
    for matrix in (first, second):
        matrix.diagonal(offset=start).fill_(0)
    return first, second
