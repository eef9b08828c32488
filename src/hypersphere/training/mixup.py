"""mixup (2018): pictures and labels of a batch mixed in pairs, with any head and margin."""

from __future__ import annotations

from typing import Annotated, Any, TypeAlias

import torch
from torch import Tensor

from hypersphere.ranges import Range, check
from hypersphere.registry import register

__all__ = ["Mixup"]

Alpha: TypeAlias = Annotated[float, Range(ge=1e-3, le=1e3)]  # beyond, a sample is 0, 1/2 or 1


@register("hook", "mixup", source="Zhang et al. 2018")
class Mixup:
    """x = a x_i + (1 - a) x_j with a drawn from Beta(alpha, alpha), one per batch.

    The loss is a L(x, y_i) + (1 - a) L(x, y_j), each label with the head's margin in its turn.
    Training accuracy counts the label of the larger share.

    Args:
        alpha: of the Beta distribution; small values leave most batches nearly as they are.
    """

    name = "mixup"
    needs_labels = True

    def __init__(self, alpha: Alpha = 0.2) -> None:
        check("mixup.alpha", alpha, Alpha)
        self.alpha = alpha

    def change_batch(self, run: Any, batch: tuple[Tensor, ...]) -> tuple[Tensor, ...]:
        x, y = batch
        order = torch.randperm(len(x)).to(x.device)
        share = torch.distributions.Beta(self.alpha, self.alpha).sample().to(x.device)
        mixed = torch.lerp(x[order], x, share.to(x.dtype))
        shares = torch.stack([share, 1 - share]).expand(len(x), 2)
        return mixed, torch.stack([y, y[order]], 1), shares
