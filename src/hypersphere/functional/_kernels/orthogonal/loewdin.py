"""The map of Loewdin: R V = U M^{-1/2} V with M = U^T U."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from ..autograd import Function, differentiable_once
from . import symmetric
from .panels import add_product
from .rotations import stretched
from .spectra import inverse_root_poles, number_of, spectrum

# U^T U squares the condition of U: beyond this one of its own, float32 is left for float64.
_MAX_CONDITION = 30.0


class Loewdin(Function):
    """U M^{-1/2} V through a few poles.

    Near an orthogonal matrix (up to scale), where training stays, M^{-1/2} acts through r poles,

        lambda^{-1/2} ~ sum_j w_j / (lambda + s_j),

    placed by elliptic functions (Hale, Higham, Trefethen 2008) so that r = 2 or 3 reach float32:
    r factorizations, shared by both passes. Elsewhere the SVD of U in float64 does it (F.10):
    M would square the condition of U. Both gradients hold sums of eigenvalues or singular values,
    never differences: equal ones are harmless.
    """

    @staticmethod
    def forward(ctx: Any, U: Tensor, V: Tensor) -> Tensor:
        M = symmetric.half_product(U, U, turned=True)
        low, high = spectrum(M)
        # Squares of finite entries may overflow; the SVD below knows no squares.
        ctx.lost = not math.isfinite(low + high) and not number_of(U.isfinite().all())
        if ctx.lost:  # an SVD would stop a run that went bad before anyone can say where
            return torch.full_like(V, math.nan)
        # Of a single number the sign is left: its gradient is 0 by the SVD, noise by the poles.
        ctx.near = 1e-30 < high <= _MAX_CONDITION * low < math.inf and U.shape[-1] > 1
        if not ctx.near:
            return _by_svd(ctx, U, V)
        # 2e-7 in float32: slopes of the poles' sum, of which the gradient is made, err much more.
        error = 2 * torch.finfo(U.dtype).eps
        shifts, weights = inverse_root_poles(*_widened(low, high), error)
        factors, solutions = _solve_all(M, shifts, V.mT)  # the rows of Y_j, (..., r, n, d)
        turned = solutions.flatten(-3, -2) @ U.mT  # the rows of U Y_j, also for the gradient
        result = _combine(turned.view_as(solutions), weights).mT
        if stretched(result, V):  # Note [Spectra]: an eigenvalue lies outside
            ctx.near = False
            return _by_svd(ctx, U, V)
        ctx.weights = weights
        ctx.save_for_backward(U, turned, solutions, *factors)
        return result

    @staticmethod
    @differentiable_once
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, Tensor | None]:
        (G,) = grads
        if ctx.lost:
            nan = torch.full_like(G, math.nan)
            return nan @ nan.mT, nan
        if not ctx.near:
            P, Q, sigma, V = ctx.saved_tensors
            A, B = P.mT @ G, Q.mT @ V
            K = A @ B.mT
            F = (K - K.mT) / (sigma.unsqueeze(-1) + sigma.unsqueeze(-2))
            return (P @ F) @ Q.mT, Q @ A
        U, turned, solutions, *factors = ctx.saved_tensors
        weights, g = ctx.weights, G.mT
        right = _solve(factors, g @ U)
        grad_V = _combine(right, weights).mT if ctx.needs_input_grad[1] else None
        if not ctx.needs_input_grad[0]:
            return None, grad_V
        # dL/dM = - sum_j w_j B_j Y_j^T with the solutions B_j, Y_j of both passes, and
        # dL/dU = sum_j w_j G Y_j^T + U (dL/dM + dL/dM^T); in low rank as long as that is narrow.
        by_pole = g.new_tensor(weights).view(-1, 1, 1)
        shares = right.mul_(-by_pole).flatten(-3, -2)
        stacked = solutions.flatten(-3, -2)
        if 2 * len(weights) * g.shape[-2] < U.shape[-1]:
            left = add_product((by_pole * g.unsqueeze(-3)).flatten(-3, -2), shares, U.mT)
            return add_product(left.mT @ stacked, turned.mT, shares), grad_V
        grad_M = shares.mT @ stacked
        root = _combine(solutions, weights)  # the rows of M^{-1/2} V
        return add_product(G @ root, U, grad_M + grad_M.mT), grad_V


def _solve_all(M: Tensor, shifts: list[float], rows: Tensor) -> tuple[Sequence[Tensor], Tensor]:
    """What every M + s I was factorized into, and the rows of the solutions, (..., r, n, d)."""
    found = symmetric.solve(M, shifts, rows)
    if found is not None:
        return found[:2], found.rows
    factors, eye = [], torch.eye(M.shape[-1], dtype=M.dtype, device=M.device)
    for shift in shifts:
        factors.append(torch.linalg.cholesky_ex(M + shift * eye)[0])
    return factors, _by_cholesky(factors, rows)


def _solve(factors: Sequence[Tensor], rows: Tensor) -> Tensor:
    """The rows of the solutions, by Cholesky factors or by what an elimination has left."""
    if factors[0].dim() > rows.dim():
        return symmetric.solve_again(factors[0], factors[1], rows)
    return _by_cholesky(factors, rows)


def _by_cholesky(factors: Sequence[Tensor], rows: Tensor) -> Tensor:
    solutions = []
    for L in factors:  # torch.cholesky_solve would copy it each time
        half = torch.linalg.solve_triangular(L, rows.mT, upper=False)
        solutions.append(torch.linalg.solve_triangular(L.mT, half, upper=True).mT)
    return torch.stack(solutions, dim=-3)


def _widened(low: float, high: float) -> tuple[float, float]:
    """An interval around [low, high] whose ends are a factor of 2 apart, or more.

    On a narrow one a single pole would have the right values, but not their slope.
    """
    middle, reach = math.sqrt(low * high), max(math.sqrt(high / low), math.sqrt(2.0))
    return middle / reach, middle * reach


def _combine(parts: Tensor, weights: list[float]) -> Tensor:
    """sum_j w_j P_j for parts (..., r, n, d)."""
    total = weights[0] * parts[..., 0, :, :]
    for j, weight in enumerate(weights[1:], 1):
        total.add_(parts[..., j, :, :], alpha=weight)
    return total


def _by_svd(ctx: Any, U: Tensor, V: Tensor) -> Tensor:
    P, sigma, Qt = torch.linalg.svd(U.double())  # R = P Q^T (F.10)
    # Where U is singular R has no gradient; a floor keeps it finite.
    sigma = sigma.maximum(torch.finfo(U.dtype).eps * sigma[..., :1]).clamp_min(1e-30)
    P, Q, sigma = P.to(U.dtype), Qt.mT.to(U.dtype), sigma.to(U.dtype)
    ctx.save_for_backward(P, Q, sigma, V)
    result: Tensor = P @ (Q.mT @ V)
    return result
