"""Compact classes around prototypes far apart: training for out-of-distribution detection."""

from __future__ import annotations

import math
from typing import Annotated

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn import functional as F

from ..functional import normalize
from ..functional.cross_entropy import Reduction
from ..functional.labels import check_labels, check_shapes
from ..ranges import Range
from ..registry import register
from . import collectives
from .arguments import sizes

__all__ = ["CiderHead"]


@register("head", "cider", source="Ming et al., ICLR 2023")
class CiderHead(nn.Module):
    """Compactness and dispersion with class prototypes mu that follow the features.

    compactness  -log exp(z . mu_y / t) / sum_j exp(z . mu_j / t)
    dispersion   mean_i log mean_{j != i} exp(mu_i . mu_j / t)

    of unit features z. The prototypes are no parameters: after each batch those of its classes move
    to normalize(decay mu + (1 - decay) mean z). The gradient of the dispersion reaches the features
    through this step. The authors' code moves them sample by sample; here the mean over the samples
    of a class moves them once. With several processes the mean is over the samples of all, so that
    the prototypes are alike on all: in training every process has to compute its loss. Features
    (B, d) -> scores (B, C), the cosines over t.

    Args:
        in_features: dimension d of the features.
        num_classes: number of classes C, >= 2.
        temperature: t of both terms.
        decay: what stays of a prototype at each batch.
        compactness: factor of the compactness.

    >>> head = CiderHead(8, 10)
    >>> x, y = torch.randn(5, 8), torch.arange(5)
    >>> head(x).shape, head.loss(x, y).shape, [name for name, _ in head.named_parameters()]
    (torch.Size([5, 10]), torch.Size([]), [])
    """

    neuron_role = "output"
    weight: Tensor

    def __init__(
        self,
        in_features: int,
        num_classes: int,
        temperature: Annotated[float, Range(gt=0)] = 0.1,
        decay: Annotated[float, Range(ge=0, lt=1)] = 0.95,
        compactness: Annotated[float, Range(ge=0)] = 2.0,
    ) -> None:
        super().__init__()
        in_features, num_classes = sizes(in_features, num_classes)
        if num_classes < 2:
            raise ValueError(f"dispersion needs num_classes >= 2; got {num_classes}")
        if not temperature > 0 or not 0 <= decay < 1:
            raise ValueError(
                f"expected temperature > 0 and 0 <= decay < 1; got {temperature} and {decay}"
            )
        self.in_features, self.num_classes = in_features, num_classes
        self.temperature, self.decay, self.compactness = temperature, decay, compactness
        self.register_buffer("weight", normalize(torch.randn(num_classes, in_features)))

    def forward(self, features: Tensor, labels: Tensor | None = None) -> Tensor:
        """(B, C) cosines with the prototypes over the temperature; labels change nothing."""
        unit = normalize(features)
        return F.linear(unit, self.weight.to(unit.dtype)) / self.temperature

    def loss(
        self,
        features: Tensor,
        labels: Tensor,
        reduction: Reduction = "mean",
        label_smoothing: float = 0.0,
        ignore_index: int = -100,
    ) -> Tensor:
        """Dispersion plus `compactness` times compactness; in training the prototypes move.

        Args:
            features: (B, d).
            labels: (B,) integers.
            reduction: "mean" over the samples that count, "sum", or "none", of the compactness; the
                dispersion is a property of the batch and is added to each.
            label_smoothing: as in cross entropy, in the compactness.
            ignore_index: samples with this label do not count.

        Returns:
            A scalar, or (B,) for "none".
        """
        check_shapes(features, self.weight, labels)
        check_labels(labels, self.num_classes, ignore_index)
        labels = labels.long()
        wide = torch.promote_types(features.dtype, torch.float32)
        wide = torch.promote_types(wide, self.weight.dtype)
        unit, prototypes = normalize(features.to(wide)), self.weight.to(wide)
        if self.training:
            prototypes = self._moved(unit, prototypes, labels, ignore_index)
        compact = F.cross_entropy(
            unit @ prototypes.detach().T / self.temperature,
            labels,
            reduction=reduction,
            label_smoothing=label_smoothing,
            ignore_index=ignore_index,
        )
        between = prototypes @ prototypes.T / self.temperature
        between = between - torch.diag(torch.full_like(between.diagonal(), math.inf))
        dispersion = between.logsumexp(1).mean() - math.log(self.num_classes - 1)
        if self.training:
            with torch.no_grad():
                self.weight.copy_(prototypes)
        return dispersion + self.compactness * compact

    def _moved(self, unit: Tensor, prototypes: Tensor, labels: Tensor, ignore_index: int) -> Tensor:
        """The prototypes after this batch, (C, d), with a graph to the features."""
        counted = labels != ignore_index
        index = labels.where(counted, 0)
        # where, not a product: an ignored row may hold NaN
        rows = torch.where(counted[:, None], unit, 0.0)
        total = torch.zeros_like(prototypes).index_add(0, index, rows)
        counts = torch.zeros_like(prototypes[:, 0]).index_add(0, index, counted.to(unit.dtype))
        if dist.is_available() and dist.is_initialized() and dist.get_world_size() > 1:
            # The losses of all processes depend on the sum, so its gradient is a sum as well
            total = collectives.share(collectives.sum_over(total, None), None)
            counts = collectives.sum_over(counts, None)
        mean = total / counts.clamp_min(1)[:, None]
        moved = normalize(self.decay * prototypes + (1 - self.decay) * mean)
        return torch.where(counts[:, None] > 0, moved, prototypes)

    def extra_repr(self) -> str:
        return (
            f"in_features={self.in_features}, num_classes={self.num_classes}, "
            f"temperature={self.temperature:g}, decay={self.decay:g}"
        )
