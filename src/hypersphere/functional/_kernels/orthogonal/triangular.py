"""The map of Gram-Schmidt and of Householder: R V = Q V with U = Q T, T upper triangular.

They differ in signs. Gram-Schmidt has a positive diagonal in T. Householder's n - 1 reflections
x -> |x| e_1 make all of it positive but the last entry, so that det Q = (-1)^(n-1); a column
without anything below its diagonal is not reflected. With D = diag(+-1) the sign rule, Q_0 T_0 = U
any such factorization, Q = Q_0 D, S = D V and P = Q_0^T G, the gradient is

    dL/dU = Q_0 tril(P S^T - S P^T, -1) T_0^{-T}.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from ...host import can_look, known
from ..autograd import Function
from .batches import each_matrix
from .rotations import lower_gram, stretched, upper_skew_outer
from .spectra import spectrum

# The Gram matrix squares the condition of U. Up to this one of the square, float32 keeps Q
# orthogonal to some 1e-6; beyond, for columns that are dependent, and where lengths show an
# eigenvalue that was overlooked, reflectors do it.
_MAX_CONDITION = 30.0


def triangular(U: Tensor, V: Tensor, reflections: bool) -> Tensor:
    """Q V, by the cheaper of two ways that are safe for this U.

    A compiler cannot follow the choice, and an accelerator would have to be waited for; they get
    the reflectors, which need none.
    """
    result: Tensor
    if not can_look(U):
        result = Reflectors.apply(U, V, reflections)
        return result
    with torch.no_grad():
        low, high = spectrum(U.mT, U)
        near = 1e-30 < high <= _MAX_CONDITION * low
        if reflections:  # a column with nothing to reflect has a zero right below its diagonal
            near = near and bool(known(U.diagonal(-1, dim1=-2, dim2=-1).all()))
    if near:
        result = CholeskyFactor.apply(U, V, reflections)
        if not stretched(result.detach(), V, 20 * torch.finfo(V.dtype).eps):  # Note [Spectra]
            return result
    result = Reflectors.apply(U, V, reflections)
    return result


class CholeskyFactor(Function):
    """T from U^T U = T^T T, and Q V = U T^{-1} V: products and triangular solves only.

    Two thirds of the time of reflectors, for a U that is well conditioned, as it is in training.
    """

    @staticmethod
    def forward(ctx: Any, U: Tensor, V: Tensor, reflections: bool) -> Tensor:
        T = torch.linalg.cholesky_ex(lower_gram(U))[0].mT
        S = V
        ctx.last = None
        if reflections:
            # All but the last sign are those of Gram-Schmidt; that one follows from det Q.
            odd = -1.0 if U.shape[-1] % 2 == 0 else 1.0
            ctx.last = odd * each_matrix(lambda A: torch.linalg.slogdet(A).sign, U.mT).unsqueeze(-1)
            S = V.clone()
            S[..., -1, :] *= ctx.last
        Y: Tensor = torch.linalg.solve_triangular(T, S, upper=True)
        ctx.save_for_backward(U, T, S)
        return (Y.mT @ U.mT).mT

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, Tensor | None, None]:
        U, T, S = ctx.saved_tensors
        P = torch.linalg.solve_triangular(T.mT, (grads[0].mT @ U).mT, upper=False)
        grad_U = None
        if ctx.needs_input_grad[0]:
            K = upper_skew_outer(S.mT, P.mT).mT  # tril(P S^T - S P^T, -1), in LAPACK's layout
            torch.linalg.solve_triangular(T.mT, K, upper=False, left=False, out=K)
            torch.linalg.solve_triangular(T, K, upper=True, out=K)
            grad_U = U @ K
        if not ctx.needs_input_grad[1]:
            return grad_U, None, None
        if ctx.last is not None:
            P[..., -1, :] *= ctx.last
        return grad_U, P, None


class Reflectors(Function):
    """Householder reflectors, applied blockwise (LAPACK's WY form): right for every U."""

    @staticmethod
    def forward(ctx: Any, U: Tensor, V: Tensor, reflections: bool) -> Tensor:
        packed, tau = torch.geqrf(U)
        diagonal = packed.diagonal(dim1=-2, dim2=-1)
        sign = torch.where(diagonal < 0, -1.0, 1.0).to(U.dtype)
        if reflections:
            # Algorithm 3 reflects columns 1 .. n-1 (none where nothing is below the diagonal),
            # each onto the positive axis; the sign of the last column follows from det Q.
            sign = torch.where(tau == 0, torch.ones_like(sign), sign)
            last = sign[..., :-1].prod(-1, keepdim=True)
            sign = torch.cat([sign[..., :-1], last], dim=-1)
        # Linearly dependent columns have no gradient; a floor keeps it finite. The reflectors
        # live below the diagonal, so changing the diagonal of T does not touch them.
        size = diagonal.abs()
        floor = torch.finfo(U.dtype).eps * size.amax(-1, keepdim=True).clamp_min(1e-30)
        diagonal.copy_(torch.where(diagonal < 0, -1.0, 1.0) * torch.maximum(size, floor))
        S = sign.unsqueeze(-1) * V
        ctx.save_for_backward(packed, tau, sign, S)
        return torch.ormqr(packed, tau, S)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, Tensor | None, None]:
        packed, tau, sign, S = ctx.saved_tensors
        P = torch.ormqr(packed, tau, grads[0].contiguous(), left=True, transpose=True)
        grad_U = None
        if ctx.needs_input_grad[0]:
            K = upper_skew_outer(S.mT, P.mT).mT
            # Only the upper triangle of `packed` is read here: it is T_0.
            K = torch.linalg.solve_triangular(packed.mT, K, upper=False, left=False)
            grad_U = torch.ormqr(packed, tau, K)
        return grad_U, sign.unsqueeze(-1) * P if ctx.needs_input_grad[1] else None, None
