"""The exponential map: R V = exp(W) V for a skew W, and its gradient, from Chebyshev series."""

from __future__ import annotations

from ctypes import c_float, c_int, c_void_p
from functools import cache, partial
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from ...host import can_look
from ..autograd import Function, differentiable_once
from ..libraries import library, switched_off, trial
from .blas import gemm
from .packed import pack_skew, skew_of_packed
from .rotations import above_skew_outer, skew, stretched, upper_skew_outer
from .spectra import bessel, gauss_legendre, spectrum

# The series has about |W|_2 terms: beyond this, squaring is cheaper.
_MAX_TURN = 64.0
# Squaring loses |W| eps: a larger W is scaled back to this. Angles of 1e8 radians are noise in
# float32 and have half their digits in float64.
_LARGEST = 1e8
_FEW = 128  # columns up to which one thread is through before a second one has started


class Exponential(Function):
    r"""exp(W) V with W = skew(U), in n columns at a time; U is (..., d, d) or packed.

    With rho >= \|W\|_2, B = W / rho and Bessel functions J_k, for every s in [0, 1]

        exp(s W) V = J_0(s rho) Y_0 + 2 sum_k J_k(s rho) Y_k,
        Y_0 = V,  Y_1 = B V,  Y_{k+1} = 2 B Y_k + Y_{k-1},

    about rho + 8 products with n columns; no squaring, so rounding does not grow with \|W\|. The
    gradient is the integral

        dL/dW = int_0^1 (exp((1 - s) W^T) G) (exp(s W) V)^T ds,

    taken at the few nodes of a Gauss-Legendre rule: all of them are sums of the same Y_k and of
    those of G. Many full turns are left to scaling and squaring, in float64; beyond 1e8 radians W
    is scaled back to that.
    """

    @staticmethod
    def forward(ctx: Any, U: Tensor, V: Tensor, packed: bool = False) -> Tensor:
        ctx.packed, W = packed, skew_of_packed(U, V.shape[-2]) if packed else skew(U)
        _, rho = spectrum(W, skew=True)
        ctx.squared = not rho <= _MAX_TURN  # nor if rho is not a number
        rho = max(rho, 1e-2)
        while not ctx.squared:
            coefficients = bessel([rho], _error(V.dtype, rho))
            terms = _chebyshev(W, -1.0 / rho, V.mT, coefficients.shape[1])
            result = _sums(coefficients, terms)[0].mT
            if not stretched(result, V):
                break
            rho *= 2.0  # Note [Spectra]: the estimate was too small
            ctx.squared = rho > _MAX_TURN
        if ctx.squared:
            row_sums = torch.linalg.matrix_norm(W, ord=torch.inf, keepdim=True)  # >= |W|_2
            ctx.shrink = (_LARGEST / row_sums).clamp_max(1.0)
            W = W * ctx.shrink
            ctx.save_for_backward(W, V)
            return (torch.matrix_exp(W.double()) @ V.double()).to(V.dtype)
        ctx.rho = rho
        ctx.save_for_backward(W, terms)
        return result

    @staticmethod
    @differentiable_once
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, Tensor | None, None]:
        (G,) = grads
        if ctx.squared:
            W, V = ctx.saved_tensors
            return *_by_squaring(ctx, W, V, G, ctx.shrink), None
        (W, terms), rho = ctx.saved_tensors, ctx.rho
        error = _error(G.dtype, rho)
        nodes, weights = gauss_legendre(2.0 * rho, error)
        coefficients = bessel([*(rho * nodes).tolist(), rho], error, len(terms))
        left = _sums(coefficients, _chebyshev(W, 1.0 / rho, G.mT, len(terms)))
        if stretched(left[-1].mT, G):  # Note [Spectra]: an angle that V does not see
            return *_by_squaring(ctx, W, terms[0].mT, G, 1.0), None
        grad_U = None
        if ctx.needs_input_grad[0]:
            # The nodes lie evenly about 1/2: the sum for 1 - s is the one at the other end.
            right = _sums(coefficients[:-1].flip(0) * weights.unsqueeze(-1), terms)
            grad_U = _skew_outer(_side_by_side(left[:-1]), _side_by_side(right), ctx.packed)
        return grad_U, left[-1].mT, None


def _by_squaring(
    ctx: Any, W: Tensor, V: Tensor, G: Tensor, shrink: Tensor | float
) -> tuple[Tensor, Tensor]:
    grad_W, grad_V = _squared_gradients(W, V, G)
    grad_W = (grad_W - grad_W.mT).mul_(shrink)
    return pack_skew(grad_W) if ctx.packed else grad_W.triu_(1), grad_V


