"""Adversarial training (4.6.2, C.1.2): the network learns from attacks on itself."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from hypersphere.registry import register

__all__ = ["AdversarialExamples", "AttackedTest"]


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


@register("hook", "attacked_test", source="Tables 4.7, 4.8")
class AttackedTest:
    """Accuracy under FGSM and BIM after training, on test samples, for summary.json.

    Args:
        eps: largest change of a pixel, in 0..255. Default: 8, as in the dissertation.
        samples: how many test samples are attacked, from the first on. Default: 1000.
        steps: steps of BIM. Default: 20.
    """

    measures = ("fgsm_accuracy", "bim_accuracy")  # of `summarize`

    def __init__(self, eps: float = 8.0, samples: int = 1000, steps: int = 20) -> None:
        if samples < 1:
            raise ValueError(f"attacked_test.samples must be at least 1; got {samples}")
        self.eps, self.samples, self.steps = eps, samples, steps

    def summarize(self, run: Any) -> dict[str, float]:
        """Attack the test samples with gradients of the model itself.

        Args:
            run: the finished run.

        Returns:
            {"fgsm_accuracy": share, "bim_accuracy": share}.
        """
        from hypersphere.evaluation.robustness.attacks import bim

        normalize = getattr(run.task, "normalize", None)
        schemes = {"fgsm": (self.eps, 1), "bim": (2.0, self.steps)}  # pixels of a step, steps
        right, seen = dict.fromkeys(schemes, 0), 0
        run.model.eval()
        for x, y in run.task.test_loader:
            x, y = (value[: self.samples - seen].to(run.fabric.device) for value in (x, y))
            for name, (step, steps) in schemes.items():
                attacked = bim(
                    run.model,
                    x,
                    y,
                    self.eps / 255,
                    step=step / 255,
                    steps=steps,
                    normalize=normalize,
                )
                with torch.no_grad():
                    right[name] += int((run.model(attacked).argmax(1) == y).sum())
            seen += len(y)
            if seen >= self.samples:
                break
        return {f"{name}_accuracy": count / seen for name, count in right.items()}
