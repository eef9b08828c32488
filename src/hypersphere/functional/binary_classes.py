"""One binary decision per class instead of one choice among all: the loss of SphereFace2.

The scores are f_j = s g(theta_j) + b with one b for all classes. The target's is s psi(theta_y) +
b, and those of the others are raised by s m: both sides have to keep a distance from the threshold.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

from .angular import Angular
from .class_parts import Reduction, reduce, scaled_features
from .cross_entropy import class_logsumexp
from .labels import check_labels, check_options, check_shapes, sample_classes
from .margins import Psi, psi_value
from .target_score import Gradient, target_score

__all__ = ["assemble_binary", "binary_bias", "binary_margin_loss"]


def binary_margin_loss(
    features: Tensor,
    weight: Tensor,
    labels: Tensor,
    psi: Psi = None,
    *,
    scale: float | Tensor = 40.0,
    bias: Tensor | float = 0.0,
    kind: Angular = "cosine",
    raised: float | Tensor = 0.0,
    positive: float = 0.7,
    lam: float | Tensor | None = None,
    gradient: Gradient = "exact",
    class_weight: Tensor | None = None,
    ignore_index: int = -100,
    reduction: Reduction = "mean",
    sample: float | None = None,
    generator: torch.Generator | None = None,
    chunk: int | None = None,
) -> Tensor:
    r"""SphereFace2 (2022), Eq. 5, without ever holding the (B, C) matrix of scores:

    .. math:: L = \frac{\lambda}{s} \log(1 + e^{-s \psi(\theta_y) - b})
        + \frac{1 - \lambda}{s} \sum_{j \ne y} \log(1 + e^{s (g(\theta_j) + m) + b})

    Args:
        features: (B, d).
        weight: (C, d), one class per row; or (C, K, d): of K sub-centers the nearest counts.
        labels: (B,) integers.
        psi: the margin of the target, a Margin or any callable of cos(theta); None for none.
        scale: s (r in the paper).
        bias: b, a number or a scalar tensor.
        kind: the similarity g, a name or any callable of cos(theta), e.g. `WidenedCosine(3.0)`.
        raised: m, what is added to g of the other classes; a number or (C,), one per class.
        positive: lambda, the weight of the target's term against those of the others, in (0, 1).
        lam: the lambda of annealing. Default: none, the margin acts in full.
        gradient: "exact", or "detached" for a margin that is a constant.
        class_weight: (C,), a weight per class of the samples.
        ignore_index: samples with this label do not count.
        reduction: "mean", "sum" or "none".
        sample: share of the other classes to use, in (0, 1], drawn anew at each call; each then
            counts for those left out, so that the loss is right on average. Default: all.
        generator: source of the drawn classes.
        chunk: classes at a time. Default: such that the scores of a chunk take 2 MB.

    Returns:
        A scalar, or (B,) with reduction "none".

    >>> x, w = torch.eye(3)[:1], torch.eye(3)
    >>> binary_margin_loss(x, w, torch.tensor([0]), scale=1.0, positive=0.5).round(decimals=4)
    tensor(0.8498)
    """
    check_shapes(features, weight, labels)
    count = weight.shape[0]
    if labels.is_floating_point():
        raise ValueError(
            "binary_margin_loss takes integer labels; the loss of a head also takes (B, M) labels "
            "with shares"
        )
    check_options(labels, 0.0, sample, class_weight, count)
    labels = labels.long()
    check_labels(labels, count, ignore_index)
    target_class = torch.where(labels != ignore_index, labels, -1)
    with torch.autocast(features.device.type, enabled=False):
        z = scaled_features(features, weight, scale)
        b = torch.as_tensor(bias, dtype=z.dtype, device=z.device)
        index = offset = None
        if sample is not None:
            index, offset = sample_classes(target_class, count, sample, generator)
        others, _, rows = class_logsumexp(
            z,
            weight,
            target_class,
            bias=b + scale * raised,
            kind=kind,
            index=index,
            offset=offset,
            link="softplus",
            chunk=chunk,
        )
        target = target_score(z, rows, psi, True, kind, None, lam, gradient) + b
        return assemble_binary(
            others, target, target_class, scale, positive, class_weight, reduction
        )


def assemble_binary(
    others: Tensor,
    target: Tensor,
    target_class: Tensor,
    scale: float | Tensor,
    positive: float,
    class_weight: Tensor | None,
    reduction: Reduction,
) -> Tensor:
    """The loss from the sum over the other classes (B,) and the target's score (B,)."""
    valid = target_class >= 0
    own = valid.to(target)
    if class_weight is not None:
        own = own * class_weight.to(target)[target_class.clamp_min(0)]
    hit = torch.nn.functional.softplus(-target, threshold=40)
    loss = own * (positive * hit + (1 - positive) * others) / scale
    return reduce(torch.where(valid, loss, torch.zeros_like(loss)), own, reduction)


def binary_bias(
    num_classes: int,
    psi: Psi = None,
    *,
    scale: float = 40.0,
    kind: Angular = "cosine",
    raised: float = 0.0,
    positive: float = 0.7,
) -> float:
    """The b for which :func:`binary_margin_loss` is smallest while every angle is pi / 2.

    That is the beginning of a training: features and classes are nearly orthogonal. There
    lambda sigmoid(-a - b) = (1 - lambda) (C - 1) sigmoid(o + b) with a = s psi(pi / 2) and
    o = s (g(pi / 2) + m), a quadratic equation in exp(b). With one class, without others, b = 0.

    Args:
        num_classes: number of classes C.
        psi: as in :func:`binary_margin_loss`.
        scale: as in :func:`binary_margin_loss`, a number.
        kind: as in :func:`binary_margin_loss`.
        raised: as in :func:`binary_margin_loss`.
        positive: as in :func:`binary_margin_loss`.

    Returns:
        b.

    >>> round(binary_bias(2, positive=0.5), 6) + 0.0
    0.0
    """
    if not 0 < positive < 1:
        raise ValueError(f"positive is a weight in (0, 1); got {positive}")
    if num_classes < 2:
        return 0.0
    orthogonal = torch.zeros(1, dtype=torch.float64)
    target = scale * float(psi_value(psi, orthogonal, kind))
    other = scale * (float(psi_value(None, orthogonal, kind)) + raised)
    ratio = positive / ((1 - positive) * (num_classes - 1))
    # v = exp(o + b) solves e v^2 + (1 - ratio) v - ratio = 0 with e = exp(a - o); the form without
    # cancellation depends on the sign of 1 - ratio.
    lift = math.exp(min(target - other, 700.0))
    root = math.sqrt((1 - ratio) ** 2 + 4 * ratio * lift)
    if ratio <= 1:
        log_v = math.log(2 * ratio) - math.log(1 - ratio + root)
    else:
        log_v = math.log(ratio - 1 + root) - math.log(2) - (target - other)
    return log_v - other
