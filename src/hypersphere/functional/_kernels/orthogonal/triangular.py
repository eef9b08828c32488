"""The map of Gram-Schmidt and of Householder: R V = Q V with U = Q T, T upper triangular.

They differ in signs. Gram-Schmidt has a positive diagonal in T. Householder's n - 1 reflections
x -> |x| e_1 make all of it positive but the last entry, so that det Q = (-1)^(n-1); a column
without anything below its diagonal is not reflected. With D = diag(+-1) the sign rule, Q_0 T_0 = U
any such factorization, Q = Q_0 D, S = D V and P = Q_0^T G, the gradient is

    dL/dU = Q_0 tril(P S^T - S P^T, -1) T_0^{-T}.
"""

from __future__ import annotations

import math
from typing import Any, NamedTuple

import torch
from torch import Tensor

from ...host import can_look, known
from ..autograd import Function, differentiable_once, one_step
from . import elimination, orthonormal, panels
from .batches import each_matrix
from .panels import add_product, halfway, inverse_upper, spans
from .rotations import stretched, upper_skew_outer
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
        result = _reflect(U, V, reflections)
        return result
    with torch.no_grad():
        low, high = spectrum(U, squared=True)
        near = 1e-30 < high <= _MAX_CONDITION * low
        if reflections:  # a column with nothing to reflect has a zero right below its diagonal
            near = near and bool(known(U.diagonal(-1, dim1=-2, dim2=-1).all()))
        parts = _by_blocks(U) if near else None
        if parts is not None and not _apart(high, parts):
            parts = None
    if parts is not None:
        result = BlockGramSchmidt.apply(U, V, reflections, parts)
        if not stretched(result.detach(), V, 20 * torch.finfo(V.dtype).eps):  # Note [Spectra]
            return result
    result = _reflect(U, V, reflections)
    return result


class Parts(NamedTuple):
    """Q, T right of its diagonal blocks, and the inverses of those."""

    Q: Tensor
    T: Tensor
    inverses: list[Tensor]


def _apart(high: float, parts: Parts) -> bool:
    """Whether each column is well apart from those before it: sqrt(high) / t_jj is at most cond(U).

    A single column that depends on others is what a few steps of Lanczos may overlook, and lengths
    cannot tell it, as all columns of Q have the length 1.
    """
    of_T = torch.cat([part.diagonal(dim1=-2, dim2=-1) for part in parts.inverses], -1)
    return bool(known(of_T.abs().amax() <= math.sqrt(_MAX_CONDITION / high)))  # not for a NaN


class BlockGramSchmidt(Function):
    """Q and T themselves, by halves of the columns and halves of these: nearly all of it products.

    Within a block T comes from a Cholesky factorization of its Gram matrix. For a U that is well
    conditioned, as it is in training.
    """

    @staticmethod
    def forward(ctx: Any, U: Tensor, V: Tensor, reflections: bool, parts: Parts) -> Tensor:
        Q, T, inverses = parts
        S = V
        ctx.last = None
        if reflections:
            # All but the last sign are those of Gram-Schmidt; that one follows from det Q.
            odd = -1.0 if U.shape[-1] % 2 == 0 else 1.0
            ctx.last = odd * _determinant(Q).unsqueeze(-1)
            S = V.clone()
            S[..., -1, :] *= ctx.last
        ctx.save_for_backward(Q, T, S, *inverses)
        return (S.mT @ Q.mT).mT

    @staticmethod
    @differentiable_once
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, Tensor | None, None, None]:
        Q, T, S, *inverses = ctx.saved_tensors
        p = grads[0].mT @ Q  # the rows of P
        grad_U = None
        if ctx.needs_input_grad[0]:
            grad_U = _gradient(Q, T, inverses, p, S.mT)
        if not ctx.needs_input_grad[1]:
            return grad_U, None, None, None
        if ctx.last is not None:
            p[..., -1:] *= ctx.last.unsqueeze(-1)
        return grad_U, p.mT, None, None


def _determinant(Q: Tensor) -> Tensor:
    """1 or -1 for each of the orthogonal matrices (..., d, d)."""
    found = elimination.determinant(Q)
    return each_matrix(lambda A: torch.linalg.slogdet(A).sign, Q) if found is None else found


def _by_blocks(U: Tensor) -> Parts:
    found = orthonormal.orthonormalize(U)
    if found is not None:
        return Parts(*found)
    d, Q, T = U.shape[-1], U.clone(), torch.empty_like(U)
    inverses: list[Tensor] = []
    _orthonormalize(Q, T, inverses, 0, d)
    return Parts(Q, T, inverses)


def _orthonormalize(Q: Tensor, T: Tensor, inverses: list[Tensor], first: int, last: int) -> None:
    """U = Q T for these columns, in the place of U."""
    middle = halfway(first, last)
    if middle is None:
        block = Q[..., first:last]
        L = torch.linalg.cholesky_ex(block.mT @ block)[0]
        inverses.append(inverse_upper(L.mT))
        block.copy_(block @ inverses[-1])
        return
    done, rest = Q[..., first:middle], Q[..., middle:last]
    _orthonormalize(Q, T, inverses, first, middle)
    share = torch.matmul(done.mT, rest, out=T[..., first:middle, middle:last])
    add_product(rest, done, share, -1.0)
    _orthonormalize(Q, T, inverses, middle, last)


def _gradient(Q: Tensor, T: Tensor, inverses: list[Tensor], p: Tensor, s: Tensor) -> Tensor:
    """Q C with C = K T^{-T} and K = tril(P S^T - S P^T, -1), for P and S given by rows.

    Both K and C are lower triangular: little more than that is computed.
    """
    left, right = torch.cat([p, s], dim=-2), torch.cat([s, -p], dim=-2)
    grad_U, C, d = torch.empty_like(Q), torch.zeros_like(Q), Q.shape[-1]
    for first, last in spans(d, blocks=2):
        K = C[..., first:, first:last]
        torch.matmul(left[..., first:].mT, right[..., first:last], out=K)
        K[..., : last - first, :].tril_(-1)
    _divide(C, T, inverses, 0, d)
    for first, last in spans(d, blocks=2):
        column = C[..., first:, first:last]
        torch.matmul(Q[..., first:], column, out=grad_U[..., first:last])
    return grad_U


def _divide(C: Tensor, T: Tensor, inverses: list[Tensor], first: int, last: int) -> None:
    """C <- C T^{-T} for these columns of a lower triangular C, from the last."""
    middle = halfway(first, last)
    if middle is None:
        column = C[..., first:, first:last]
        column.copy_(column @ inverses[first // panels.WIDTH].mT)
        return
    _divide(C, T, inverses, middle, last)
    below, done = C[..., middle:, first:middle], C[..., middle:, middle:last]
    add_product(below, done, T[..., first:middle, middle:last].mT, -1.0)
    _divide(C, T, inverses, first, middle)


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
    @differentiable_once
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


_reflect = one_step(Reflectors)
