"""CurricularFace: hard classes count for less at first, and for more later."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from ..functional.cross_entropy import Gradient
from ..registry import register
from .arguments import chosen_scale, plain_number, slow_start
from .collectives import joint_sum
from .margin import MarginHead
from .margin_values import MarginValue, make_held_margin

__all__ = ["CurricularFaceHead"]


@register("head", "curricularface", source="CurricularFace (2020)")
class CurricularFaceHead(MarginHead):
    """CurricularFace: f_y = s cos(theta_y + m), hard f_j = s cos(theta_j) (t + cos(theta_j)).

    Features (B, d) -> scores (B, C). With labels (B,), the margin is on the target, and a class
    whose cosine is above cos(theta_y + m) is hard: its score is multiplied by t + cos(theta_j). t
    is the running mean of cos(theta_y): small at first, so that hard classes count for less, until
    the features lie near their classes. `loss` updates t in training mode; it is saved with the
    head. Beyond theta = pi - m the target's score goes on falling as in `ArcFaceHead`, and decides
    there which classes are hard; the authors' code compares with cos(theta_y + m), which rises
    again.

    Args:
        in_features: dimension d of the features.
        num_classes: number of classes C.
        m: what is added to the target's angle, in radians, in [0, pi); also a number per class or a
            `MarginSchedule`.
        scale: s > 0. Default: `automatic_scale(num_classes)`; the paper has 64.
        momentum: share of the current batch in t.
        gradient: "exact" or "detached"; see `functional.margin_cross_entropy`.
        sample: share of the classes, in (0, 1], that `loss` uses in training; all labels of the
            batch are among them (PartialFC). Default: all.
    """

    t: Tensor
    sync = False  # whether a batch is that of all processes; `training.synchronize` turns it on

    def __init__(
        self,
        in_features: int,
        num_classes: int,
        m: MarginValue = 0.5,
        scale: float | None = None,
        momentum: float = 0.01,
        gradient: Gradient = "exact",
        sample: float | None = None,
    ) -> None:
        if not 0 < momentum <= 1:
            raise ValueError(f"momentum is a share in (0, 1]; got {momentum}")
        if gradient == "caffe":
            raise ValueError("CurricularFaceHead takes gradient 'exact' or 'detached'")
        super().__init__(
            in_features,
            num_classes,
            make_held_margin("shift", plain_number(m), num_classes),
            scale=chosen_scale(scale, in_features, num_classes),
            start_std=slow_start(in_features),
            gradient=gradient,
            sample=sample,
        )
        self.momentum = plain_number(momentum)
        self.reset_state()

    def reset_state(self, device: torch.device | None = None) -> None:
        """t = 0.

        Args:
            device: where it is kept. Default: torch's default device.
        """
        self.register_buffer("t", torch.tensor(0.0, device=device))

    @property
    def curriculum(self) -> Tensor:
        """t now, as a copy: the next batch moves t before this one's backward pass, perhaps."""
        return self.t.clone()

    @torch.no_grad()
    def observe(
        self, features: Tensor, classes: Tensor, target_cosines: Callable[[], Tensor]
    ) -> None:
        """Take the mean cos(theta_y) of a training batch into t.

        Args:
            features: (B, d).
            classes: (B,) labels, -1 for samples that do not count.
            target_cosines: gives cos(theta_y), (B,).
        """
        super().observe(features, classes, target_cosines)
        counts = classes >= 0
        cosines = target_cosines().to(self.t)
        own = torch.where(counts, cosines, torch.zeros_like(cosines)).sum()
        number, total = joint_sum(torch.stack([counts.sum().to(own), own]), self.sync)
        mean = total / number.clamp_min(1)
        self.t.copy_(torch.where(number > 0, self.t.lerp(mean, self.momentum), self.t))
