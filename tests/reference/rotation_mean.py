"""Logarithms and means of rotations in float64, from their definitions, through scipy."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
from scipy import linalg, optimize
from torch import Tensor


def rotation_logarithm(R: Tensor) -> Tensor:
    """The principal logarithm, by scipy's Schur-Pade method for general matrices."""
    return torch.from_numpy(np.real(linalg.logm(R.double().numpy())))


def karcher_cost(X: Tensor, R: Sequence[Tensor], weights: Sequence[float]) -> float:
    """sum_i w_i |log(X^T R_i)|_F^2."""
    return sum(
        w * float(rotation_logarithm(X.T @ r).square().sum())
        for w, r in zip(weights, R, strict=True)
    )


def karcher_mean(R: Sequence[Tensor], weights: Sequence[float]) -> Tensor:
    """The minimizer of that cost over exp(skew) R_1, found by a general-purpose optimizer."""
    d = len(R[0])
    rows, columns = np.triu_indices(d, 1)

    def point(entries: np.ndarray) -> Tensor:
        W = np.zeros((d, d))
        W[rows, columns] = entries
        return torch.from_numpy(linalg.expm(W - W.T)) @ R[0]

    found = optimize.minimize(
        lambda entries: karcher_cost(point(entries), R, weights),
        np.zeros(len(rows)),
        method="BFGS",
        options={"gtol": 1e-9},
    )
    return point(found.x)
