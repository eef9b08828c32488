"""Nearest neighbors on the sphere as losses: the smallest distance (MHS) and KoLeo."""

from __future__ import annotations

import torch  # noqa: F401 - for the examples
from torch import Tensor

from ._kernels.autograd import full_precision
from ._kernels.spreading.nearest import nearest_distances, tie_tolerance
from ._kernels.spreading.row_blocks import as_sets

__all__ = ["koleo", "separation"]


def separation(
    weight: Tensor, half_space: bool = False, reduction: str = "min", sets: bool = False
) -> Tensor:
    r"""Minus the smallest distance between two of N directions, to be minimized:

    .. math:: -\min_{i \ne j} |\hat w_i - \hat w_j|

    Minimizing it is Tammes' problem, the maximum hyperspherical separation of Liu et al.,
    "Learning with Hyperspherical Uniformity" (AISTATS 2021). Pairs that are equally close share the
    gradient, so it vanishes at a regular simplex, cross-polytope or icosahedron. Only the closest
    neurons move; with ``reduction="mean"`` all do.

    Args:
        weight: (N, ...), one neuron or feature per row, N >= 2; (sets, N, d) with ``sets=True``.
            Lengths do not matter, and a zero row counts as orthogonal to everything.
        half_space: compare each neuron with the mirror images of the others as well, so that lines
            are spread instead of directions.
        reduction: "min" for the smallest distance; "mean" for the mean over neurons of the distance
            to the nearest one.
        sets: whether the first dimension counts separate sets.

    Returns:
        A scalar, or (sets,) with ``sets=True``; in float32 or wider. Distances below 8 eps (1e-6 in
        float32) count as 8 eps and have no gradient. Memory is O(N x block).

    >>> separation(3 * torch.eye(4))
    tensor(-1.4142)
    """
    if reduction not in ("min", "mean"):
        raise ValueError(f"reduction must be 'min' or 'mean', got {reduction!r}")
    distance = _distances(weight, half_space, sets, "separation")
    if reduction == "min":
        smallest = distance.detach().amin(1, keepdim=True)
        # In d = sqrt(2 - 2 cos) a difference of cosines is divided by d.
        share = distance.detach() <= smallest + tie_tolerance(distance.dtype) / smallest
        result = -(distance * share).sum(1) / share.sum(1)
    else:
        result = -distance.mean(1)
    return result if sets else result[0]


def koleo(weight: Tensor, half_space: bool = False, sets: bool = False) -> Tensor:
    r"""The entropy estimator of Kozachenko and Leonenko as a loss, as in DINOv2:

    .. math:: -\frac{1}{N} \sum_i \log \min_{j \ne i} |\hat w_i - \hat w_j|

    Close neighbors repel each other with a force of one over their distance; neurons without a
    close neighbor are nearly left alone.

    Args:
        weight: (N, ...), one neuron or feature per row, N >= 2; (sets, N, d) with ``sets=True``.
        half_space: compare each neuron with the mirror images of the others as well.
        sets: whether the first dimension counts separate sets.

    Returns:
        A scalar, or (sets,) with ``sets=True``; in float32 or wider. Distances below 8 eps count as
        8 eps and have no gradient. Neighbors that are equally near share the gradient.

    Differs from DINOv2: no constant is added to the distances.

    >>> koleo(torch.eye(3))  # all distances are sqrt(2)
    tensor(-0.3466)
    """
    result = -_distances(weight, half_space, sets, "koleo").log().mean(1)
    return result if sets else result[0]


def _distances(weight: Tensor, half_space: bool, sets: bool, name: str) -> Tensor:
    with full_precision(weight.device.type):
        return nearest_distances(as_sets(weight, sets, name), half_space)
