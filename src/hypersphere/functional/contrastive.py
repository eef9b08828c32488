"""Losses on features: uniformity and alignment, and supervised contrast with class prototypes.

Uniformity and alignment are those of Wang and Isola, "Understanding Contrastive Representation
Learning through Alignment and Uniformity on the Hypersphere" (ICML 2020), with the normalization
inside and, as a measure to compare with, the closed form for uniform directions.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

from ._kernels.autograd import full_precision
from ._kernels.spreading.log_potential import log_potential
from ._kernels.spreading.row_blocks import (
    as_sets,
    directions,
    recomputed,
    row_blocks,
    widen,
)
from .angles import normalize
from .labels import check_labels

__all__ = ["alignment", "supervised_contrastive", "uniformity", "uniformity_of_uniform"]


def uniformity(x: Tensor, t: float = 2.0) -> Tensor:
    r"""Log of the mean Gaussian potential over pairs of directions; lower is more uniform:

    .. math:: \log \frac{2}{N(N-1)} \sum_{i<j} \exp(-t |\hat x_i - \hat x_j|^2)

    Args:
        x: (N, ...), one feature per row, N >= 2. Lengths do not matter, and a zero row counts as
            orthogonal to everything.
        t: 1 / (2 width^2) of the potential, > 0.

    Returns:
        A scalar in [-4t, 0], in float32 or wider; :func:`uniformity_of_uniform` is its value for
        many uniform directions. Memory is O(N x block).

    >>> uniformity(torch.eye(3))  # all squared distances are 2
    tensor(-4.)
    """
    _check_temperature("t", t)
    with full_precision(x.device.type):
        u, _ = directions(as_sets(x, False, "uniformity")[0])
        pairs = len(u) * (len(u) - 1) / 2
        return log_potential(u, 2 * t) - math.log(pairs)


def alignment(x: Tensor, y: Tensor, alpha: float = 2.0) -> Tensor:
    r"""Mean distance of positive pairs; lower is better aligned:

    .. math:: \frac{1}{N} \sum_i |\hat x_i - \hat y_i|^\alpha

    Args:
        x: (N, d), N >= 1.
        y: (N, d), the partner of each row of x.
        alpha: power, > 0. With 2 it is 2 - 2 cos, and 2 for independent uniform directions.

    Returns:
        A scalar in [0, 2^alpha], in float32 or wider. Pairs closer than 8 eps count as equal and
        have no gradient.

    >>> alignment(torch.eye(2), torch.tensor([[0.0, 3.0], [0.0, 3.0]]))
    tensor(1.)
    """
    _check_temperature("alpha", alpha)
    if x.shape != y.shape or x.ndim != 2 or x.numel() == 0:
        raise ValueError(
            f"alignment expects x and y of one shape (N, d), N >= 1; got {tuple(x.shape)} and "
            f"{tuple(y.shape)}"
        )
    with full_precision(x.device.type):
        squares = (normalize(widen(x, "x")) - normalize(widen(y, "y"))).square().sum(1)
        if alpha != 2:
            # Powers below 1 have an infinite slope at 0.
            apart = squares.detach() > (8 * torch.finfo(squares.dtype).eps) ** 2
            squares = torch.where(apart, squares, 1.0).pow(alpha / 2) * apart
        return squares.mean()


def uniformity_of_uniform(d: int, t: float = 2.0) -> float:
    r"""What :func:`uniformity` tends to for uniform directions in R^d, in closed form:

    .. math:: \log E \exp(-t |x - y|^2) = -2t + \log {}_0F_1(; d/2; t^2)

    Args:
        d: dimension, >= 1.
        t: as in :func:`uniformity`, > 0.

    Returns:
        The value in float64; all terms of the series are positive, so it is exact to rounding.

    >>> round(uniformity_of_uniform(3), 6)  # log((1 - exp(-8)) / 8)
    -2.079777
    """
    if d < 1 or int(d) != d:
        raise ValueError(f"uniformity_of_uniform expects a whole dimension d >= 1, got {d}")
    _check_temperature("t", t)
    # Terms t^2k / ((d/2)_k k!) grow up to k ~ t and may leave the floating range: they are kept as
    # multiples of exp(shift).
    term, total, shift, k = 1.0, 0.0, 0.0, 0
    while True:
        term *= t * (t / ((d / 2 + k) * (k + 1)))
        k += 1
        total += term
        if term > 1e250:
            scale = math.log(term)
            total, term, shift = total / term, 1.0, shift + scale
        if term < 1e-18 * total and k * (k + d / 2) > t * t:
            break
        if total == 0:  # t^2 underflows
            break
    series = math.log1p(total) if shift == 0 else shift + math.log(total + math.exp(-shift))
    return series - 2 * t


def supervised_contrastive(
    features: Tensor,
    labels: Tensor,
    prototypes: Tensor | None = None,
    temperature: float = 0.1,
) -> Tensor:
    r"""Supervised contrastive loss over a batch, with one prototype per class beside it:

    .. math:: \frac{1}{B} \sum_i \frac{-1}{|P_i|} \sum_{p \in P_i}
        \log \frac{\exp(\hat x_i \cdot \hat p / \tau)}
        {\sum_{a \in A_i} \exp(\hat x_i \cdot \hat a / \tau)}

    A_i has all other features of the batch and all prototypes; P_i those of them that have the
    label of i, so with prototypes it is never empty. The loss of Khosla et al. (NeurIPS 2020) is
    the one without; fixed prototypes keep the classes apart that a batch does not contain.

    Args:
        features: (B, d), B >= 1, of any length.
        labels: (B,) whole numbers, in [0, C) with prototypes.
        prototypes: (C, d), for example :func:`simplex_prototypes`, or the learned weights of a
            head. Default: none.
        temperature: tau > 0.

    Returns:
        A scalar, in float32 or wider. Without prototypes, samples that have no other of their class
        do not count; if all are such, it is 0. Memory is O((B + C) x block).

    >>> x, y = torch.eye(3), torch.arange(3)
    >>> supervised_contrastive(x, y, torch.eye(3), temperature=1.0)  # log(e + 4) - 1
    tensor(0.9048)
    """
    _check_temperature("temperature", temperature)
    if features.ndim != 2 or features.numel() == 0 or labels.shape != features.shape[:1]:
        raise ValueError(
            f"expected features (B, d) and labels (B,), B >= 1; got {tuple(features.shape)} and "
            f"{tuple(labels.shape)}"
        )
    if labels.is_floating_point():
        raise ValueError(f"class labels are integers, got {labels.dtype}: use labels.long()")
    labels = labels.long()
    if prototypes is not None:
        if prototypes.ndim != 2 or prototypes.shape[1] != features.shape[1]:
            raise ValueError(
                f"expected prototypes (C, {features.shape[1]}), one per class, for features "
                f"{tuple(features.shape)}; got {tuple(prototypes.shape)}"
            )
        check_labels(labels, len(prototypes))
    with full_precision(features.device.type):
        x = normalize(widen(features, "features"))
        everything, classes = x, labels
        if prototypes is not None:
            everything = torch.cat([x, normalize(widen(prototypes, "prototypes")).to(x)])
            classes = torch.cat([labels, torch.arange(len(prototypes), device=labels.device)])
        blocks = list(row_blocks(len(x), len(everything)))
        parts = [
            recomputed(
                _contrast,
                len(blocks) == 1,
                x,
                everything,
                labels,
                classes,
                temperature,
                part.start,
                part.stop,
            )
            for part in blocks
        ]
        total = torch.stack(parts).sum(0)
        return total[0] / total[1].detach().clamp_min(1)


def _contrast(
    x: Tensor,
    everything: Tensor,
    labels: Tensor,
    classes: Tensor,
    temperature: float,
    start: int,
    stop: int,
) -> Tensor:
    """Sum of the losses of the samples of a block, and how many of them have positives: (2,)."""
    score = x[start:stop] @ everything.T / temperature
    itself = torch.zeros_like(score, dtype=torch.bool)
    itself.diagonal(offset=start).fill_(True)
    positive = (labels[start:stop, None] == classes) & ~itself
    count = positive.sum(1)
    own = (score * positive).sum(1) / count.clamp_min(1)
    if everything.shape[0] == 1:  # one sample and nothing to compare it with
        return torch.stack([own.sum() * 0, own.new_zeros(())])
    norm = torch.logsumexp(score.masked_fill(itself, -math.inf), 1)
    counts = (count > 0).to(score.dtype)
    return torch.stack([((norm - own) * counts).sum(), counts.sum()])


def _check_temperature(name: str, value: float) -> None:
    if not 0 < value < math.inf:
        raise ValueError(f"{name} must be a finite number > 0, got {value}")
