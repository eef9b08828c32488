"""The volume that neurons span in the feature space of a Gaussian kernel, as a loss (MGD)."""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor

from ._kernels.autograd import Function, full_precision, runs_eagerly
from ._kernels.spreading.cosines import in_range, pair_cosines
from ._kernels.spreading.row_blocks import as_sets
from .host import can_look, demand

__all__ = ["gram_determinant"]


def gram_determinant(
    weight: Tensor,
    epsilon: float = 1.0,
    half_space: bool = False,
    ridge: float = 1e-6,
    sets: bool = False,
) -> Tensor:
    r"""Minus the mean log eigenvalue of a Gaussian Gram matrix, to be minimized:

    .. math:: -\frac{1}{N} \log\det(K + r I), \quad
        K_{ij} = \exp(-\epsilon^2 |\hat w_i - \hat w_j|^2)

    It is the maximum Gram determinant of Liu et al., "Learning with Hyperspherical Uniformity"
    (AISTATS 2021), whose minimum over N <= d + 1 neurons is the regular simplex. K is positive
    definite for different directions and singular for equal ones; the ridge r bounds its
    eigenvalues from below, and with them value and gradient.

    Args:
        weight: (N, ...), one neuron or feature per row, N >= 2; (sets, N, d) with ``sets=True``.
            Lengths do not matter, and a zero row counts as orthogonal to everything.
        epsilon: 1 / width of the kernel, > 0. Larger values look at close neighbors alone.
        half_space: the determinant of the 2N directions {w, -w}, over 2N. It factors into two
            N x N ones, of the sum and of the difference of both kernels.
        ridge: r > 0, the floor of the eigenvalues.
        sets: whether the first dimension counts separate sets.

    Returns:
        A scalar, or (sets,) with ``sets=True``; in float32 or wider, by a Cholesky factorization in
        float64 where the device has it. Memory is O(N^2) and time O(N^3): for many neurons take a
        random batch.

    Differs from the released code: divided by N, so that layers count alike.

    >>> x = torch.tensor([[1.0, 0.0], [-1.0, 0.0]])
    >>> gram_determinant(x)  # -log(1 - exp(-8)) / 2
    tensor(0.0002)
    """
    if not (epsilon > 0 and math.isfinite(epsilon)):
        raise ValueError(f"epsilon must be a finite number > 0, got {epsilon}")
    if not (ridge > 0 and math.isfinite(ridge)):
        raise ValueError(f"ridge must be a finite number > 0, got {ridge}")
    with full_precision(weight.device.type):
        w = as_sets(weight, sets, "gram_determinant")
        wide = w.dtype if w.device.type == "mps" else torch.float64
        cos = pair_cosines(in_range(w), wide)
        result = _mean_log_eigenvalue(cos, 2 * epsilon**2, ridge, half_space).neg().to(w.dtype)
    return result if sets else result[0]


def _mean_log_eigenvalue(cos: Tensor, factor: float, ridge: float, half_space: bool) -> Tensor:
    """log det(K + ridge) / n for cosines (B, N, N), with K = exp(factor (cos - 1)): (B,)."""
    n = cos.shape[1]
    same = torch.eye(n, dtype=torch.bool, device=cos.device)
    cos = cos.masked_fill(same, 1)
    kernel = torch.exp(factor * (cos - 1))
    if not half_space:
        return _log_determinant(kernel, ridge) / n
    # [[K, M], [M, K]] with M the kernel to the mirror images has the eigenvalues of K + M and K - M
    mirrored = torch.exp(factor * (-cos - 1))
    both = _log_determinant(kernel + mirrored, ridge) + _log_determinant(kernel - mirrored, ridge)
    return both / (2 * n)


def _log_determinant(matrix: Tensor, ridge: float) -> Tensor:
    """log det(A + ridge I) of symmetric matrices (B, N, N): (B,)."""
    eye = torch.eye(matrix.shape[-1], dtype=matrix.dtype, device=matrix.device)
    run = _LogDeterminant.forward if runs_eagerly() else _LogDeterminant.apply
    result: Tensor = run(matrix + ridge * eye)[0]
    demand(
        result.detach().isfinite().all(),
        lambda: (
            "expected finite neurons; they hold NaN or infinity"
            if not matrix.detach().isfinite().all()
            else f"the Gram matrix of {matrix.shape[-1]} neurons is not positive definite in "
            f"{matrix.dtype} with ridge={ridge:g}: use a larger ridge, or a larger epsilon"
        ),
    )
    return result


class _LogDeterminant(Function):
    """2 sum log diag(L), A = L L^T, whose gradient is the inverse of A; NaN if there is no L.

    The inverse from L is a third of the work of the gradient of a Cholesky factorization.
    """

    @staticmethod
    def forward(matrix: Tensor) -> tuple[Tensor, Tensor]:
        factor, failed = torch.linalg.cholesky_ex(matrix)
        value = 2 * factor.diagonal(dim1=-2, dim2=-1).log().sum(-1)
        return torch.where(failed == 0, value, math.nan), factor

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, Tensor]) -> None:
        ctx.mark_non_differentiable(output[1])
        ctx.save_for_backward(inputs[0], output[1])

    @staticmethod
    def backward(ctx: Any, grad: Tensor, _: Any) -> Tensor:
        matrix, factor = ctx.saved_tensors
        inverse: Tensor
        if torch.is_grad_enabled():  # the gradient will be differentiated
            inverse = torch.linalg.inv(matrix)
        elif can_look(factor):
            inverse = torch.cholesky_inverse(factor)  # which asks whether it went well
        else:
            eye = torch.eye(len(factor[0]), dtype=factor.dtype, device=factor.device)
            root = torch.linalg.solve_triangular(factor, eye.expand_as(factor), upper=False)
            inverse = root.mT @ root
        return grad[:, None, None] * inverse
