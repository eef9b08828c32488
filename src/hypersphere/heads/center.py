"""Center loss (Table 2.9): features gather around a center per class."""

from __future__ import annotations

import torch
from torch import Tensor

__all__ = ["center_loss", "move_centers"]


def center_loss(features: Tensor, labels: Tensor, centers: Tensor) -> Tensor:
    """mean |x - c_y|^2 / 2 over a batch.

    Args:
        features: (B, d).
        labels: (B,) integers.
        centers: (C, d), one per class.

    Returns:
        A scalar.

    >>> center_loss(torch.ones(2, 3), torch.tensor([0, 1]), torch.zeros(2, 3))
    tensor(1.5000)
    """
    return 0.5 * (features - centers[labels]).square().sum(1).mean()


@torch.no_grad()
def move_centers(centers: Tensor, total: Tensor, count: Tensor, rate: float = 0.5) -> None:
    """Move each center, in place, towards its samples: as the loss's authors have it.

    c <- c + rate (total - count c) / (1 + count): a class seen once moves half of `rate`.

    Args:
        centers: (C, d), changed in place.
        total: (C, d), sum of the features of each class in the batch.
        count: (C,), their number.
        rate: share of the way.

    >>> centers = torch.zeros(2, 1)
    >>> move_centers(centers, torch.tensor([[4.0], [0.0]]), torch.tensor([1, 0]))
    >>> centers.flatten()
    tensor([1., 0.])
    """
    count = count.unsqueeze(1)
    centers += rate * (total - count * centers) / (1 + count)
