"""Adversarial training (4.6.2, C.1.2): the network learns from attacks on itself."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from hypersphere.registry import register

__all__ = ["AdversarialExamples"]


@register("hook", "adversarial", source="Sec. 4.6.2, C.1.2")
class AdversarialExamples:
    """FGSM training: x + eps sign(grad_x loss) replaces a share of the batch.

    The attack is `evaluation.attacks.fgsm` on the loss that is trained, margin and all; the step is
    taken, and cut to the range of pixels, before the normalization that the task names.

    Args:
        eps: size of the step, in pixels of 0..255. Default: 8, as in the dissertation.
        share: share of the batch that is replaced, in (0, 1]. Default: 1.
    """

    name = "adversarial"
    needs_labels = True

    def __init__(self, eps: float = 8.0, share: float = 1.0) -> None:
        if not 0 < share <= 1:
            raise ValueError(f"adversarial.share must be in (0, 1]; got {share}")
        self.eps, self.share = eps, share

    def change_batch(self, run: Any, batch: tuple[Tensor, ...]) -> tuple[Tensor, ...]:
        from hypersphere.evaluation.robustness.attacks import fgsm, training_loss

        x, y, *rest = batch
        count = max(1, round(self.share * len(x)))
        attacked = fgsm(
            run.model,
            x[:count],
            y[:count],
            self.eps / 255,
            normalize=getattr(run.task, "normalize", None),
            loss=training_loss,
        )
        return (torch.cat([attacked, x[count:]]), y, *rest)
