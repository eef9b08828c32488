"""A backbone and a head as one module."""

from __future__ import annotations

import inspect
from typing import Any

import torch
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
        shares: Tensor | None = None,
        **options: Any,
    ) -> Tensor:
        """The head's loss, plus the penalty of a backbone that has one (PointNet's T-Nets).

        Args:
            x: samples (B, ...), or a tuple of the backbone's inputs.
            labels: classes (B,); several per sample (B, M), with their shares; or probabilities
                (B, C).
            mask: rows of the features and labels that count, e.g. the labeled nodes of a graph.
                Default: all.
            shares: weights (B, M) of several labels per sample, as mixup makes them: the loss is
                the mean of those of the labels. Default: one label per sample.
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
            shares = None if shares is None else shares[mask]
        return head_loss(self.head, features, labels, shares, **options) + penalty


def head_loss(
    head: nn.Module, features: Tensor, labels: Tensor, shares: Tensor | None = None, **options: Any
) -> Tensor:
    """The head's own loss, or the cross entropy of its scores.

    Args:
        head: features -> scores (B, C), with or without a method ``loss``.
        features: (B, d).
        labels: (B,) or (B, M) classes, or (B, C) probabilities.
        shares: weights (B, M) of (B, M) labels. Default: one label per sample.
        options: passed to the loss.

    Returns:
        The loss, a scalar unless ``reduction`` says otherwise.
    """
    own: Any = getattr(head, "loss", None)
    if shares is not None and _mixes(own):
        options["shares"] = shares
    elif shares is not None:
        reduction = options.pop("reduction", "mean")
        each = [
            shares[:, k] * head_loss(head, features, labels[:, k], reduction="none", **options)
            for k in range(labels.shape[1])
        ]
        total = torch.stack(each).sum(0)
        return {"mean": total.mean(), "sum": total.sum(), "none": total}[reduction]
    if own is not None:
        loss: Tensor = own(features, labels, **options)
        return loss
    return F.cross_entropy(head_scores(head, features), labels, **options)


def head_scores(head: nn.Module, features: Tensor) -> Tensor:
    """The scores of a head, checked: one of the user's own may give something else.

    Args:
        head: features -> scores.
        features: (B, d).

    Returns:
        Scores (B, C).
    """
    scores: Tensor = head(features)
    if scores.ndim != 2 or len(scores) != len(features):
        raise ValueError(
            f"{type(head).__name__} should give scores ({len(features)}, number of classes) for "
            f"features {tuple(features.shape)}; got {tuple(scores.shape)}"
        )
    return scores


@torch.no_grad()
def check_scores_of_head(head: nn.Module, in_features: int, num_classes: int) -> None:
    """Refuse a head that has not one score for each class.

    Args:
        head: features -> scores.
        in_features: width of the features.
        num_classes: number of classes.

    Raises:
        ValueError: if it gives another number.
    """
    training = head.training
    scores = head_scores(head.eval(), torch.zeros(2, in_features))
    head.train(training)
    if scores.shape[1] != num_classes:
        raise ValueError(
            f"{type(head).__name__} should give a score for each of the {num_classes} classes, "
            f"num_classes; it gives {scores.shape[1]}"
        )


def _mixes(loss: Any) -> bool:
    """Whether a head's loss takes several labels per sample itself."""
    return loss is not None and "shares" in inspect.signature(loss).parameters


def _inputs(x: Tensor | tuple[Tensor, ...]) -> tuple[Tensor, ...]:
    return tuple(x) if isinstance(x, (tuple, list)) else (x,)
