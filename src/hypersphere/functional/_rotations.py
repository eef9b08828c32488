"""How R(U) acts on a few vectors, with hand-written gradients: the kernels of `orthogonalize`.

Each class computes ``R(U) @ V`` for ``U (..., d, d)`` and ``V (..., d, n)`` without forming R.
The backward passes use what the forward pass has factorized, and the low rank of the gradient:
dL/dR = G V^T has rank n, and n is much smaller than d in a convolution.

Second derivatives with respect to U are not defined here (`once_differentiable` says so).
"""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

# Note [Spectra]
# Loewdin and the exponential choose their number of terms from the spectrum of a matrix. A few
# Lanczos steps come within some percent of its ends, from the inside; this margin makes up for the
# rest, and the exponential checks afterwards that lengths were kept.
_LANCZOS_STEPS = 10
_MARGIN = 0.06
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
    r Cholesky factors, shared by both passes. Elsewhere eigenvectors of M in float64 do it. Both
    gradients hold sums of eigenvalues, never differences: equal singular values are harmless.
    """

    @staticmethod
    def forward(ctx: Any, U: Tensor, V: Tensor) -> Tensor:
        M = U.mT @ U
        low, high = spectrum(M)
        ctx.near = 1e-30 < high <= _MAX_CONDITION * low
        if not ctx.near:
            return _loewdin_by_eigenvectors(ctx, U, V)
        shifts, weights = inverse_root_poles(low, high, torch.finfo(U.dtype).eps)
        shifted = torch.stack([M] * len(shifts))
        for system, shift in zip(shifted, shifts, strict=True):
            system.diagonal(dim1=-2, dim2=-1).add_(shift)
        factors, _ = torch.linalg.cholesky_ex(shifted)
        solutions = torch.cholesky_solve(V.expand(len(shifts), *V.shape), factors)
        ZV = _weighted_sum(solutions, weights)
        ctx.weights = weights
        ctx.save_for_backward(U, factors, solutions, ZV)
        return U @ ZV

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, Tensor | None]:
        (G,) = grads
        if not ctx.near:
            P, Q, sigma, V = ctx.saved_tensors
            A, B = P.mT @ G, Q.mT @ V
            F = _skew_outer(A, B) / (sigma.unsqueeze(-1) + sigma.unsqueeze(-2))
            return (P @ F) @ Q.mT, Q @ A
        U, factors, solutions, ZV = ctx.saved_tensors
        B = U.mT @ G
        B = torch.cholesky_solve(B.expand(len(factors), *B.shape), factors)
        grad_V = _weighted_sum(B, ctx.weights)
        if not ctx.needs_input_grad[0]:
            return None, grad_V
        # dL/dM = - sum_j w_j B_j Y_j^T with the solutions Y_j of both passes, and
        # dL/dU = G (Z V)^T + U (dL/dM + dL/dM^T); in low rank as long as that is narrow.
        left = torch.cat([-w * b for w, b in zip(ctx.weights, B, strict=True)], dim=-1)
        right = torch.cat(list(solutions), dim=-1)
        if 2 * left.shape[-1] < U.shape[-1]:
            both = U @ torch.cat([left, right], dim=-1)
            return torch.cat([both, G], -1) @ torch.cat([right, left, ZV], -1).mT, grad_V
        grad_M = left @ right.mT
        return (G @ ZV.mT).add_(U @ (grad_M + grad_M.mT)), grad_V


def _loewdin_by_eigenvectors(ctx: Any, U: Tensor, V: Tensor) -> Tensor:
    wide = U.double()
    values, Q = torch.linalg.eigh(wide.mT @ wide)
    sigma = values.clamp_min(0.0).sqrt()
    sigma = sigma.maximum(torch.finfo(U.dtype).eps * sigma[..., -1:]).clamp_min(1e-30)
    P = (wide @ Q) / sigma.unsqueeze(-2)
    P, Q, sigma = P.to(U.dtype), Q.to(U.dtype), sigma.to(U.dtype)
    ctx.save_for_backward(P, Q, sigma, V)
    return P @ (Q.mT @ V)


class Exponential(torch.autograd.Function):
    """exp(W) V by the Chebyshev series of a skew matrix, in n columns at a time.

    With rho >= |W|_2, B = W / rho and Bessel functions J_k,

        exp(W) V = J_0 Y_0 + 2 sum_k J_k(rho) Y_k,
        Y_0 = V,  Y_1 = B V,  Y_{k+1} = 2 B Y_k + Y_{k-1},

    about rho + 8 products with n columns; no squaring, so rounding does not grow with |W|.
    """

    @staticmethod
    def forward(ctx: Any, W: Tensor, V: Tensor, rho: float) -> Tensor:
        lengths = torch.linalg.vector_norm(V, dim=-2)
        tolerance = torch.finfo(V.dtype).eps ** 0.75 * lengths.amax()
        for _ in range(8):
            coefficients = _bessel(rho, torch.finfo(V.dtype).eps)
            terms = _chebyshev(W / rho, V, len(coefficients))
            result = _weighted_sum(terms, coefficients)
            error = (torch.linalg.vector_norm(result, dim=-2) - lengths).abs().amax()
            if not bool(error > tolerance):
                break
            rho *= 2.0  # Note [Spectra]: the estimate was too small
        ctx.rho, ctx.coefficients = rho, coefficients
        ctx.save_for_backward(W, terms)
        return result

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, Tensor | None, None]:
        W, terms = ctx.saved_tensors
        (G,) = grads
        c, B = ctx.coefficients, W / (-ctx.rho)  # B^T
        count = len(c)
        adjoints = torch.empty_like(terms)
        for k in range(count - 1, -1, -1):
            adjoints[k] = c[k] * G
            if k + 1 < count:
                adjoints[k].add_(B @ adjoints[k + 1], alpha=2.0 if k else 1.0)
            if k + 2 < count:
                adjoints[k].add_(adjoints[k + 2])
        grad_W = None
        if ctx.needs_input_grad[0]:
            left = torch.cat([adjoints[1], *(2.0 * adjoints[2:]).unbind(0)], dim=-1)
            grad_W = left @ (torch.cat(list(terms[:-1]), dim=-1) / ctx.rho).mT
        return grad_W, adjoints[0], None


def exponential(U: Tensor, V: Tensor) -> Tensor:
    """exp(W) V for the skew W of U: the series or, for many turns, scaling and squaring."""
    W = skew(U)
    _, rho = spectrum(W.detach(), skew=True)
    if rho > _MAX_TURN:
        return (torch.matrix_exp(W.double()) @ V.double()).to(V.dtype)
    return Exponential.apply(W, V, rho if rho > 1e-2 else 1e-2)


def _chebyshev(B: Tensor, V: Tensor, count: int) -> Tensor:
    terms = V.new_empty((count, *V.shape))
    terms[0] = V
    terms[1] = B @ V
    for k in range(2, count):
        torch.add(terms[k - 2], B @ terms[k - 1], alpha=2.0, out=terms[k])
    return terms


def _skew_outer(A: Tensor, B: Tensor) -> Tensor:
    """A B^T - B A^T in one product."""
    return torch.cat([A, -B], dim=-1) @ torch.cat([B, A], dim=-1).mT


def _weighted_sum(stack: Tensor, weights: list[float]) -> Tensor:
    return torch.tensordot(stack.new_tensor(weights), stack, dims=1)


def spectrum(A: Tensor, skew: bool = False) -> tuple[float, float]:
    """Ends of the spectrum of symmetric A (..., d, d), or of A / i for skew A. Note [Spectra]."""
    d = A.shape[-1]
    unit = torch.linalg.vector_norm(A, ord=math.inf, dim=(-2, -1), keepdim=True)
    unit = torch.where(unit > 0, unit, 1.0)  # so that squares neither under- nor overflow
    mean = A.diagonal(dim1=-2, dim2=-1).mean(-1)[..., None, None] / unit  # 0 for a skew matrix
    x = torch.cos(torch.arange(d, dtype=A.dtype, device=A.device)).expand(*A.shape[:-2], d)
    x = (x / torch.linalg.vector_norm(x, dim=-1, keepdim=True)).unsqueeze(-1)
    previous, beta = torch.zeros_like(x), torch.zeros_like(mean)
    alphas, betas = [], []
    for _ in range(min(_LANCZOS_STEPS, d)):
        # Around the mean eigenvalue, the zeros after an early end lie within the spectrum.
        y = (A @ x) / unit - mean * x
        alpha = x.mT @ y
        y = y - alpha * x + (beta if skew else -beta) * previous
        beta = torch.linalg.vector_norm(y, dim=-2, keepdim=True)
        previous, x = x, torch.where(beta > 0, y / beta, 0.0)
        alphas.append(alpha[..., 0])
        betas.append(beta[..., 0])
    T = torch.diag_embed(torch.cat(alphas, -1))
    if len(betas) > 1:
        off = torch.diag_embed(torch.cat(betas[:-1], -1), offset=1)
        T = T + off + off.mT
    if not bool(torch.isfinite(T).all()):
        return math.nan, math.nan
    values = torch.linalg.eigvalsh(T.double()) + mean[..., 0]
    margin = _MARGIN * (values[..., -1:] - values[..., :1])
    low, high = (
        (values[..., :1] - margin) * unit[..., 0],
        (values[..., -1:] + margin) * unit[..., 0],
    )
    return float(low.min()), float(high.max())


def inverse_root_poles(low: float, high: float, eps: float) -> tuple[list[float], list[float]]:
    """Shifts s_j and weights w_j with lambda^{-1/2} ~ sum_j w_j / (lambda + s_j) on [low, high].

    The trapezoidal rule after a conformal map; the error is about 2 exp(-2 pi r K / K').

    >>> shifts, weights = inverse_root_poles(1.0, 2.0, eps=1e-7)
    >>> len(shifts), round(sum(w / (1.5 + s) for s, w in zip(shifts, weights)) * 1.5**0.5, 6)
    (3, 1.0)
    """
    ratio = min(low / high, 1.0 - 1e-9)
    half, full = _elliptic_k(1.0 - ratio), _elliptic_k(ratio)
    count = max(1, math.ceil(math.log(eps) * half / (-2.0 * math.pi * full)))
    shifts, weights = [], []
    for j in range(count):
        sn, cn, dn = _jacobi((j + 0.5) * half / count, 1.0 - ratio)
        shifts.append(low * (sn / cn) ** 2)
        weights.append(2.0 * half * math.sqrt(low) / (math.pi * count) * dn / cn**2)
    return shifts, weights


def _elliptic_k(m: float) -> float:
    a, b = 1.0, math.sqrt(1.0 - m)
    while abs(a - b) > 1e-15 * a:
        a, b = (a + b) / 2, math.sqrt(a * b)
    return math.pi / (2.0 * a)


def _jacobi(u: float, m: float) -> tuple[float, float, float]:
    """sn, cn, dn at u with parameter m, by the arithmetic-geometric mean."""
    a, b, c = 1.0, math.sqrt(1.0 - m), math.sqrt(m)
    ratios = []
    while abs(c) > 1e-16:
        a, b, c = (a + b) / 2, math.sqrt(a * b), (a - b) / 2
        ratios.append(c / a)
    phi = 2.0 ** len(ratios) * a * u
    for r in reversed(ratios):
        phi = (phi + math.asin(r * math.sin(phi))) / 2
    sn = math.sin(phi)
    return sn, math.cos(phi), math.sqrt(1.0 - m * sn * sn)


def _bessel(rho: float, eps: float) -> list[float]:
    """J_0(rho), 2 J_1(rho), 2 J_2(rho), ... down to eps, by Miller's backward recurrence."""
    start = 2 * (int(rho + 12 * rho ** (1 / 3) + 20) // 2)
    values, above = [0.0] * (start + 1), 0.0
    values[start] = 1e-30
    for k in range(start, 0, -1):
        values[k - 1] = 2 * k / rho * values[k] - above
        above = values[k]
        if abs(values[k - 1]) > 1e200:
            values = [v * 1e-200 for v in values]
            above *= 1e-200
    total = values[0] + 2 * sum(values[2::2])  # J_0 + 2 J_2 + 2 J_4 + ... = 1
    values = [values[0] / total] + [2 * v / total for v in values[1:]]
    count = max(k for k, v in enumerate(values) if abs(v) > eps / 8) + 1
    return values[: max(count, 3)]
