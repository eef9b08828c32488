"""Newton's method without a Hessian matrix, for configurations of many points.

The direction v of H v = -grad comes from conjugate gradients, which need products with H only:

    (H v)_i = sum_j c'_ij v_j + sum_j c''_ij (x_j . v_i + x_i . v_j) x_j - (x_i . grad_i) v_i,

projected onto the tangent space of x_i; c' and c'' are the derivatives of the pair potential in the
cosine (see newton.py). Each product costs two matrix products with (n, n), by blocks of rows.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

import torch
from torch import Tensor

from ...angles import normalize
from .pair_energy import BLOCK_ENTRIES

__all__ = ["PairDerivatives", "truncated_newton"]

# Cosines (rows, n) and the number of the first row -> c' and c'', zero for a point with itself
PairDerivatives = Callable[[Tensor, int], tuple[Tensor, Tensor]]
# Entries of c' and c'' that are kept between products; above they are computed again.
KEPT_ENTRIES = 2**24


def truncated_newton(
    x: Tensor,
    derivatives: Callable[[Tensor], PairDerivatives],
    energy: Callable[[Tensor], Tensor],
    rank_one: float = 0.0,
    iterations: int = 200,
    tolerance: float = 1e-13,
) -> tuple[Tensor, float]:
    """A minimum (n, d) near x, and the norm of what is left of its gradient.

    derivatives: x -> the derivatives of the pair potential at x.
    energy: F, whose fall is asked for as long as it has digits; then the gradient has to fall.
    rank_one: a, if the Hessian has a further term -a grad grad^T.
    tolerance: of the gradient relative to the forces in it, below which it is left as it is.
    """
    value = float(energy(x))
    gradient, forces, product = _linearize(x, derivatives(x), rank_one)
    rest = float(gradient.norm()) / forces
    for _ in range(iterations):
        if rest < tolerance:
            break
        move = _direction(gradient, product, min(0.1, rest**0.5))
        longest = float(move.norm(dim=1).max().clamp_min(1e-300))
        move *= min(1.0, 0.5 * len(x) ** (-1 / (x.shape[1] - 1)) / longest)
        slope = float((move * gradient).sum())
        for _ in range(8):
            trial = normalize(x + move)
            reached = float(energy(trial))
            # -slope below the rounding of F: F cannot tell, the gradient does
            if reached <= value + 1e-4 * slope or -slope < 1e-13 * abs(value):
                break
            move, slope = move / 4, slope / 4
        else:
            break
        new = _linearize(trial, derivatives(trial), rank_one)
        new_rest = float(new[0].norm()) / new[1]
        if not (reached < value or new_rest < 0.9 * rest):
            break
        x, value, rest = trial, reached, new_rest
        gradient, _, product = new
    return x, float(gradient.norm())


def _linearize(
    x: Tensor, derivatives: PairDerivatives, rank_one: float
) -> tuple[Tensor, float, Callable[[Tensor], Tensor]]:
    """The tangent gradient, the size of the forces in it, and the product with the Hessian."""
    n = len(x)
    step = max(1, BLOCK_ENTRIES // n)
    kept: list[tuple[Tensor, Tensor]] = []

    def blocks() -> Iterator[tuple[int, Tensor, Tensor]]:
        if kept:
            yield from ((b * step, *pair) for b, pair in enumerate(kept))
            return
        for start in range(0, n, step):
            first, second = derivatives(x[start : start + step] @ x.T, start)
            if n * n <= KEPT_ENTRIES:
                found.append((first, second))
            yield start, first, second

    found: list[tuple[Tensor, Tensor]] = []
    total = torch.cat([first @ x for _, first, _ in blocks()])
    kept = found
    radial = (total * x).sum(1, keepdim=True)
    gradient = total - radial * x

    def product(v: Tensor) -> Tensor:
        parts = []
        for start, first, second in blocks():
            rows = slice(start, start + step)
            change = v[rows] @ x.T + x[rows] @ v.T
            parts.append(first @ v + (second * change) @ x)
        result = torch.cat(parts) - radial * v
        result -= (result * x).sum(1, keepdim=True) * x
        return result - rank_one * float((gradient * v).sum()) * gradient if rank_one else result

    return gradient, float(total.norm().clamp_min(1e-300)), product


def _direction(gradient: Tensor, product: Callable[[Tensor], Tensor], accuracy: float) -> Tensor:
    """Conjugate gradients for H v = -grad; at a direction of negative curvature they stop."""
    v = torch.zeros_like(gradient)
    residual = -gradient
    search = residual.clone()
    square = float(residual.square().sum())
    goal = accuracy**2 * square
    for iteration in range(500):
        image = product(search)
        curvature = float((search * image).sum())
        if curvature <= 1e-14 * float(search.norm()) * float(image.norm()):
            return v if iteration else residual
        alpha = square / curvature
        v = v + alpha * search
        residual = residual - alpha * image
        new_square = float(residual.square().sum())
        if new_square <= goal:
            break
        search = residual + (new_square / square) * search
        square = new_square
    return v
