"""Loewdin and the exponential by products of matrices alone, for accelerators.

loewdin.py and exponential.py look at the spectrum of U to choose their number of terms, for which
an accelerator would have to be waited for. Products are what it does best, so here there are enough
of them for any U that training meets: nothing is chosen, nothing is waited for.
"""

from __future__ import annotations

import torch
from torch import Tensor

from .rotations import skew

__all__ = ["by_products"]

# Each step multiplies a small singular value by 15/8, so conditions up to some thousands are met.
_POLAR_STEPS = 16
# |W|_2 up to 2^10 radians; the series of what is left goes to 1 / 13! = 2e-10, or to 1 / 19!.
_SQUARINGS, _TERMS, _TERMS_64 = 10, 12, 18


def by_products(U: Tensor, V: Tensor, method: str) -> Tensor:
    """R(U) V of "loewdin" or "exponential", (..., d, n); differentiated by autograd."""
    R = _polar(U) if method == "loewdin" else _exponential(skew(U))
    return R @ V


def _polar(U: Tensor) -> Tensor:
    """U (U^T U)^{-1/2} by X <- X (15 - 10 M + 3 M^2) / 8, M = X^T X (Newton-Schulz, order 5)."""
    X, eye = U / _bound(U), _eye(U)
    for _ in range(_POLAR_STEPS):
        M = X.mT @ X
        X = X @ (15 / 8 * eye - 10 / 8 * M + 3 / 8 * (M @ M))
    return X


def _exponential(W: Tensor) -> Tensor:
    """exp(W) = exp(W / 2^s)^(2^s), with as many of the squarings as |W| asks for."""
    size, eye = _bound(W), _eye(W)
    count = size.clamp(1, 2.0**_SQUARINGS).log2().ceil()
    # Beyond its range W is scaled back, as in exponential.py.
    step = W * torch.exp2(-count) * (2.0**_SQUARINGS / size).clamp_max(1.0)
    R = eye
    terms = _TERMS_64 if W.dtype == torch.float64 else _TERMS
    for k in range(terms, 0, -1):  # Horner
        R = eye + step @ R / k
    for i in range(_SQUARINGS):
        R = torch.where(count > i, R @ R, R)
    return R


def _bound(A: Tensor) -> Tensor:
    """A number of at least |A|_2 and seldom much more, (..., 1, 1), without a gradient."""
    with torch.no_grad():
        # |A|_2 <= |(A^T A)^8|_F^(1/16) <= d^(1/32) |A|_2
        largest = A.abs().amax((-2, -1), keepdim=True).clamp_min(1e-30)
        power, exponent = A / largest, 1.0
        power = power.mT @ power
        for _ in range(3):
            norm = torch.linalg.matrix_norm(power, keepdim=True).clamp_min(1e-30)
            largest = largest * norm ** (0.5 / exponent)
            power = power / norm
            power, exponent = power @ power, 2 * exponent
        norm = torch.linalg.matrix_norm(power, keepdim=True).clamp_min(1e-30)
        bound: Tensor = 1.001 * largest * norm ** (0.5 / exponent)
        return bound


def _eye(like: Tensor) -> Tensor:
    return torch.eye(like.shape[-1], dtype=like.dtype, device=like.device)
