"""Contrastive, triplet and center loss (Table 2.9) through pytorch-metric-learning."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from .._optional import require
from .center import center_loss

__all__ = ["MetricLoss"]

_NAMES = {"contrastive": "ContrastiveLoss", "triplet": "TripletMarginLoss"}


class MetricLoss(nn.Module):
    """weight x a loss of pytorch-metric-learning on the features, to add to a head's loss.

    Features (B, d) and labels (B,) -> a scalar. The losses need `pip install
    'torch-hypersphere[metric]'`, except "center": that is `center_loss` with a center per class
    that learns by gradient; the library has none. `move_centers` is the authors' way to move the
    centers, which training uses.

        loss = head.loss(x, y) + MetricLoss("triplet", weight=0.5, margin=0.2)(x, y)

    Args:
        name: "contrastive", "triplet", "center", or the name of any other loss class there.
        weight: factor of the loss.
        num_classes: number of classes, where the loss needs it ("center").
        in_features: dimension of the features, where the loss needs it ("center").
        options: passed to the constructor of the loss class.
    """

    def __init__(
        self,
        name: str = "contrastive",
        weight: float = 1.0,
        num_classes: int | None = None,
        in_features: int | None = None,
        **options: Any,
    ) -> None:
        super().__init__()
        self.weight = weight
        self.centers: nn.Parameter | None = None
        if name == "center":
            if num_classes is None or in_features is None:
                raise ValueError("MetricLoss('center') needs num_classes and in_features")
            self.centers = nn.Parameter(torch.zeros(num_classes, in_features))
            return
        losses = require("pytorch_metric_learning.losses", extra="metric")
        given = {"num_classes": num_classes, "embedding_size": in_features}
        options.update({key: value for key, value in given.items() if value is not None})
        kind = getattr(losses, _NAMES.get(name, name), None)
        if kind is None:
            raise ValueError(
                f"unknown metric loss {name!r}; expected contrastive, triplet, center, or the name "
                f"of a class in pytorch_metric_learning.losses"
            )
        self.inner = kind(**options)

    def forward(self, features: Tensor, labels: Tensor) -> Tensor:
        """features (B, d), labels (B,) -> scalar."""
        x = features.float()
        if self.centers is None:
            loss: Tensor = self.inner(x, labels)
            return self.weight * loss
        return self.weight * center_loss(x, labels, self.centers.to(x))
