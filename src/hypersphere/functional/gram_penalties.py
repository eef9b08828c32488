"""Penalties that ask the neurons of a layer to be orthogonal, through the smaller Gram matrix.

With W (N, d), one neuron per row, the dissertation's W^T W of columns is the N x N matrix
G = W W^T here. If N > d the same numbers follow from the d x d matrix W^T W, whose nonzero
eigenvalues are G's.

Note [Large weights]: G has squares of the weights, and the penalties squares of G. Weights whose
fourth powers come near the end of the floating range are divided by a power of two t first, and the
penalty is multiplied by t^4, or t^2 for the spectral norm. Where that leaves the range (float32:
weights beyond 1e8, or 1e17) the largest factor in it stands for it: the value is too small, the
gradient finite and of the right direction.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

from .host import known

__all__ = ["orthogonal_penalty", "orthonormal_penalty", "spectral_penalty"]


def orthonormal_penalty(neurons: Tensor, sets: bool = False) -> Tensor:
    r"""Distance of the neurons from an orthonormal set (3.2.4):

    .. math:: |G - I|_F^2

    Args:
        neurons: (N, ...), one neuron per row; or (sets, N, d) with ``sets=True``.
        sets: whether the first dimension counts separate sets, whose penalties are added.

    Returns:
        A scalar, in float32 or wider.

    >>> orthonormal_penalty(2 * torch.eye(3))  # each row is off by 4 - 1
    tensor(27.)
    """
    w, t = _in_range(_three(neurons, sets))
    _, n, d = w.shape
    gram = _small_gram(w)
    gram.diagonal(dim1=-2, dim2=-1).sub_(1 if t is None else t**-2)
    return _times(gram.square().sum(), t, 4) + len(w) * max(0, n - d)


def orthogonal_penalty(neurons: Tensor, sets: bool = False) -> Tensor:
    r"""Distance of the neurons from an orthogonal set (4.5): lengths are free, angles are not.

    .. math:: |G - \mathrm{diag}(G)|_F^2

    Args:
        neurons: (N, ...), one neuron per row; or (sets, N, d) with ``sets=True``.
        sets: whether the first dimension counts separate sets, whose penalties are added.

    Returns:
        A scalar, in float32 or wider.

    >>> orthogonal_penalty(torch.tensor([[2.0, 0.0], [1.0, 1.0]]))
    tensor(8.)
    """
    w, t = _in_range(_three(neurons, sets))
    gram = _small_gram(w)
    if w.shape[1] <= w.shape[2]:
        gram.diagonal(dim1=-2, dim2=-1).zero_()
        return _times(gram.square().sum(), t, 4)
    excess = gram.square().sum((-2, -1)) - w.square().sum(-1).square().sum(-1)
    # Of orthogonal neurons the excess is rounding error, of either sign.
    return _times(excess.clamp_min(0).sum(), t, 4)


def spectral_penalty(
    neurons: Tensor,
    start: Tensor | None = None,
    iterations: int = 2,
    generator: torch.Generator | None = None,
    sets: bool = False,
) -> tuple[Tensor, Tensor]:
    r"""SRIP: the spectral norm of G - I by power iteration, summed over sets (6.6, [29]).

    It is taken on the smaller side. If N > d, G - I also has the eigenvalue -1, N - d times,
    whatever the weights are; the d x d side W^T W - I leaves these constants out. Neither Gram
    matrix is formed; the gradient treats the vector of the iteration as a constant, which is exact
    once it has converged.

    Args:
        neurons: (N, ...), one neuron per row; or (sets, N, d) with ``sets=True``.
        start: (sets, min(N, d)), the vector of the last call: warm, two iterations follow the
            slowly changing weights. Default: a random one, with ten times as many iterations.
        iterations: power iterations from a warm start.
        generator: source of a random start, on the CPU.
        sets: whether the first dimension counts separate sets, whose penalties are added.

    Returns:
        The penalty, a scalar, and the vector for the next call, (sets, min(N, d)).

    >>> value, v = spectral_penalty(torch.diag(torch.tensor([3.0, 1.0, 0.5])), iterations=20)
    >>> value
    tensor(8.)
    """
    w, t = _in_range(_three(neurons, sets))
    if w.shape[1] > w.shape[2]:
        w = w.mT  # (sets, small, large)
    if start is not None and start.shape != w.shape[:2]:
        raise ValueError(f"start must be {tuple(w.shape[:2])}, got {tuple(start.shape)}")
    held = w.detach()
    with torch.no_grad():
        v = torch.randn(w.shape[:2], generator=generator).to(w) if start is None else start.to(w)
        for _ in range(iterations * (10 if start is None else 1)):
            image = _apply(held, v, t)
            size = torch.linalg.vector_norm(image, dim=-1, keepdim=True)
            # An orthonormal set sends v to 0; the vector is kept for when the set leaves that point
            v = torch.where(size > 0, image / size, v)
    return _times(torch.linalg.vector_norm(_apply(w, v, t), dim=-1).sum(), t, 2), v


def _apply(w: Tensor, v: Tensor, t: Tensor | None) -> Tensor:
    """(w w^T - I / t^2) v for each set."""
    return (w @ (w.mT @ v[..., None]))[..., 0] - (v if t is None else v * t**-2)


def _small_gram(w: Tensor) -> Tensor:
    return w @ w.mT if w.shape[1] <= w.shape[2] else w.mT @ w


def _in_range(w: Tensor) -> tuple[Tensor, Tensor | None]:
    """w / t and t, or w itself and None where t is 1. Note [Large weights]."""
    largest = w.detach().abs().amax()
    limit = math.pow(torch.finfo(w.dtype).max, 1 / 8)
    size = known(largest)
    if size is not None and size < limit:
        return w, None
    power = largest.log2().floor().exp2()  # of two: the division is exact
    t = torch.where(largest < limit, torch.ones_like(power), power)
    return w / t, t


def _times(value: Tensor, t: Tensor | None, power: int) -> Tensor:
    """t^power value, the factor at most what leaves room for the products around it."""
    if t is None:
        return value
    return value * t.pow(power).clamp_max(torch.finfo(value.dtype).max / 2**16)


def _three(neurons: Tensor, sets: bool) -> Tensor:
    """(sets, N, d), in float32 or wider."""
    if neurons.ndim < 2 or neurons.numel() == 0 or (sets and neurons.ndim != 3):
        expected = "(sets, N, d)" if sets else "(N, ...), one per row"
        raise ValueError(f"expected neurons {expected}; got {tuple(neurons.shape)}")
    w = neurons if sets else neurons.flatten(1)[None]
    return w.float() if w.dtype.itemsize < 4 else w
