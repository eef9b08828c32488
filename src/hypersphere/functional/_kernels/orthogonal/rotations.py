"""What all kernels of `orthogonalize` share.

Each kernel computes ``R(U) @ V`` for one U (d, d) and V (d, n), or for a batch of them, without
forming R. The hand-written gradients use what the forward pass has factorized, and the low rank
of dL/dR = G V^T: n is much smaller than d in a convolution. Inside, vectors are the rows of a
contiguous (..., n, d), the layout of a weight and the one that LAPACK reads without a copy.
Second derivatives are not defined (`differentiable_once` says so).
"""

from __future__ import annotations

import torch
from torch import Tensor

from ...host import known
from .panels import spans


def skew(U: Tensor) -> Tensor:
    """W = triu(U, 1) - triu(U, 1)^T: the upper triangle holds all that a skew matrix can learn."""
    upper = U.triu(1)
    return upper - upper.mT


def upper_skew_outer(a: Tensor, b: Tensor) -> Tensor:
    """triu(A B^T - B A^T, 1), for A and B given by rows: a = A^T, b = B^T."""
    left, right = torch.cat([a, b], dim=-2), torch.cat([b, -a], dim=-2)
    return (left.mT @ right).triu_(1)


def above_skew_outer(a: Tensor, b: Tensor) -> Tensor:
    """The same above the diagonal, for about half of the work; elsewhere, anything."""
    left, right = torch.cat([a, b], dim=-2), torch.cat([b, -a], dim=-2)
    d = a.shape[-1]
    result = a.new_empty(*a.shape[:-2], d, d)
    for first, last in spans(d):
        part = result[..., first:last, first:]
        torch.matmul(left[..., first:last].mT, right[..., first:], out=part)
    return result


def stretched(result: Tensor, V: Tensor, tolerance: float | None = None) -> bool:
    """Whether a map that should keep the lengths of the columns has not."""
    if not V.numel():
        return False
    tolerance = torch.finfo(V.dtype).eps ** 0.75 if tolerance is None else tolerance
    lengths = torch.linalg.vector_norm(V, dim=-2)
    error = (torch.linalg.vector_norm(result, dim=-2) - lengths).abs().amax()
    # not <=, as an overflow must not pass either; what is not known counts as kept
    return known(error <= tolerance * lengths.amax()) == 0
