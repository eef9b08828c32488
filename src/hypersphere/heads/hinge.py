"""The hinge loss on linear scores, a baseline of Tables 2.2-2.4."""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn

from ..functional.class_parts import Reduction, reduce
from ..functional.labels import check_labels, check_shapes
from ..registry import register
from .arguments import plain_number, sizes

__all__ = ["HingeHead"]


@register("head", "hinge", source="Tables 2.2-2.4")
class HingeHead(nn.Module):
    """One against all: sum_j max(0, margin - t_j f_j), f_j = w_j . x + b_j, t_y = 1, others -1.

    Features (B, d) -> scores (B, C); labels change nothing there, the margin is in the loss. The
    dissertation names the loss alone; this is the one of the library it was trained with. Scores,
    and how they are used to classify, are those of `SoftmaxHead`.

    Args:
        in_features: dimension d of the features.
        num_classes: number of classes C.
        margin: what a score has to reach, > 0.
        squared: take the square of each term.
        bias: whether there are biases b_j.

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
        in_features, num_classes = sizes(in_features, num_classes)
        margin = plain_number(margin)
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
        reduction: Reduction = "mean",
        label_smoothing: float = 0.0,
        ignore_index: int = -100,
    ) -> Tensor:
        """The hinge loss of a batch.

        Args:
            features: (B, d).
            labels: (B,) integers.
            reduction: "mean" over the samples that count, "sum", or "none".
            label_smoothing: has to be 0; the hinge loss has none.
            ignore_index: samples with this label do not count, as in cross entropy.

        Returns:
            A scalar, or (B,) for "none".
        """
        if label_smoothing:
            raise ValueError("the hinge loss has no label smoothing: use label_smoothing 0")
        if reduction not in ("mean", "sum", "none"):
            raise ValueError(f"reduction is mean, sum or none; got {reduction!r}")
        if labels.is_floating_point():
            raise ValueError(f"class labels are integers, got {labels.dtype}: use labels.long()")
        check_shapes(features, self.weight, labels)
        check_labels(labels, self.num_classes, ignore_index)
        labels = labels.long()
        counts = labels != ignore_index
        target = torch.where(counts, labels, torch.zeros_like(labels))
        scores = self(features).float()
        sign = torch.full_like(scores, -1.0).scatter_(1, target.unsqueeze(1), 1.0)
        terms = (self.margin - sign * scores).clamp_min(0)
        each = (terms.square() if self.squared else terms).sum(1)
        # where, not a product: an ignored row may hold NaN.
        each = torch.where(counts, each, torch.zeros_like(each))
        return reduce(each, counts.to(each), reduction)

    def extra_repr(self) -> str:
        squared = ", squared=True" if self.squared else ""
        return (
            f"in_features={self.in_features}, num_classes={self.num_classes}, "
            f"margin={self.margin:g}{squared}"
        )