def _error(dtype: torch.dtype, rho: float) -> float:
    """Where series are cut: 2e-6 in float32, the rounding error of the products around it.

    A series of many turns has many terms, and so many errors.
    """
    return 16 * torch.finfo(dtype).eps / max(1.0, rho / 4)


def _chebyshev(W: Tensor, scale: float, rows: Tensor, count: int) -> Tensor:
    """The rows of Y_0, Y_1, ...: (count, ..., n, d). Those of W V are -(the rows of V) W."""
    terms = rows.new_empty(count, *rows.shape)
    kernels = _library() if W.dim() == 2 and W.dtype == torch.float32 and can_look(W) else None
    if kernels is not None and rows.numel() and not switched_off():
        return _run_chebyshev(kernels, W, scale, rows, terms)
    return _plain_chebyshev(W, scale, rows, terms)


def _run_chebyshev(kernels: Any, W: Tensor, scale: float, rows: Tensor, terms: Tensor) -> Tensor:
    terms[0], matrix, (n, d) = rows, W.contiguous(), rows.shape
    places = (gemm(), matrix.data_ptr(), terms.data_ptr())
    threads = torch.get_num_threads() if d > _FEW else 1
    kernels.chebyshev(*places, scale, len(terms), d, n, threads)
    return terms


def _plain_chebyshev(W: Tensor, scale: float, rows: Tensor, terms: Tensor) -> Tensor:
    product = torch.addmm if W.dim() == 2 else torch.baddbmm
    terms[0] = rows
    product(terms[0], terms[0], W, beta=0.0, alpha=scale, out=terms[1])
    for k in range(2, len(terms)):
        product(terms[k - 2], terms[k - 1], W, alpha=2.0 * scale, out=terms[k])
    return terms


@cache
def _library() -> Any:
    """The function of chebyshev.cpp, or None; tried once, on a few numbers."""
    if gemm() is None:
        return None
    found = library(Path(__file__).with_name("chebyshev.cpp").read_text())
    if found is None:
        return None
    places = [c_void_p, c_void_p, c_void_p]
    found.chebyshev.argtypes = [*places, c_float, c_int, c_int, c_int, c_int]
    found.chebyshev.restype = None
    return found if _agrees(found) else None


@trial
def _agrees(kernels: Any) -> bool:
    """Whether both forms give the same terms."""
    with torch.no_grad(), torch.device("cpu"):
        W = skew(torch.linspace(-0.7, 1.3, 9, dtype=torch.float32).view(3, 3))
        rows = torch.linspace(-1.0, 1.7, 6, dtype=torch.float32).view(2, 3)
        both = [
            run(W, 0.5, rows, rows.new_empty(4, 2, 3)).flatten().tolist()
            for run in (partial(_run_chebyshev, kernels), _plain_chebyshev)
        ]
    return all(abs(a - b) <= 1e-4 for a, b in zip(*both, strict=True))


def _sums(coefficients: Tensor, terms: Tensor) -> Tensor:
    """sum_k c_{qk} Y_k for every row q of the coefficients."""
    flat = coefficients.to(terms) @ terms.flatten(1)
    return flat.view(len(coefficients), *terms.shape[1:])


def _side_by_side(sums: Tensor) -> Tensor:
    """(count, ..., n, d) -> (..., count n, d)"""
    return sums.movedim(0, -3).flatten(-3, -2)


def _skew_outer(a: Tensor, b: Tensor, packed: bool) -> Tensor:
    """triu(A B^T - B A^T, 1) for A and B given by rows: a = A^T, b = B^T."""
    if 3 * a.shape[-2] <= 2 * a.shape[-1]:
        return pack_skew(above_skew_outer(a, b)) if packed else upper_skew_outer(a, b)
    product = a.mT @ b  # so many rows would take more memory than the matrix
    difference = product - product.mT
    return pack_skew(difference) if packed else difference.triu_(1)


def _squared_gradients(W: Tensor, V: Tensor, G: Tensor) -> tuple[Tensor, Tensor]:
    """From exp [[A, E], [0, A]] with A = W^T, E = G V^T: its corner is the gradient."""
    d = W.shape[-1]
    A, E = W.mT.double(), G.double() @ V.double().mT
    top, bottom = torch.cat([A, E], dim=-1), torch.cat([torch.zeros_like(A), A], dim=-1)
    both = torch.matrix_exp(torch.cat([top, bottom], dim=-2))
    transposed, corner = both[..., :d, :d], both[..., :d, d:]
    return corner.to(W.dtype), (transposed @ G.double()).to(V.dtype)
