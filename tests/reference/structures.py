"""Structured orthogonal matrices in float64, written out entry by entry."""

from __future__ import annotations

import torch
from torch import Tensor


def cayley(W: Tensor) -> Tensor:
    """(I + W)(I - W)^{-1} of a skew W (7.3.4)."""
    eye = torch.eye(len(W), dtype=torch.float64)
    return (eye + W) @ torch.linalg.inv(eye - W)


def skew_of(numbers: Tensor, d: int) -> Tensor:
    """The skew matrix with the given numbers above its diagonal, row by row."""
    W = torch.zeros(d, d, dtype=torch.float64)
    values = iter(numbers.double().tolist())
    for i in range(d):
        for j in range(i + 1, d):
            W[i, j] = next(values)
            W[j, i] = -W[i, j]
    return W


def butterfly(blocks: list[list[Tensor]], d: int) -> Tensor:
    """R = R_m ... R_1 of BOFT: block p of factor i turns two halves 2^(i-1) halves apart.

    Args:
        blocks: orthogonal (b, b) matrices, a list per factor.
        d: size of R.
    """
    R = torch.eye(d, dtype=torch.float64)
    for i, factor in enumerate(blocks):
        b = len(factor[0])
        half, stride = b // 2, 2**i
        F = torch.zeros(d, d, dtype=torch.float64)
        for p, block in enumerate(factor):
            if i == 0:
                places = list(range(p * b, (p + 1) * b))
            else:
                group, offset = divmod(p, stride)
                first = group * 2 * stride + offset
                places = [h * half + j for h in (first, first + stride) for j in range(half)]
            for r, row in enumerate(places):
                for c, column in enumerate(places):
                    F[row, column] = block[r, c]
        R = F @ R
    return R


def reflections(U: Tensor) -> Tensor:
    """H_1 H_2 ... H_r of HRA, H_i = I - 2 u u^T / |u|^2 with the rows u of U."""
    d = U.shape[-1]
    R = torch.eye(d, dtype=torch.float64)
    for u in U.double():
        R = R @ (torch.eye(d, dtype=torch.float64) - 2 * torch.outer(u, u) / (u @ u))
    return R


def both_sides(P: Tensor, W: Tensor, R: Tensor) -> Tensor:
    """POET: P W R^T, entry by entry."""
    n, d = W.shape
    result = torch.zeros(n, d, dtype=torch.float64)
    for i in range(n):
        for j in range(d):
            result[i, j] = sum(P[i, a] * W[a, c] * R[j, c] for a in range(n) for c in range(d))
    return result
