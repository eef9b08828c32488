"""Random directions: uniform ones, and ones tangent to the sphere at given points."""

from __future__ import annotations

import torch
from torch import Tensor

__all__ = ["random_directions", "tangent_directions", "transport"]


def random_directions(
    shape: tuple[int, ...], dtype: torch.dtype, device: torch.device | str | None
) -> Tensor:
    """Independent uniform directions along the last dimension of `shape`.

    Args:
        shape: (..., d), d >= 1.
        dtype: float32 or wider.
        device: Where to draw.

    Returns:
        Unit vectors (..., d).
    """
    draw = torch.randn(shape, dtype=dtype, device=device)
    length = torch.linalg.vector_norm(draw, dim=-1, keepdim=True)
    # A float32 Gaussian is exactly 0 about once in 10^7 draws, which one dimension would notice.
    return torch.where(length > 0, draw / length, shape[-1] ** -0.5)


def tangent_directions(mean: Tensor, shape: tuple[int, ...]) -> Tensor:
    """Uniform directions at right angles to `mean`, without gradient.

    A uniform y in R^(d-1) is put into the hyperplane of e_1, and that onto the one of mu by the
    reflection with the normal mu + sign(mu_1) e_1, which never vanishes: orthogonal and of length 1
    to rounding error.

    Args:
        mean: Unit vectors mu, (*batch, d), d >= 2.
        shape: (*sample, *batch, d).

    Returns:
        Unit vectors of the given shape.
    """
    mean = mean.detach()
    first, others = mean[..., :1], mean[..., 1:]
    y = random_directions((*shape[:-1], shape[-1] - 1), mean.dtype, mean.device)
    share = (others * y).sum(-1, keepdim=True) / (1 + first.abs())
    sign = torch.where(first < 0, -1.0, 1.0).to(first)
    return torch.cat([-(first + sign) * share, y - others * share], dim=-1)


def transport(tangent: Tensor, mean: Tensor) -> Tensor:
    """The tangent directions as functions of the mean: carried along by the shortest rotation.

    With mu_0 the value of the mean and R the rotation in the plane of mu_0 and mu,

        R tangent = tangent - (mu_0 + mu) (mu.tangent) / (1 + mu_0.mu).

    A rotated sample of the distribution around mu_0 is one of the distribution around mu, so
    gradients through it are exact; and they are bounded at every mu.

    Args:
        tangent: Unit vectors at right angles to the value of `mean`, (*sample, *batch, d).
        mean: Unit vectors (*batch, d).

    Returns:
        `tangent`, with its gradient in `mean`.
    """
    start = mean.detach()
    along = (mean * tangent).sum(-1, keepdim=True)
    return tangent - (start + mean) * (along / (1 + (start * mean).sum(-1, keepdim=True)))
