"""How R(U) acts on a few vectors, with hand-written gradients: the kernels of `orthogonalize`.

Each class computes ``R(U) @ V`` for ``U (..., d, d)`` and ``V (..., d, n)`` without forming R.
The backward passes use what the forward pass has factorized, and the low rank of the gradient:
dL/dR = G V^T has rank n, and n is much smaller than d in a convolution.

Second derivatives with respect to U are not defined here (`once_differentiable` says so).
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from ._spectra import bessel, inverse_root_poles, spectrum

# U^T U squares the condition of U: beyond this one of its own, float32 is left for float64.
_MAX_CONDITION = 30.0
# The series of the exponential has about |W|_2 terms: beyond this, squaring is cheaper.
_MAX_TURN = 64.0


def skew(U: Tensor) -> Tensor:
    """W = triu(U, 1) - triu(U, 1)^T: the upper triangle holds all that a skew matrix can learn."""
    upper = U.triu(1)
    return upper - upper.mT


class Cayley(torch.autograd.Function):
    """R V with R = (I + W)(I - W)^{-1} = 2 (I - W)^{-1} - I: one LU for both passes."""

    @staticmethod
    def forward(ctx: Any, U: Tensor, V: Tensor) -> Tensor:
        system = skew(U)
        system.diagonal(dim1=-2, dim2=-1).add_(1.0)  # I + W, whose transpose is I - W
        factors, pivots, _ = torch.linalg.lu_factor_ex(system.mT)
        Y = torch.linalg.lu_solve(factors, pivots, V)
        ctx.save_for_backward(factors, pivots, Y)
        return 2.0 * Y - V

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, Tensor | None]:
        factors, pivots, Y = ctx.saved_tensors
        (G,) = grads
        Z = 2.0 * torch.linalg.lu_solve(factors, pivots, G, adjoint=True)
        grad_U = _skew_outer(Z, Y).triu_(1) if ctx.needs_input_grad[0] else None
        return grad_U, Z - G if ctx.needs_input_grad[1] else None


class TriangularFactor(torch.autograd.Function):
    """Q V with U = Q T, T upper triangular: the map of Gram-Schmidt and of Householder.

    The reflectors are applied blockwise (LAPACK's WY form), Q is never formed. With Q_0, T_0 from
    LAPACK and D = diag(+-1) the sign rule, Q = Q_0 D and the gradient is

        dL/dU = Q_0 tril(P S^T - S P^T, -1) T_0^{-T},   P = Q_0^T G,  S = D V.
    """

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
            K = _skew_outer(P, S).tril_(-1)
            # Only the upper triangle of `packed` is read here: it is T_0.
            K = torch.linalg.solve_triangular(packed.mT, K, upper=False, left=False)
            grad_U = torch.ormqr(packed, tau, K)
        return grad_U, sign.unsqueeze(-1) * P if ctx.needs_input_grad[1] else None, None


class Loewdin(torch.autograd.Function):
    """U M^{-1/2} V with M = U^T U.

    Near an orthogonal matrix (up to scale), where training stays, M^{-1/2} acts through r poles,

        lambda^{-1/2} ~ sum_j w_j / (lambda + s_j),

    placed by elliptic functions (Hale, Higham, Trefethen 2008) so that r = 2 or 3 reach float32:
    r Cholesky factors, shared by both passes. Elsewhere the SVD of U in float64 does it (F.10):
    M would square the condition of U. Both gradients hold sums of eigenvalues or singular values,
    never differences: equal ones are harmless.
    """

    @staticmethod
    def forward(ctx: Any, U: Tensor, V: Tensor) -> Tensor:
        M = U.mT @ U
        low, high = spectrum(M)
        ctx.near = 1e-30 < high <= _MAX_CONDITION * low
        if not ctx.near:
            return _loewdin_by_svd(ctx, U, V)
        # 2e-6 in float32, the rounding error of the products around it
        shifts, weights = inverse_root_poles(low, high, 16 * torch.finfo(U.dtype).eps)
        factors, diagonal, before = [], M.diagonal(dim1=-2, dim2=-1), 0.0
        for shift in shifts:
            diagonal.add_(shift - before)
            factors.append(torch.linalg.cholesky_ex(M)[0])
            before = shift
        solutions = _solve_all(factors, V)
        ZV = _combine(solutions, weights)
        result = U @ ZV
        if _stretched(result, V):  # Note [Spectra]: an eigenvalue lies outside
            ctx.near = False
            return _loewdin_by_svd(ctx, U, V)
        ctx.weights = weights
        ctx.save_for_backward(U, solutions, ZV, *factors)
        return result

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, Tensor | None]:
        (G,) = grads
        if not ctx.near:
            P, Q, sigma, V = ctx.saved_tensors
            A, B = P.mT @ G, Q.mT @ V
            F = _skew_outer(A, B) / (sigma.unsqueeze(-1) + sigma.unsqueeze(-2))
            return (P @ F) @ Q.mT, Q @ A
        U, solutions, ZV, *factors = ctx.saved_tensors
        right = _solve_all(factors, U.mT @ G)
        grad_V = _combine(right, ctx.weights) if ctx.needs_input_grad[1] else None
        if not ctx.needs_input_grad[0]:
            return None, grad_V
        # dL/dM = - sum_j w_j B_j Y_j^T with the solutions B_j, Y_j of both passes, and
        # dL/dU = G (Z V)^T + U (dL/dM + dL/dM^T); in low rank as long as that is narrow.
        n = G.shape[-1]
        for j, w in enumerate(ctx.weights):
            right[..., j * n : (j + 1) * n].mul_(-w)
        if 2 * right.shape[-1] < U.shape[-1]:
            both = torch.cat([U @ right, U @ solutions, G], dim=-1)
            return both @ torch.cat([solutions, right, ZV], dim=-1).mT, grad_V
        grad_M = right @ solutions.mT
        return (G @ ZV.mT).add_(U @ (grad_M + grad_M.mT)), grad_V


def _solve_all(factors: list[Tensor], V: Tensor) -> Tensor:
    """The solutions for all Cholesky factors, side by side: (..., d, r n)."""
    n = V.shape[-1]
    solutions = V.new_empty(*V.shape[:-1], len(factors) * n)
    for j, L in enumerate(factors):  # torch.cholesky_solve would copy L each time
        half = torch.linalg.solve_triangular(L, V, upper=False)
        part = torch.linalg.solve_triangular(L.mT, half, upper=True)
        solutions[..., j * n : (j + 1) * n] = part
    return solutions


def _combine(blocks: Tensor, weights: list[float]) -> Tensor:
    """sum_j w_j times the j-th of the blocks that stand side by side."""
    n = blocks.shape[-1] // len(weights)
    total = weights[0] * blocks[..., :n]
    for j, w in enumerate(weights[1:], start=1):
        total.add_(blocks[..., j * n : (j + 1) * n], alpha=w)
    return total


def _loewdin_by_svd(ctx: Any, U: Tensor, V: Tensor) -> Tensor:
    P, sigma, Qt = torch.linalg.svd(U.double())  # R = P Q^T (F.10)
    # Where U is singular R has no gradient; a floor keeps it finite.
    sigma = sigma.maximum(torch.finfo(U.dtype).eps * sigma[..., :1]).clamp_min(1e-30)
    P, Q, sigma = P.to(U.dtype), Qt.mT.to(U.dtype), sigma.to(U.dtype)
    ctx.save_for_backward(P, Q, sigma, V)
    return P @ (Q.mT @ V)


class Exponential(torch.autograd.Function):
    """exp(W) V by the Chebyshev series of a skew matrix, in n columns at a time.

    With rho >= |W|_2, B = W / rho and Bessel functions J_k,

        exp(W) V = J_0 Y_0 + 2 sum_k J_k(rho) Y_k,
        Y_0 = V,  Y_1 = B V,  Y_{k+1} = 2 B Y_k + Y_{k-1},

    about rho + 8 products with n columns; no squaring, so rounding does not grow with |W|. Many
    full turns are left to scaling and squaring, in float64.
    """

    @staticmethod
    def forward(ctx: Any, W: Tensor, V: Tensor) -> Tensor:
        _, rho = spectrum(W, skew=True)
        ctx.squared = rho > _MAX_TURN
        if ctx.squared:
            ctx.save_for_backward(W, V)
            return (torch.matrix_exp(W.double()) @ V.double()).to(V.dtype)
        rho = rho if rho > 1e-2 else 1e-2
        for _ in range(8):
            coefficients = bessel(rho, torch.finfo(V.dtype).eps)
            terms = _chebyshev(W, rho, V, len(coefficients))
            result = _combine(terms, coefficients)
            if not _stretched(result, V):
                break
            rho *= 2.0  # Note [Spectra]: the estimate was too small
        ctx.rho, ctx.coefficients = rho, coefficients
        ctx.save_for_backward(W, terms)
        return result

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, Tensor | None]:
        (G,) = grads
        if ctx.squared:
            W, V = ctx.saved_tensors
            return _exponential_gradients(W, V, G)
        W, terms = ctx.saved_tensors
        c, n = ctx.coefficients, G.shape[-1]
        adjoints = torch.empty_like(terms)
        after = later = None  # the adjoints of Y_{k+1} and Y_{k+2}
        for k in range(len(c) - 1, -1, -1):
            now = torch.mul(G, c[k], out=adjoints[..., k * n : (k + 1) * n])
            if after is not None:
                now.add_(W @ after, alpha=-(2.0 if k else 1.0) / ctx.rho)  # B^T = -W / rho
            if later is not None:
                now.add_(later)
            after, later = now, after
        grad_W = None
        if ctx.needs_input_grad[0]:
            right = terms[..., :-n] * (2.0 / ctx.rho)
            right[..., :n].mul_(0.5)  # Y_1 = B Y_0 lacks the 2 of the later ones
            grad_W = adjoints[..., n:] @ right.mT
        return grad_W, adjoints[..., :n]


def _exponential_gradients(W: Tensor, V: Tensor, G: Tensor) -> tuple[Tensor, Tensor]:
    """From exp [[A, E], [0, A]] with A = W^T, E = G V^T: its corner is the gradient."""
    d = W.shape[-1]
    A, E = W.mT.double(), G.double() @ V.double().mT
    top, bottom = torch.cat([A, E], dim=-1), torch.cat([torch.zeros_like(A), A], dim=-1)
    both = torch.matrix_exp(torch.cat([top, bottom], dim=-2))
    transposed, corner = both[..., :d, :d], both[..., :d, d:]
    return corner.to(W.dtype), (transposed @ G.double()).to(V.dtype)


def _chebyshev(W: Tensor, rho: float, V: Tensor, count: int) -> Tensor:
    """Y_0, Y_1, ... side by side: (..., d, count n)."""
    n = V.shape[-1]
    terms = V.new_empty(*V.shape[:-1], count * n)
    parts = terms.split(n, dim=-1)
    parts[0].copy_(V)
    parts[1].copy_((W @ V).div_(rho))
    for k in range(2, count):
        torch.add(parts[k - 2], W @ parts[k - 1], alpha=2.0 / rho, out=parts[k])
    return terms


# Note [Compiled graphs]
# Loewdin and the exponential look at their matrix to choose a number of terms, which a compiler
# cannot follow. For torch.compile they are operators of their own; between the two passes only
# their inputs are kept, so the backward pass factorizes anew.
class _Context:
    """Stands in for autograd's context where autograd is not at work."""

    needs_input_grad = (True, True)

    def save_for_backward(self, *tensors: Tensor) -> None:
        self.saved_tensors = tensors


_OPAQUE: dict[str, Any] = {"loewdin": Loewdin, "exponential": Exponential}


@torch.library.custom_op("hypersphere::rotation_series", mutates_args=())
def rotation_series(A: Tensor, V: Tensor, method: str) -> Tensor:
    """Loewdin(U, V) or Exponential(W, V). Note [Compiled graphs]."""
    return _OPAQUE[method].forward(_Context(), A, V).contiguous()


@torch.library.custom_op("hypersphere::rotation_series_backward", mutates_args=())
def rotation_series_backward(A: Tensor, V: Tensor, G: Tensor, method: str) -> tuple[Tensor, Tensor]:
    context = _Context()
    _OPAQUE[method].forward(context, A, V)
    grad_A, grad_V = _OPAQUE[method].backward(context, G)
    return grad_A.contiguous(), grad_V.contiguous()


@rotation_series.register_fake
def _(A: Tensor, V: Tensor, method: str) -> Tensor:
    return V.new_empty(V.shape)


@rotation_series_backward.register_fake
def _(A: Tensor, V: Tensor, G: Tensor, method: str) -> tuple[Tensor, Tensor]:
    return A.new_empty(A.shape), V.new_empty(V.shape)


def _keep_inputs(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
    A, V, ctx.method = inputs
    ctx.save_for_backward(A, V)


def _series_gradients(ctx: Any, G: Tensor) -> tuple[Tensor, Tensor, None]:
    return *rotation_series_backward(*ctx.saved_tensors, G, ctx.method), None


rotation_series.register_autograd(_series_gradients, setup_context=_keep_inputs)


def series(A: Tensor, V: Tensor, method: str) -> Tensor:
    if torch.compiler.is_compiling():
        return rotation_series(A, V, method)
    return _OPAQUE[method].apply(A, V)


def _stretched(result: Tensor, V: Tensor) -> bool:
    """Whether a map that should keep the lengths of the columns has not."""
    lengths = torch.linalg.vector_norm(V, dim=-2)
    error = (torch.linalg.vector_norm(result, dim=-2) - lengths).abs().amax()
    return bool(error > torch.finfo(V.dtype).eps ** 0.75 * lengths.amax())


def _skew_outer(A: Tensor, B: Tensor) -> Tensor:
    """A B^T - B A^T in one product."""
    return torch.cat([A, -B], dim=-1) @ torch.cat([B, A], dim=-1).mT
