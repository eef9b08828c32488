"""Penalties that ask the neurons of a layer to be orthogonal, through the smaller Gram matrix.

With W (N, d), a neuron a row, the text's W^T W of columns is the N x N matrix G = W W^T here.
If N > d the same numbers follow from the d x d matrix W^T W, whose nonzero eigenvalues are G's.
"""

from __future__ import annotations

import torch
from torch import Tensor

__all__ = ["orthogonal_penalty", "orthonormal_penalty", "spectral_penalty"]


def orthonormal_penalty(neurons: Tensor, sets: bool = False) -> Tensor:
    """|G - I|_F^2 (3.2.4) of neurons (N, ...), one a row.

    With sets=True the neurons are (sets, N, d), and the penalty is the sum over the sets.

    >>> orthonormal_penalty(2 * torch.eye(3))  # each row is off by 4 - 1
    tensor(27.)
    """
    w = _three(neurons, sets)
    _, n, d = w.shape
    gram = _small_gram(w)
    gram.diagonal(dim1=-2, dim2=-1).sub_(1)
    return gram.square().sum() + len(w) * max(0, n - d)


def orthogonal_penalty(neurons: Tensor, sets: bool = False) -> Tensor:
    """|G - diag(G)|_F^2 (4.5): lengths are free, only angles are asked to be right.

    `sets` as in :func:`orthonormal_penalty`.

    >>> orthogonal_penalty(torch.tensor([[2.0, 0.0], [1.0, 1.0]]))
    tensor(8.)
    """
    w = _three(neurons, sets)
    gram = _small_gram(w)
    if w.shape[1] <= w.shape[2]:
        gram.diagonal(dim1=-2, dim2=-1).zero_()
        return gram.square().sum()
    excess = gram.square().sum((-2, -1)) - w.square().sum(-1).square().sum(-1)
    return excess.clamp_min(0).sum()  # of orthogonal neurons it is rounding error, of either sign


def spectral_penalty(
    neurons: Tensor,
    start: Tensor | None = None,
    iterations: int = 2,
    generator: torch.Generator | None = None,
    sets: bool = False,
) -> tuple[Tensor, Tensor]:
    """SRIP: the spectral norm of G - I by power iteration, summed over sets (6.6, [29]).

    It is taken on the smaller side. If N > d, G - I also has the eigenvalue -1, N - d times,
    whatever the weights are; the d x d side W^T W - I leaves these constants out.

    Args:
        neurons: (N, ...), or (sets, N, d) with sets=True.
        start: (sets, min(N, d)), the vector of the last call: warm, two iterations follow the
            slowly changing weights. None starts at random with ten times as many.

    Returns the penalty and the vector for the next call. Neither Gram matrix is formed; the
    gradient treats the vector as a constant, which is exact once it has converged.

    >>> value, v = spectral_penalty(torch.diag(torch.tensor([3.0, 1.0, 0.5])), iterations=20)
    >>> value
    tensor(8.)
    """
    w = _three(neurons, sets)
    if w.shape[1] > w.shape[2]:
        w = w.mT  # (sets, small, large)
    if start is not None and start.shape != w.shape[:2]:
        raise ValueError(f"start must be {tuple(w.shape[:2])}, got {tuple(start.shape)}")
    held = w.detach()
    with torch.no_grad():
        v = torch.randn(w.shape[:2], generator=generator).to(w) if start is None else start.to(w)
        for _ in range(iterations * (10 if start is None else 1)):
            image = _apply(held, v)
            size = torch.linalg.vector_norm(image, dim=-1, keepdim=True)
            # An orthonormal set sends v to 0; the vector is kept for when the set leaves that point
            v = torch.where(size > 0, image / size, v)
    return torch.linalg.vector_norm(_apply(w, v), dim=-1).sum(), v


def _apply(w: Tensor, v: Tensor) -> Tensor:
    """(w w^T - I) v for each set."""
    return (w @ (w.mT @ v[..., None]))[..., 0] - v


def _small_gram(w: Tensor) -> Tensor:
    return w @ w.mT if w.shape[1] <= w.shape[2] else w.mT @ w


def _three(neurons: Tensor, sets: bool) -> Tensor:
    if neurons.ndim < 2 or neurons.numel() == 0 or (sets and neurons.ndim != 3):
        expected = "(sets, N, d)" if sets else "(N, ...), one a row"
        raise ValueError(f"expected neurons {expected}; got {tuple(neurons.shape)}")
    w = neurons if sets else neurons.flatten(1)[None]
    return w.float() if w.dtype.itemsize < 4 else w
