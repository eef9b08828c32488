"""Maps from R^d to a smaller R^k that keep angles, for the compressive energy of chapter 6.

A projection is a matrix P (k, d), several of them a stack (C, k, d); neurons are the rows of
W (N, d), and their images the rows of W P^T. Only directions matter, so P has no fixed scale.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

from ..registry import unknown_name

__all__ = [
    "adversarial_step",
    "bilateral_low_rank",
    "count_sketch_projection",
    "gaussian_projection",
    "hadamard_projection",
    "project",
    "sketch",
]


def gaussian_projection(
    in_dim: int, dim: int, count: int = 1, generator: torch.Generator | None = None
) -> Tensor:
    """Random projections with independent N(0, 1) entries, Eq. 6.4.

    Args:
        in_dim: d, dimension of the neurons.
        dim: k, dimension of their images.
        count: number of projections.
        generator: source of randomness, on the CPU.

    Returns:
        (count, dim, in_dim), float32.
    """
    _check_sizes(in_dim, dim, count)
    return torch.randn(count, dim, in_dim, generator=generator)


def hadamard_projection(
    in_dim: int, dim: int, count: int = 1, generator: torch.Generator | None = None
) -> Tensor:
    """Subsampled randomized Hadamard transform P = S H D (6.5), written out as a matrix.

    D flips the sign of each coordinate at random, H is the Hadamard matrix of the next power of
    two, S keeps `dim` different rows of it at random. H[r, c] = (-1)^popcount(r & c). For the few
    rows that CoMHE keeps, the product with the matrix is faster than the butterfly transform.

    Args:
        in_dim: d, dimension of the neurons.
        dim: k, dimension of their images.
        count: number of projections.
        generator: source of randomness, on the CPU.

    Returns:
        (count, dim, in_dim), float32.

    >>> p = hadamard_projection(8, 8)[0]
    >>> torch.equal(p @ p.T, 8 * torch.eye(8))
    True
    """
    _check_sizes(in_dim, dim, count)
    size = 1 << (in_dim - 1).bit_length()
    if dim > size:
        raise ValueError(
            f"a Hadamard sketch of {in_dim} coordinates has at most {size} rows, not {dim}"
        )
    stack = []
    for _ in range(count):
        kept = torch.randperm(size, generator=generator)[:dim]
        signs = torch.randint(0, 2, (in_dim,), generator=generator) * 2 - 1
        common = kept[:, None] & torch.arange(in_dim)[None]
        parity = torch.zeros_like(common)
        for bit in range(size.bit_length()):
            parity ^= (common >> bit) & 1
        stack.append((1 - 2 * parity) * signs)
    return torch.stack(stack).float()


def count_sketch_projection(
    in_dim: int, dim: int, count: int = 1, generator: torch.Generator | None = None
) -> Tensor:
    """Count sketch (6.5): each coordinate is added, with a random sign, to one random row.

    Args:
        in_dim: d, dimension of the neurons.
        dim: k, dimension of their images.
        count: number of projections.
        generator: source of randomness, on the CPU.

    Returns:
        (count, dim, in_dim), float32.

    >>> (count_sketch_projection(50, 8)[0] != 0).sum(0).unique()  # one entry per column
    tensor([1])
    """
    _check_sizes(in_dim, dim, count)
    bucket = torch.randint(0, dim, (count, 1, in_dim), generator=generator)
    signs = torch.randint(0, 2, (count, 1, in_dim), generator=generator) * 2.0 - 1
    return torch.zeros(count, dim, in_dim).scatter_(1, bucket, signs)


SKETCHES = {
    "gaussian": gaussian_projection,
    "hadamard": hadamard_projection,
    "count": count_sketch_projection,
}


def sketch(
    kind: str, in_dim: int, dim: int, count: int = 1, generator: torch.Generator | None = None
) -> Tensor:
    """Random projections by name.

    Args:
        kind: "gaussian", "hadamard" or "count".
        in_dim: d, dimension of the neurons.
        dim: k, dimension of their images.
        count: number of projections.
        generator: source of randomness, on the CPU.

    Returns:
        (count, dim, in_dim), float32.
    """
    if kind not in SKETCHES:
        raise unknown_name("sketch", kind, SKETCHES)
    return SKETCHES[kind](in_dim, dim, count, generator)


def project(neurons: Tensor, projection: Tensor) -> Tensor:
    """Images of B sets of neurons under C projections.

    One matrix product for all of them; lengths are left as they come, the energy ignores them.

    Args:
        neurons: (B, N, d), one neuron per row.
        projection: (C, k, d).

    Returns:
        (B * C, N, k), the C images of a set one after the other.
    """
    if neurons.ndim != 3 or projection.ndim != 3 or neurons.shape[-1] != projection.shape[-1]:
        raise ValueError(
            f"expected neurons (B, N, d) and projection (C, k, d), got {tuple(neurons.shape)} and "
            f"{tuple(projection.shape)}"
        )
    sets, n, _ = neurons.shape
    count, dim, _ = projection.shape
    # (C k, B N): with the few rows on the left the product is up to three times as fast
    images = projection.flatten(0, 1) @ neurons.flatten(0, 1).T
    return images.view(count, dim, sets, n).permute(2, 0, 3, 1).reshape(sets * count, n, dim)


def adversarial_step(gradient: Tensor, projection: Tensor, lr: float = 0.01) -> Tensor:
    r"""Ascent step of the min-max problem 6.8 on P.

    Args:
        gradient: (C, k, d), of the energy with respect to P.
        projection: (C, k, d), the projections P.
        lr: length of the step relative to \|P\|.

    Returns:
        The new projections, (C, k, d).
    """
    size = torch.linalg.vector_norm(gradient, dim=(1, 2))
    size = size.clamp_min(torch.finfo(gradient.dtype).tiny)
    length = lr * torch.linalg.vector_norm(projection, dim=(1, 2))
    step: Tensor = (length / size)[:, None, None] * gradient
    return projection + step


# --- bilateral projection (E.6) ------------------------------------------------------------


def bilateral_low_rank(y1: Tensor, y2: Tensor, p1: Tensor) -> Tensor:
    r"""Neurons from their two sketches, :math:`\tilde W = Y_2 (P_1 Y_2)^{-1} Y_1` (Eq. E.23).

    The neurons are the columns of W (m, n), as in E.6. P_1 of the result is y1 again. Exact if
    W has rank r. 16-bit factors are computed in float32, under autocast too.

    Args:
        y1: (r, n), P_1 W.
        y2: (m, r), W P_2.
        p1: (r, m).

    Returns:
        (m, n), of rank r, in the type of y1.
    """
    if p1.shape[-2] != y2.shape[-1]:
        raise ValueError(f"P_1 Y_2 must be square, got P_1 {tuple(p1.shape)} and "
                         f"Y_2 {tuple(y2.shape)}")  # fmt: skip
    with torch.autocast(y1.device.type, enabled=False):
        wide = torch.promote_types(y1.dtype, torch.float32)
        a, b, p = (x.to(y1.device, wide) for x in (y1, y2, p1))
        inner: Tensor = torch.linalg.solve(p @ b, a)
        return (b @ inner).to(y1.dtype)


def _check_sizes(in_dim: int, dim: int, count: int) -> None:
    if in_dim < 1 or dim < 1 or count < 1 or not math.isfinite(dim):
        raise ValueError(
            f"a projection needs in_dim, dim, count >= 1; got {in_dim}, {dim}, {count}"
        )
