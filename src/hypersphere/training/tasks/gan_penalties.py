"""What other GANs of Table D.4 do to their discriminator: gradient penalty, weight clipping."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from hypersphere.registry import register

__all__ = ["ClipWeights", "gradient_penalty"]


def gradient_penalty(discriminator: nn.Module, real: Tensor, fake: Tensor) -> Tensor:
    """mean (|grad D(u)| - 1)^2 at u = a real + (1 - a) fake, a uniform in 0..1 for each pair.

    D is the score before any sigmoid, |.| the length over all pixels of a picture; [195].

    >>> slope = nn.Sequential(nn.Flatten(), nn.Linear(4, 1, bias=False))
    >>> _ = slope[1].weight.data.fill_(1.5)  # the gradient has length 3 everywhere
    >>> gradient_penalty(slope, torch.rand(5, 1, 2, 2), torch.rand(5, 1, 2, 2)).item()
    4.0
    """
    share = torch.rand(len(real), *[1] * (real.dim() - 1), device=real.device, dtype=real.dtype)
    between = (share * real.detach() + (1 - share) * fake.detach()).requires_grad_(True)
    with torch.enable_grad():  # the diagnosis of a loss that is not finite repeats it without
        scores = discriminator(between)
        (gradient,) = torch.autograd.grad(scores.sum(), between, create_graph=True)
    return (gradient.flatten(1).norm(dim=1) - 1).square().mean()


@register("hook", "clip_weights", source="Table D.4")
class ClipWeights:
    """Weight clipping: after each update every weight is cut to -bound..bound.

    Args:
        bound: largest absolute value of a weight, above 0. Default: 0.01.
    """

    def __init__(self, bound: float = 0.01) -> None:
        if not bound > 0:
            raise ValueError(f"clip_weights.bound must be above 0; got {bound}")
        self.bound = bound

    @torch.no_grad()
    def after_update(self, run: Any) -> None:
        for parameter in run.model.parameters():
            parameter.clamp_(-self.bound, self.bound)
