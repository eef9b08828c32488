"""The map of Loewdin: R V = U M^{-1/2} V with M = U^T U."""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from ..autograd import Function, differentiable_once
from . import elimination
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
        M = U.mT @ U
        low, high = spectrum(M)
        # Squares of finite entries may overflow; the SVD below knows no squares.
        ctx.lost = not math.isfinite(low + high) and not number_of(U.isfinite().all())
        if ctx.lost:  # an SVD would stop a run that went bad before anyone can say where
            return torch.full_like(V, math.nan)
        # Of a single number the sign is left: its gradient is 0 by the SVD, noise by the poles.
        ctx.near = 1e-30 < high <= _MAX_CONDITION * low < math.inf and U.shape[-1] > 1
        if not ctx.near:
            return _by_svd(ctx, U, V)
        # 2e-6 in float32, the rounding error of the products around it
        error = 16 * torch.finfo(U.dtype).eps
        shifts, weights = inverse_root_poles(*_widened(low, high), error)
        factors, solutions = _solve_all(M, shifts, V.mT)
        turned = torch.cat(solutions, dim=-2) @ U.mT  # the rows of U Y_j, also for the gradient
        result = _combine(turned.chunk(len(weights), dim=-2), weights).mT
        if stretched(result, V):  # Note [Spectra]: an eigenvalue lies outside
            ctx.near = False
            return _by_svd(ctx, U, V)
        ctx.weights = weights
        ctx.save_for_backward(U, turned, *solutions, *itertools.chain(*factors))
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
        U, turned, *saved = ctx.saved_tensors
        weights, g = ctx.weights, G.mT
        solutions, factors = saved[: len(weights)], saved[len(weights) :]
        parts = len(factors) // len(weights)
        rows = g @ U
        right = [_solve(factors[i : i + parts], rows) for i in range(0, len(factors), parts)]
        grad_V = _combine(right, weights).mT if ctx.needs_input_grad[1] else None
        if not ctx.needs_input_grad[0]:
            return None, grad_V
        # dL/dM = - sum_j w_j B_j Y_j^T with the solutions B_j, Y_j of both passes, and
        # dL/dU = sum_j w_j G Y_j^T + U (dL/dM + dL/dM^T); in low rank as long as that is narrow.
        right = [b.mul_(-w) for b, w in zip(right, weights, strict=True)]
        if 2 * len(weights) * g.shape[-2] < U.shape[-1]:
            whole = torch.cat([w * g for w in weights], dim=-2)
            whole += torch.cat(right, dim=-2) @ U.mT
            left = torch.cat([whole, turned], dim=-2)
            return left.mT @ torch.cat([*solutions, *right], dim=-2), grad_V
        grad_M = torch.cat(right, dim=-2).mT @ torch.cat(solutions, dim=-2)
        root = _combine(solutions, weights)  # the rows of M^{-1/2} V
        return (G @ root).add_(U @ (grad_M + grad_M.mT)), grad_V


def _solve_all(
    M: Tensor, shifts: list[float], rows: Tensor
) -> tuple[list[Sequence[Tensor]], list[Tensor]]:
    """For every shift what M + s I was factorized into, and the rows of its solution.

    M is written into.
    """
    factors: list[Sequence[Tensor]] = []
    solutions: list[Tensor] = []
    diagonal, before = M.diagonal(dim1=-2, dim2=-1), 0.0
    for shift in shifts:
        diagonal.add_(shift - before)
        before = shift
        found = elimination.solve(M, rows)
        if found is None:
            factors.append([torch.linalg.cholesky_ex(M)[0]])
            solutions.append(_solve(factors[-1], rows))
        else:
            factors.append([found.factors, found.inverses])
            solutions.append(found.Y.mT)
    return factors, solutions


def _solve(factors: Sequence[Tensor], rows: Tensor) -> Tensor:
    """The rows of the solution, by a Cholesky factor or by what an elimination has left."""
    if len(factors) == 2:
        return elimination.solve_again(elimination.Eliminated(factors[0], factors[1], rows), rows)
    (L,) = factors  # torch.cholesky_solve would copy it each time
    half = torch.linalg.solve_triangular(L, rows.mT, upper=False)
    solution: Tensor = torch.linalg.solve_triangular(L.mT, half, upper=True).mT
    return solution


def _widened(low: float, high: float) -> tuple[float, float]:
    """An interval around [low, high] whose ends are a factor of 2 apart, or more.

    On a narrow one a single pole would have the right values, but not their slope.
    """
    middle, reach = math.sqrt(low * high), max(math.sqrt(high / low), math.sqrt(2.0))
    return middle / reach, middle * reach


def _combine(parts: Sequence[Tensor], weights: list[float]) -> Tensor:
    total = weights[0] * parts[0]
    for part, w in zip(parts[1:], weights[1:], strict=True):
        total.add_(part, alpha=w)
    return total


def _by_svd(ctx: Any, U: Tensor, V: Tensor) -> Tensor:
    P, sigma, Qt = torch.linalg.svd(U.double())  # R = P Q^T (F.10)
    # Where U is singular R has no gradient; a floor keeps it finite.
    sigma = sigma.maximum(torch.finfo(U.dtype).eps * sigma[..., :1]).clamp_min(1e-30)
    P, Q, sigma = P.to(U.dtype), Qt.mT.to(U.dtype), sigma.to(U.dtype)
    ctx.save_for_backward(P, Q, sigma, V)
    result: Tensor = P @ (Q.mT @ V)
    return result
