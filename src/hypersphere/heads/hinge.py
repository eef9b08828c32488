"""The hinge loss on linear scores, a baseline of Tables 2.2-2.4."""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn

__all__ = ["HingeHead"]


class HingeHead(nn.Module):
    """One against all: sum_j max(0, margin - t_j f_j), f_j = w_j . x + b_j, t_y = 1, others -1.

    `squared` takes the square of each term. The text names the loss alone; this is the one of the
    library it was trained with. Scores, and how they are used to classify, are those of
    `SoftmaxHead`.

    >>> head = HingeHead(8, 10)
    >>> x, y = torch.randn(5, 8), torch.arange(5)
    >>> head(x).shape, head.loss(x, y).shape
    (torch.Size([5, 10]), torch.Size([]))
    """

    neuron_role = "output"

    def __init__(
        self,
        in_features: int,
        num_classes: int,
        margin: float = 1.0,
        squared: bool = False,
        bias: bool = True,
    ) -> None:
        super().__init__()
        if not margin > 0:
            raise ValueError(f"margin must be above 0; got {margin}")
        self.in_features, self.num_classes = in_features, num_classes
        self.margin, self.squared = margin, squared
        self.weight = nn.Parameter(torch.empty(num_classes, in_features))
        self.bias = nn.Parameter(torch.zeros(num_classes)) if bias else None
        nn.init.kaiming_uniform_(self.weight, a=math.sqrt(5))

    def forward(self, features: Tensor, labels: Tensor | None = None) -> Tensor:
        """(B, C) scores; labels change nothing, the margin is in the loss."""
        return nn.functional.linear(features, self.weight, self.bias)

    def loss(
        self,
        features: Tensor,
        labels: Tensor,
        reduction: str = "mean",
        label_smoothing: float = 0.0,
    ) -> Tensor:
        """features (B, d), labels (B,) -> the mean over the batch; "sum" or "none" (B,)."""
        if label_smoothing:
            raise ValueError("the hinge loss has no label smoothing: use label_smoothing 0")
        if reduction not in ("mean", "sum", "none"):
            raise ValueError(f"reduction is mean, sum or none; got {reduction!r}")
        scores = self(features).float()
        sign = torch.full_like(scores, -1.0).scatter_(1, labels.unsqueeze(1), 1.0)
        terms = (self.margin - sign * scores).clamp_min(0)
        each = (terms.square() if self.squared else terms).sum(1)
        return each if reduction == "none" else getattr(each, reduction)()

    def extra_repr(self) -> str:
        squared = ", squared=True" if self.squared else ""
        return (
            f"in_features={self.in_features}, num_classes={self.num_classes}, "
            f"margin={self.margin:g}{squared}"
        )
