"""The Cayley transform of a few vectors, and what all kernels of `orthogonalize` share.

Each kernel computes ``R(U) @ V`` for one U (d, d) and V (d, n), or for a batch of them, without
forming R. The hand-written gradients use what the forward pass has factorized, and the low rank
of dL/dR = G V^T: n is much smaller than d in a convolution. Inside, vectors are the rows of a
contiguous (..., n, d), the layout of a weight and the one that LAPACK reads without a copy.
Second derivatives with respect to U are not defined (`once_differentiable` says so).
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from ..autograd import Function


def skew(U: Tensor) -> Tensor:
    """W = triu(U, 1) - triu(U, 1)^T: the upper triangle holds all that a skew matrix can learn."""
    upper = U.triu(1)
    return upper - upper.mT


def upper_skew_outer(a: Tensor, b: Tensor) -> Tensor:
    """triu(A B^T - B A^T, 1), for A and B given by rows: a = A^T, b = B^T."""
    left, right = torch.cat([a, b], dim=-2), torch.cat([b, -a], dim=-2)
    return (left.mT @ right).triu_(1)


def lower_gram(U: Tensor) -> Tensor:
    """The lower triangle of U^T U, all that a Cholesky factorization reads; above it, anything."""
    half = U.shape[-1] // 2
    if half < 64:
        return U.mT @ U
    # One corner is left out: three quarters of the work.
    M = torch.empty_like(U)
    torch.matmul(U[..., :half].mT, U[..., :half], out=M[..., :half, :half])
    torch.matmul(U[..., half:].mT, U, out=M[..., half:, :])
    return M


class Cayley(Function):
    """R V with R = (I + W)(I - W)^{-1} = 2 (I - W)^{-1} - I: one LU for both passes."""

    @staticmethod
    def forward(ctx: Any, U: Tensor, V: Tensor) -> Tensor:
        system = skew(U)
        system.diagonal(dim1=-2, dim2=-1).add_(1.0)  # I + W, whose transpose is I - W
        factors, pivots, ctx.exchanged = _lu(system.mT)
        Y = _lu_solve(factors, pivots, ctx.exchanged, V)
        ctx.save_for_backward(factors, pivots, Y)
        return 2.0 * Y - V

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, Tensor | None]:
        factors, pivots, Y = ctx.saved_tensors
        (G,) = grads
        Z = _lu_solve(factors, pivots, ctx.exchanged, G, adjoint=True).mul_(2.0)
        grad_U = upper_skew_outer(Z.mT, Y.mT) if ctx.needs_input_grad[0] else None
        return grad_U, Z - G if ctx.needs_input_grad[1] else None


def _lu(A: Tensor) -> tuple[Tensor, Tensor, bool]:
    """LU in place, and whether it has exchanged rows; I - W needs that only for a large W."""
    if torch.compiler.is_compiling():
        factors, pivots, _ = torch.linalg.lu_factor_ex(A)
        return factors, pivots, True
    pivots = torch.empty(A.shape[:-1], dtype=torch.int32, device=A.device)
    info = torch.empty(A.shape[:-2], dtype=torch.int32, device=A.device)
    torch.linalg.lu_factor_ex(A, out=(A, pivots, info))
    order = torch.arange(1, A.shape[-1] + 1, dtype=torch.int32, device=A.device)
    return A, pivots, not torch.equal(pivots, order.expand_as(pivots))


def _lu_solve(
    factors: Tensor, pivots: Tensor, exchanged: bool, B: Tensor, adjoint: bool = False
) -> Tensor:
    if exchanged:
        return torch.linalg.lu_solve(factors, pivots, B, adjoint=adjoint)
    solve = torch.linalg.solve_triangular  # without exchanges, the faster way
    if adjoint:
        half = solve(factors.mT, B, upper=False)
        return solve(factors.mT, half, upper=True, unitriangular=True)
    half = solve(factors, B, upper=False, unitriangular=True)
    return solve(factors, half, upper=True)


def stretched(result: Tensor, V: Tensor, tolerance: float | None = None) -> bool:
    """Whether a map that should keep the lengths of the columns has not."""
    tolerance = torch.finfo(V.dtype).eps ** 0.75 if tolerance is None else tolerance
    lengths = torch.linalg.vector_norm(V, dim=-2)
    error = (torch.linalg.vector_norm(result, dim=-2) - lengths).abs().amax()
    # not <=, as an overflow must not pass either
    return not bool(error <= tolerance * lengths.amax())
