r"""Means of rotations on their group, where they stay rotations.

The average of two rotation matrices is no rotation: halfway between a quarter turn to the left and
one to the right it is the zero matrix. The Karcher mean is the rotation with the least sum of
squared angles to all of them,

.. math::
    \bar R = \arg\min_{X \in SO(d)} \sum_i w_i\, |\log(X^\top R_i)|_F^2,

for two rotations a point on the shortest path between them. Where the R_i commute it is the
log-Euclidean mean, exp(sum w_i log R_i).
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
from torch import Tensor

__all__ = ["inverse_cayley", "rotation_logarithm", "rotation_mean"]

# Note [Eigenvectors of a rotation]
# R is normal, so a cos + b sin of its angles is the spectrum of a Hermitian matrix with the same
# eigenvectors, whose decomposition is stable for repeated eigenvalues. Two different angles can
# have the same value of it; then their eigenvectors mix, the residual shows it, and the next pair
# (a, b) tells them apart.
_PHASES = (0.7, 1.9, 2.6, 0.2)
_RESIDUAL = 1e-9
_MOST_STEPS = 100


def rotation_logarithm(R: Tensor) -> Tensor:
    r"""The skew matrix W of least norm with exp(W) = R, in float64.

    Args:
        R: (..., d, d) rotations: orthogonal, with determinant 1 and no half turn, where the
            shortest way is not unique.

    Returns:
        (..., d, d), skew, float64.

    Raises:
        ValueError: if a matrix is not orthogonal, or has an eigenvalue -1.

    >>> R = torch.tensor([[0.0, -1.0], [1.0, 0.0]])
    >>> rotation_logarithm(R)[1, 0] * 2 / math.pi
    tensor(1.0000, dtype=torch.float64)
    """
    R = _checked(R)
    skew_part = (R - R.mT).to(torch.complex128) / 2j  # V sin(theta) V^H
    best, best_residual = R, math.inf
    for phase in _PHASES:  # Note [Eigenvectors of a rotation]
        mixed = math.cos(phase) * (R + R.mT) / 2 + math.sin(phase) * skew_part
        _, V = torch.linalg.eigh(mixed)
        values = (V.conj() * (R.to(V.dtype) @ V)).sum(-2)  # v^H R v = e^(i theta)
        residual = float(((V * values.unsqueeze(-2)) @ V.mH - R).abs().max())
        if residual < best_residual:
            angles = torch.angle(values)
            best = ((V * (1j * angles).unsqueeze(-2)) @ V.mH).real
            best_residual = residual
            largest = float(angles.abs().max())
        if best_residual < _RESIDUAL:
            break
    if largest > math.pi - 1e-6:
        raise ValueError(
            "a rotation by half a turn (eigenvalue -1) has no unique logarithm: the shortest way "
            "from the identity goes either way around"
        )
    return (best - best.mT) / 2


def rotation_mean(R: Tensor, weights: Sequence[float] | None = None) -> Tensor:
    r"""The Karcher mean of rotations, in float64.

    X <- X exp(sum w_i log(X^T R_i)), until the sum is zero. It is unique where all R_i are less
    than a quarter turn from it, and does not depend on the order of the rotations, nor on the
    coordinates: mean(A R_i B) = A mean(R_i) B.

    Args:
        R: (m, ..., d, d), m orthogonal matrices with equal determinants.
        weights: m numbers that are not negative; only their ratios count. Default: equal ones.

    Returns:
        (..., d, d), float64, orthogonal.

    Raises:
        ValueError: if there is nothing to average, a matrix is not orthogonal, two of them differ
            by a reflection or by half a turn, or the mean is not found.

    >>> quarter = torch.tensor([[0.0, -1.0], [1.0, 0.0]])
    >>> R = torch.linalg.matrix_exp(torch.stack([0.2 * quarter, 0.6 * quarter]))
    >>> rotation_logarithm(rotation_mean(R))[1, 0]
    tensor(0.4000, dtype=torch.float64)
    """
    R = _checked(R)
    if R.dim() < 3 or len(R) == 0:
        raise ValueError(f"rotation_mean expects (m, ..., d, d); got {tuple(R.shape)}")
    shares = _shares(weights, len(R)).to(R.device).view(-1, *[1] * (R.dim() - 1))
    signs = torch.linalg.det(R).sign()
    if not torch.equal(signs, signs[:1].expand_as(signs)):
        raise ValueError(
            "the matrices have determinants of both signs: no path of rotations joins them"
        )
    X = R[int(shares.flatten().argmax())]
    for _ in range(_MOST_STEPS):
        step = (shares * rotation_logarithm(X.mT @ R)).sum(0)
        X = _nearest_orthogonal(X @ torch.linalg.matrix_exp(step))
        if float(step.abs().max()) < 1e-12:
            return X
    raise ValueError(
        f"no mean was found in {_MOST_STEPS} steps: the rotations lie too far apart for one"
    )


def inverse_cayley(R: Tensor) -> Tensor:
    """The skew W with R = (I + W)(I - W)^{-1}, in float64.

    Args:
        R: (..., d, d) rotations without an eigenvalue -1.

    Returns:
        (..., d, d), skew: W = (R - I)(R + I)^{-1}.

    Raises:
        ValueError: if a matrix is not orthogonal, or has an eigenvalue -1.

    >>> R = torch.tensor([[0.6, 0.8], [-0.8, 0.6]])
    >>> inverse_cayley(R)
    tensor([[ 0.0000,  0.5000],
            [-0.5000,  0.0000]], dtype=torch.float64)
    """
    R = _checked(R)
    eye = torch.eye(R.shape[-1], dtype=R.dtype, device=R.device)
    W, info = torch.linalg.solve_ex(R + eye, R - eye, left=False)
    if bool(info.any()) or not bool(W.abs().max() < 1e8):
        raise ValueError(
            "a rotation by half a turn (eigenvalue -1) is no Cayley transform of any matrix"
        )
    skew: Tensor = (W - W.mT) / 2
    return skew


def _nearest_orthogonal(X: Tensor) -> Tensor:
    """One Newton-Schulz step: what rounding has added goes, quadratically."""
    return 1.5 * X - 0.5 * X @ (X.mT @ X)


def _checked(R: Tensor) -> Tensor:
    if R.dim() < 2 or R.shape[-1] != R.shape[-2]:
        raise ValueError(f"expected square matrices (..., d, d); got {tuple(R.shape)}")
    if not R.is_floating_point():
        raise ValueError(f"expected matrices of a floating type; got {R.dtype}")
    precision = torch.finfo(R.dtype).eps
    R = R.detach().double()
    eye = torch.eye(R.shape[-1], dtype=R.dtype, device=R.device)
    error = float((R.mT @ R - eye).abs().max()) if R.numel() else 0.0
    if not error <= max(1e-4, 64 * precision):
        raise ValueError(f"expected orthogonal matrices; max |R^T R - I| is {error:.2g}")
    for _ in range(3):  # from the precision of the input to that of float64
        R = _nearest_orthogonal(R)
    return R


def _shares(weights: Sequence[float] | None, count: int) -> Tensor:
    given = [1.0] * count if weights is None else [float(w) for w in weights]
    values = torch.tensor(given, dtype=torch.float64)
    if values.shape != (count,):
        raise ValueError(f"expected {count} weights, one per rotation; got {len(values)}")
    if not bool(torch.isfinite(values).all()) or bool((values < 0).any()) or not values.sum() > 0:
        raise ValueError(
            f"weights must be finite, not negative, and not all 0; got {values.tolist()}"
        )
    return values / values.sum()
