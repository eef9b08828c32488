"""CurricularFace: how much the scores of other classes weigh, by how hard they are."""

from __future__ import annotations

import torch
from torch import Tensor

__all__ = ["curricular", "curricular_slope"]


def curricular(cos: Tensor, level: Tensor, t: float | Tensor) -> Tensor:
    """N(c) = c where c <= level, else c (t + c): CurricularFace (2020), Eq. 5.

    A class whose cosine is above what the sample has reached for its own class, psi(theta_y), is
    hard. While t is small, at the beginning, hard classes count for less; later for more.

    Args:
        cos: cosines to the other classes, (B, C).
        level: psi(theta_y) of each sample, (B,).
        t: the running mean of cos(theta_y), a number or a scalar tensor.

    Returns:
        N, (B, C).

    >>> curricular(torch.tensor([[0.2, 0.6]]), torch.tensor([0.5]), 0.3)
    tensor([[0.2000, 0.5400]])
    """
    return torch.where(cos > level[:, None], cos * (t + cos), cos)


def curricular_slope(cos: Tensor, level: Tensor, t: float | Tensor) -> Tensor:
    """dN / dc, with the level a constant: 1 or t + 2 c.

    Args:
        cos: as in :func:`curricular`.
        level: as in :func:`curricular`.
        t: as in :func:`curricular`.

    Returns:
        The derivative, (B, C).
    """
    return torch.where(cos > level[:, None], t + 2 * cos, torch.ones_like(cos))
