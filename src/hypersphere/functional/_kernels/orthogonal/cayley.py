"""The Cayley transform: R V = (I + W)(I - W)^{-1} V = 2 (I - W)^{-1} V - V for a skew W.

The gradient, with Y = (I - W)^{-1} V and Z = 2 (I - W)^{-T} G, is dL/dW = Z Y^T.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import torch
from torch import Tensor

from ...host import can_look, known
from ..autograd import Function, differentiable_once
from . import elimination
from .packed import identity_plus_skew, pack_skew
from .rotations import above_skew_outer, skew, stretched, upper_skew_outer

# Note [Large W]
# The condition of I - W is up to 1 + |W|_2: a skew matrix of odd size has an eigenvalue 0, beside
# which the 1 is lost. Where lengths show it, float64 does it again, and beyond its digits with a W
# scaled back to this: there R has reached its limit for W -> infinity to 1e-8.
_LARGEST = 1e8


class Cayley(Function):
    """2 (I - W)^{-1} V - V: one factorization for both passes.

    U is (..., d, d), or `packed`: (..., d (d - 1) / 2).
    """

    @staticmethod
    def forward(ctx: Any, U: Tensor, V: Tensor, packed: bool) -> Tensor:
        ctx.packed = packed
        found = elimination.cayley(U, V) if packed else None
        ctx.eliminated = found is not None
        if found is not None:
            ctx.save_for_backward(U, V, *found[1])
            return found[0]
        result, lu = _factorize(U, V, packed)
        ctx.exchanged, ctx.shrink = lu[3:]
        ctx.save_for_backward(*lu[:3])
        return result

    @staticmethod
    @differentiable_once
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, Tensor | None, None]:
        (G,), (for_U, for_V, _) = grads, ctx.needs_input_grad
        if not ctx.eliminated:
            factors, pivots, Y = ctx.saved_tensors
            return *_gradients(_LU(factors, pivots, Y, ctx.exchanged, ctx.shrink), G, ctx), None
        U, V, *saved = ctx.saved_tensors
        Z, grad_U = elimination.cayley_gradient(elimination.Eliminated(*saved), G, for_U)
        turned = Z - G  # R^T G, as long as G
        if stretched(turned, G):  # G sees digits that were lost where V sees none
            return *_gradients(_factorize(U, V, ctx.packed)[1], G, ctx), None
        return grad_U, turned if for_V else None, None


class _LU(NamedTuple):
    """LU of I - W, and Y; `shrink` is what W was multiplied with, if it was too large."""

    factors: Tensor
    pivots: Tensor
    Y: Tensor
    exchanged: bool
    shrink: Tensor | None


def _factorize(U: Tensor, V: Tensor, packed: bool) -> tuple[Tensor, _LU]:
    """R V, and what its gradient needs."""
    shrink = None
    factors, pivots, exchanged, Y = _solve(_identity_plus(U, V, packed), V)
    result = 2.0 * Y - V
    # Note [Large W]: only a large one makes the LU exchange rows.
    if exchanged and not torch.compiler.is_compiling() and stretched(result, V):
        A, columns = _identity_plus(U.double(), V, packed), V.double()
        factors, pivots, exchanged, Y = _solve(A.clone(), columns)
        if stretched(2.0 * Y - columns, columns):
            shrink = (_LARGEST / A.abs().amax((-2, -1), keepdim=True)).clamp_max(1.0)
            A *= shrink
            A.diagonal(dim1=-2, dim2=-1).fill_(1.0)
            factors, pivots, exchanged, Y = _solve(A, columns)
        result = (2.0 * Y - columns).to(V.dtype)
    return result, _LU(factors, pivots, Y, exchanged, shrink)


def _gradients(lu: _LU, grad: Tensor, ctx: Any) -> tuple[Tensor | None, Tensor | None]:
    """The gradients in U and V, where they are needed."""
    G = grad.to(lu.Y.dtype)
    Z = _lu_solve(lu.factors, lu.pivots, lu.exchanged, G, adjoint=True).mul_(2.0)
    grad_U = None
    if ctx.needs_input_grad[0]:
        outer = above_skew_outer if ctx.packed else upper_skew_outer
        grad_U = outer(Z.mT, lu.Y.mT)
        if lu.shrink is not None:
            grad_U *= lu.shrink
        grad_U = (pack_skew(grad_U) if ctx.packed else grad_U).to(grad.dtype)
    return grad_U, (Z - G).to(grad.dtype) if ctx.needs_input_grad[1] else None


class CayleyMatrix(Function):
    """R = 2 Y - I itself, Y = (I - W)^{-1}, for a batch of small W: products instead of solves.

    As (I - W)^T = I + W, the gradient is dL/dW = 2 Y^T G Y^T.
    """

    @staticmethod
    def forward(ctx: Any, U: Tensor) -> Tensor:
        ctx.shrink = None
        W = skew(U)
        eye = torch.eye(W.shape[-1], dtype=W.dtype, device=W.device)
        near = _inverse_near_identity(W, eye)
        if near is not None:
            ctx.save_for_backward(near)
            return 2.0 * near - eye
        Y = torch.linalg.inv_ex(eye - W)[0]
        R = 2.0 * Y - eye
        if can_look(R) and stretched(R, eye.expand_as(R)):  # Note [Large W]
            wide, eye = W.double(), eye.double()
            Y = torch.linalg.inv_ex(eye - wide)[0]
            if stretched(2.0 * Y - eye, eye.expand_as(Y)):
                largest = wide.abs().amax((-2, -1), keepdim=True)
                ctx.shrink = (_LARGEST / largest).clamp_max(1.0)
                Y = torch.linalg.inv_ex(eye - wide * ctx.shrink)[0]
            R = (2.0 * Y - eye).to(R.dtype)
        ctx.save_for_backward(Y)
        result: Tensor = R
        return result

    @staticmethod
    @differentiable_once
    def backward(ctx: Any, *grads: Tensor) -> Tensor:
        (Y,) = ctx.saved_tensors
        dtype, G = grads[0].dtype, grads[0].to(Y.dtype)
        grad_W = Y.mT @ G @ Y.mT
        grad_U = (grad_W - grad_W.mT).mul_(2.0 if ctx.shrink is None else 2.0 * ctx.shrink)
        result: Tensor = grad_U.triu_(1).to(dtype)
        return result


# Note [Near the identity]
# For small blocks a product takes a tenth of the time of a factorization, and near the identity few
# of them give the inverse to working precision: (I - W)^{-1} = (I + W)(I + W^2)(I + W^4) ... with a
# relative error of |W|_2^(2^m) after m factors. Eigenvalues of a skew matrix come in pairs, so
# |W|_2^4 is at most half the squared Frobenius norm of W^2.
_NEAR = 0.7


def _inverse_near_identity(W: Tensor, eye: Tensor) -> Tensor | None:
    """(I - W)^{-1} by products, or None where W is too large. Note [Near the identity]."""
    if not (W.numel() and can_look(W)):
        return None
    power = W @ W
    size = known((power.square().sum((-2, -1)).amax() / 2) ** 0.25)
    if size is None or not size < _NEAR:
        return None
    Y = torch.baddbmm(eye + W, eye + W, power)
    error, enough = size**4, 4 * torch.finfo(W.dtype).eps
    while error > enough:
        power = power @ power
        Y = torch.baddbmm(Y, Y, power)
        error *= error
    return Y


def _identity_plus(U: Tensor, V: Tensor, packed: bool) -> Tensor:
    """I + W, whose transpose is I - W."""
    if packed:
        return identity_plus_skew(U, V.shape[-2])
    W = skew(U)
    W.diagonal(dim1=-2, dim2=-1).add_(1.0)
    return W


def _solve(A: Tensor, V: Tensor) -> tuple[Tensor, Tensor, bool, Tensor]:
    """LU of A^T, in place of A, its pivots, whether rows were exchanged, and A^{-T} V."""
    factors, pivots, exchanged = _lu(A.mT)
    return factors, pivots, exchanged, _lu_solve(factors, pivots, exchanged, V)


def _lu(A: Tensor) -> tuple[Tensor, Tensor, bool]:
    """LU in place, and whether it has exchanged rows; I - W needs that only for a large W."""
    if not can_look(A):
        factors, pivots, _ = torch.linalg.lu_factor_ex(A)
        return factors, pivots, True
    pivots = torch.empty(A.shape[:-1], dtype=torch.int32, device=A.device)
    info = torch.empty(A.shape[:-2], dtype=torch.int32, device=A.device)
    if A.device.type == "cpu" and A.dim() > 2:  # Note [Batched LU] in batches.py
        matrices = zip(A.flatten(0, -3), pivots.flatten(0, -2), info.flatten(), strict=True)
        for out in matrices:
            torch.linalg.lu_factor_ex(out[0], out=out)
    else:
        torch.linalg.lu_factor_ex(A, out=(A, pivots, info))
    order = torch.arange(1, A.shape[-1] + 1, dtype=torch.int32, device=A.device)
    return A, pivots, not known((pivots == order).all())


def _lu_solve(
    factors: Tensor, pivots: Tensor, exchanged: bool, B: Tensor, adjoint: bool = False
) -> Tensor:
    if exchanged:
        # torch.linalg.lu_solve would read the pivots on the host to check them.
        order = torch.lu_unpack(factors, pivots, unpack_data=False)[0]  # P of A = P L U
        if adjoint:
            return order @ _lu_solve(factors, pivots, False, B, adjoint)
        B = order.mT @ B
    solve: Callable[..., Tensor] = torch.linalg.solve_triangular  # faster without exchanges
    if adjoint:
        half = solve(factors.mT, B, upper=False)
        return solve(factors.mT, half, upper=True, unitriangular=True)
    half = solve(factors, B, upper=False, unitriangular=True)
    return solve(factors, half, upper=True)
