"""Sub-centers after training: which pictures do not belong, and which direction is the class.

Sub-center ArcFace (2020): a class with several directions puts wrong and hard pictures around a
minor one. Train with `subcenters=3`, drop what lies far from the dominant one, train again on the
rest, or go on with the dominant directions alone.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn

from ..functional.angles import normalize
from ..functional.labels import check_labels, check_shapes
from .margin import MarginHead

__all__ = ["dominant_subcenters", "find_outliers", "keep_dominant"]

_BATCH = 4096


@torch.no_grad()
def _cosines(head: MarginHead, features: Tensor, labels: Tensor) -> Tensor:
    """cos to each sub-center of the own class, (N, K), a batch at a time."""
    if head.shard is not None:
        raise ValueError("sub-centers are looked at in all classes: call unshard(head) first")
    check_shapes(features, head.weight, labels)
    check_labels(labels, head.num_classes)
    rows = normalize(head.weight.detach().float().view(head.num_classes, -1, head.in_features))
    parts = []
    for x, y in zip(torch.split(features, _BATCH), torch.split(labels.long(), _BATCH), strict=True):
        unit = normalize(x.detach().float().to(rows.device))
        parts.append(torch.einsum("bd,bkd->bk", unit, rows[y.to(rows.device)]))
    return torch.cat(parts)


def dominant_subcenters(head: MarginHead, features: Tensor, labels: Tensor) -> Tensor:
    """For each class, the sub-center that is nearest to most of its samples.

    Args:
        head: a head with sub-centers.
        features: (N, d), of the training set.
        labels: (N,) integers.

    Returns:
        (C,) indices in 0..K-1; 0 for a class without samples.
    """
    nearest = _cosines(head, features, labels).argmax(1)
    where = labels.long().to(nearest.device) * head.subcenters + nearest
    counts = torch.bincount(where, minlength=head.num_classes * head.subcenters)
    return counts.view(head.num_classes, head.subcenters).argmax(1)


def find_outliers(
    head: MarginHead, features: Tensor, labels: Tensor, angle: float = math.radians(75)
) -> Tensor:
    """Samples farther than `angle` from the dominant sub-center of their class.

    Args:
        head: a head with sub-centers.
        features: (N, d), of the training set.
        labels: (N,) integers.
        angle: in radians. Default: 75 degrees, as in the paper.

    Returns:
        (N,) booleans, True for those to leave out.

    >>> from hypersphere.heads import ArcFaceHead
    >>> head = ArcFaceHead(2, 1, subcenters=2)
    >>> _ = head.weight.data.copy_(torch.tensor([[[1.0, 0.0], [0.0, 1.0]]]))
    >>> x = torch.tensor([[1.0, 0.1], [1.0, -0.1], [0.1, 1.0]])
    >>> find_outliers(head, x, torch.zeros(3, dtype=torch.long))
    tensor([False, False,  True])
    """
    cosines = _cosines(head, features, labels)
    dominant = dominant_subcenters(head, features, labels)
    own = dominant[labels.long().to(dominant.device)]
    return cosines.gather(1, own[:, None])[:, 0] < math.cos(angle)


@torch.no_grad()
def keep_dominant(head: MarginHead, features: Tensor, labels: Tensor) -> MarginHead:
    """Only the dominant direction of each class, in place: the head then has one per class.

    Make a new optimizer afterwards; the old one holds the old weight.

    Args:
        head: a head with sub-centers.
        features: (N, d), of the training set.
        labels: (N,) integers.

    Returns:
        The head.
    """
    if head.subcenters == 1:
        return head
    dominant = dominant_subcenters(head, features, labels)
    classes = torch.arange(head.num_classes, device=dominant.device)
    head.weight = nn.Parameter(head.weight.detach()[classes, dominant].clone())
    head.subcenters = 1
    return head
