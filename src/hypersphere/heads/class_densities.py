"""A head that takes each class as a von Mises-Fisher distribution of directions."""

from __future__ import annotations

import math
from typing import Annotated

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from ..functional import normalize, vmf_concentration, vmf_log_normalizer
from ..functional.cross_entropy import Reduction
from ..functional.labels import check_labels, check_shapes
from ..ranges import Range
from ..registry import register
from .arguments import sizes

__all__ = ["VonMisesFisherHead"]


@register("head", "von_mises_fisher", source="Hasnat et al. 2017, Banerjee et al. 2005")
class VonMisesFisherHead(nn.Module):
    """Posterior of a mixture: f_j = kappa_j cos(theta_j) - log Z_d(kappa_j), one vMF per class.

    A softmax over cosines has one scale; here each class has a concentration of its own, and the
    normalizer charges for it: a narrow class wins near its mean and loses elsewhere. The loss is
    minus the log posterior of the class, its cross entropy. Features (B, d) -> scores (B, C);
    lengths of features and weights do not matter. Scores of 16-bit features are float32, under
    autocast too: log Z_d is several hundred at d = 512, where 16 bits have no digits left to tell
    the classes apart.

    Args:
        in_features: dimension d of the features, >= 2.
        num_classes: number of classes C.
        concentration: kappa at the start. Default: such that the nearest class has the posterior
            0.9 when its cosine is 1 and those of the others are 0.
        learn_concentration: whether the kappas are trained; they stay positive.
        per_class: a kappa for each class, or one for all, which is a softmax of scaled cosines.

    >>> head = VonMisesFisherHead(8, 10)
    >>> x, y = torch.randn(5, 8), torch.arange(5)
    >>> head(x).shape, head.loss(x, y).shape, head.concentration.shape
    (torch.Size([5, 10]), torch.Size([]), torch.Size([10]))
    """

    neuron_role = "output"

    def __init__(
        self,
        in_features: int,
        num_classes: int,
        concentration: Annotated[float | None, Range(gt=0)] = None,
        learn_concentration: bool = True,
        per_class: bool = True,
    ) -> None:
        super().__init__()
        in_features, num_classes = sizes(in_features, num_classes)
        if in_features < 2:
            raise ValueError(f"directions need in_features >= 2; got {in_features}")
        if concentration is not None and not 0 < concentration < math.inf:
            raise ValueError(f"concentration must be a finite number above 0; got {concentration}")
        self.in_features, self.num_classes = in_features, num_classes
        start = math.log(9 * max(1, num_classes - 1)) if concentration is None else concentration
        self.weight = nn.Parameter(torch.empty(num_classes, in_features))
        nn.init.normal_(self.weight)
        # softplus of it is kappa
        raw = torch.full((num_classes if per_class else 1,), start + math.log(-math.expm1(-start)))
        self.raw_concentration = nn.Parameter(raw, requires_grad=learn_concentration)

    @property
    def concentration(self) -> Tensor:
        """kappa of each class, (C,), or (1,) if it is shared."""
        return F.softplus(self.raw_concentration)

    @torch.no_grad()
    def fit(self, features: Tensor, labels: Tensor) -> None:
        """Set means and concentrations to their most likely values on features.

        Args:
            features: (n, d); every class has to occur.
            labels: (n,) integers; samples with the label -100 do not count.
        """
        check_shapes(features, self.weight, labels)
        check_labels(labels, self.num_classes, -100)
        labels = labels.long()
        features, labels = features[labels != -100], labels[labels != -100]
        counts = torch.bincount(labels, minlength=self.num_classes)
        if int(counts.min()) == 0:
            missing = int(counts.argmin())
            raise ValueError(f"every class needs a sample to be fitted; class {missing} has none")
        unit = normalize(features.double())
        mean = unit.new_zeros(self.num_classes, self.in_features).index_add_(0, labels, unit)
        mean /= counts[:, None]
        length = mean.norm(dim=1)
        if len(self.raw_concentration) == 1:
            length = (length * counts).sum(0, keepdim=True) / counts.sum()
        kappa = vmf_concentration(length.clamp(1e-6, 1 - 1e-6), self.in_features)
        self.weight.copy_(normalize(mean))
        self.raw_concentration.copy_(kappa + torch.log(-torch.expm1(-kappa)))

    def forward(self, features: Tensor, labels: Tensor | None = None) -> Tensor:
        """(B, C) log densities of the features under each class; labels change nothing."""
        wide = torch.promote_types(features.dtype, torch.float32)
        with torch.autocast(features.device.type, enabled=False):
            cos = F.linear(normalize(features.to(wide)), normalize(self.weight.to(wide)))
            kappa = self.concentration.to(wide)
            return kappa * cos - vmf_log_normalizer(kappa, self.in_features)

    def loss(
        self,
        features: Tensor,
        labels: Tensor,
        reduction: Reduction = "mean",
        label_smoothing: float = 0.0,
        ignore_index: int = -100,
    ) -> Tensor:
        """Minus the log posterior of the labels, classes equally likely.

        Args:
            features: (B, d).
            labels: (B,) integers.
            reduction: "mean" over the samples that count, "sum", or "none".
            label_smoothing: as in cross entropy.
            ignore_index: samples with this label do not count.

        Returns:
            A scalar, or (B,) for "none".
        """
        check_shapes(features, self.weight, labels)
        check_labels(labels, self.num_classes, ignore_index)
        return F.cross_entropy(
            self(features),
            labels.long(),
            reduction=reduction,
            label_smoothing=label_smoothing,
            ignore_index=ignore_index,
        )

    def extra_repr(self) -> str:
        shared = "" if len(self.raw_concentration) > 1 else ", per_class=False"
        return f"in_features={self.in_features}, num_classes={self.num_classes}{shared}"
