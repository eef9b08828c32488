"""Are these directions uniform on the sphere? Two classical tests on the first two moments."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from .angles import normalize

__all__ = ["UniformityTest", "uniformity_test"]


class UniformityTest(NamedTuple):
    """p-values: small means that uniform points would rarely look like this.

    Args:
        rayleigh: sensitive to directions that crowd around one side.
        bingham: sensitive to directions that crowd around an axis or a plane, even if balanced.
    """

    rayleigh: float
    bingham: float


def uniformity_test(points: Tensor) -> UniformityTest:
    """Rayleigh's and Bingham's tests that the rows of points (n, d) are uniform directions.

    With x_i the unit rows, m their mean and S the mean of x_i x_i^T, uniformity makes
    n d |m|^2 chi-squared with d degrees of freedom, and n d(d+2)/2 (tr S^2 - 1/d) chi-squared with
    (d-1)(d+2)/2, as n grows. Random neurons pass (F.9); neurons spread by minimum energy are *too*
    even and come out near 1.

    Args:
        points: (n, d), one direction per row, n >= 2, d >= 2.

    Returns:
        The two p-values.

    >>> generator = torch.Generator().manual_seed(0)
    >>> cap = torch.randn(500, 3, generator=generator) + torch.tensor([0.0, 0.0, 1.0])
    >>> uniformity_test(cap).rayleigh < 1e-6
    True
    """
    if points.ndim != 2 or len(points) < 2 or points.shape[1] < 2:
        raise ValueError(
            f"expected points of shape (n, d), n >= 2, d >= 2; got {tuple(points.shape)}"
        )
    u = normalize(points.detach().double())
    n, d = u.shape
    first = n * d * u.mean(0).square().sum()
    scatter = u.T @ u / n
    second = n * d * (d + 2) / 2 * (scatter.square().sum() - 1 / d)
    return UniformityTest(_chi2_tail(first, d), _chi2_tail(second, (d - 1) * (d + 2) / 2))


def _chi2_tail(statistic: Tensor, freedom: float) -> float:
    half = torch.tensor(freedom / 2, dtype=torch.float64)
    return float(torch.special.gammaincc(half, statistic.cpu().clamp_min(0) / 2))
