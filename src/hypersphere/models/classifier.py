"""A backbone and a head as one module."""

from __future__ import annotations

from typing import Any

from torch import Tensor, nn
from torch.nn import functional as F


class Classifier(nn.Module):
    """A backbone and a head as one module: ``net(x)``, ``net.features(x)``, ``net.loss(x, y)``.

    Inputs (B, ...) -> scores (B, C), without a margin. Where a backbone takes several inputs, such
    as (features, adjacency) of a graph, ``x`` is a tuple of them.

    Args:
        backbone: samples -> features (B, d).
        head: features -> scores (B, C), usually one of ``hypersphere.heads``. If it has a ``loss``
            method that one is used, otherwise (an ``nn.Linear``) the cross entropy of its output.

    >>> import torch
    >>> from hypersphere.models import create
    >>> net = Classifier(create("mlp"), nn.Linear(256, 10))
    >>> x, y = torch.zeros(4, 1, 28, 28), torch.tensor([0, 1, 2, 3])
    >>> net(x).shape, net.features(x).shape, net.loss(x, y).shape
    (torch.Size([4, 10]), torch.Size([4, 256]), torch.Size([]))
    """

    def __init__(self, backbone: nn.Module, head: nn.Module) -> None:
        super().__init__()
        expected = getattr(head, "in_features", None)
        given = getattr(backbone, "out_features", None)
        if expected is not None and given is not None and expected != given:
            raise ValueError(
                f"the backbone gives {given} features, the head takes {expected}: "
                f"make the head with in_features={given}, or the backbone with features={expected}"
            )
        self.backbone = backbone
        self.head = head

    def features(self, x: Tensor | tuple[Tensor, ...]) -> Tensor:
        """What the head sees and verification compares.

        Args:
            x: samples (B, ...), or a tuple of the backbone's inputs.

        Returns:
            Features (B, out_features).
        """
        return self.backbone(*_inputs(x))

    def forward(self, x: Tensor | tuple[Tensor, ...]) -> Tensor:
        """(B, C) scores without margin."""
        return self.head(self.features(x))

    def loss(
        self,
        x: Tensor | tuple[Tensor, ...],
        labels: Tensor,
        mask: Tensor | None = None,
        **options: Any,
    ) -> Tensor:
        """The head's loss, plus the penalty of a backbone that has one (PointNet's T-Nets).

        Args:
            x: samples (B, ...), or a tuple of the backbone's inputs.
            labels: classes (B,).
            mask: rows of the features and labels that count, e.g. the labeled nodes of a graph.
                Default: all.
            options: passed to the head's loss, e.g. ``reduction``, ``label_smoothing``.

        Returns:
            The loss, a scalar unless ``reduction`` says otherwise.
        """
        penalized = getattr(self.backbone, "features_and_penalty", None)
        penalty: Tensor | float = 0.0
        if penalized is not None:
            features, penalty = penalized(*_inputs(x))
        else:
            features = self.features(x)
        if mask is not None:
            features, labels = features[mask], labels[mask]
        if hasattr(self.head, "loss"):
            return self.head.loss(features, labels, **options) + penalty  # type: ignore[operator]
        return F.cross_entropy(self.head(features), labels, **options) + penalty


def _inputs(x: Tensor | tuple[Tensor, ...]) -> tuple[Tensor, ...]:
    return tuple(x) if isinstance(x, (tuple, list)) else (x,)
