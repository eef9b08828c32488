"""The baselines of Table 2.9: a metric loss on the features, beside the softmax loss or alone."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from hypersphere.heads import center_loss, move_centers
from hypersphere.registry import register
from hypersphere.training.sections import NotNegative, Share

__all__ = ["MetricLossTerm"]


@register("hook", "metric_loss", source="Table 2.9")
class MetricLossTerm:
    """weight x (contrastive | triplet | center) of the batch's features.

    - "contrastive", "triplet": over all pairs / triplets of the batch (`heads.MetricLoss`);
      `margin` is that of pytorch-metric-learning;
    - "center": `heads.center_loss`, with class centers that move by `rate` towards their samples
      after each update (`heads.move_centers`).

    With `head: {detached: true}` the network learns from this alone.

    Args:
        name: "contrastive", "triplet" or "center".
        weight: factor of the loss. Default: 0.1.
        margin: margin of the contrastive and the triplet loss. Default: 1.
        rate: share of the way that centers move towards their samples in an update. Default: 0.5.
    """

    needs_labels = True

    def __init__(
        self,
        name: str = "contrastive",
        weight: NotNegative = 0.1,
        margin: NotNegative = 1.0,
        rate: Share = 0.5,
    ) -> None:
        if name not in ("contrastive", "triplet", "center"):
            raise ValueError(f"metric_loss.name is contrastive, triplet or center; got {name!r}")
        self.name, self.weight, self.rate = name, weight, rate
        self.centers: Tensor | None = None
        self._seen: list[tuple[Tensor, Tensor]] = []
        if name != "center":
            from hypersphere import heads

            key = "neg_margin" if name == "contrastive" else "margin"
            self.loss = heads.MetricLoss(name, weight=weight, **{key: margin})  # type: ignore[arg-type]

    def terms(self, run: Any, batch: Any, outputs: Tensor, final: bool) -> dict[str, Tensor]:
        share = 1.0 / run.settings.accumulate
        features, labels = outputs.float(), batch[1]
        if self.name != "center":
            return {self.name: share * self.loss(features, labels)}
        if self.centers is None:
            classes = run.model.head.weight.shape[0]
            self.centers = features.new_zeros(classes, features.shape[1])
        self._seen.append((features.detach(), labels))
        return {"center": self.weight * share * center_loss(features, labels, self.centers)}

    @torch.no_grad()
    def after_update(self, run: Any) -> None:
        if self.centers is None or not self._seen:
            return
        features = torch.cat([f for f, _ in self._seen])
        labels = torch.cat([y for _, y in self._seen])
        self._seen = []
        total = torch.zeros_like(self.centers).index_add_(0, labels, features)
        count = torch.bincount(labels, minlength=len(self.centers))
        if run.fabric.world_size > 1:
            total = run.fabric.all_reduce(total, reduce_op="sum")
            count = run.fabric.all_reduce(count, reduce_op="sum")
        move_centers(self.centers, total, count, self.rate)

    def state_dict(self) -> dict[str, Any]:
        return {"centers": self.centers}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.centers = state["centers"]
