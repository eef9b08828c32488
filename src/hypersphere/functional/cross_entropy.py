"""Softmax cross entropy with a margin on the target class, as logits and as a loss.

The score of class j for feature x is f_j = s n_j g(theta_j) + b_j with s = |x| or a given scale and
n_j = 1 or |w_j|; the target's is s n_y psi(theta_y) + b_y, mixed with the plain one by annealing.
That is every objective of Part I, 3.3, B.3 and D.6. :func:`margin_logits` gives the (B, C) matrix,
:func:`margin_cross_entropy` the same loss without ever holding it.
"""

from __future__ import annotations

from typing import Literal, TypeAlias

import torch
from torch import Tensor

from ._kernels.classes.logsumexp import class_logsumexp
from .angles import cosine, normalize, pairwise_cosine, row_norm
from .angular import Angular, angular, is_cosine
from .labels import (
    check_labels,
    check_options,
    check_shapes,
    check_soft_targets,
    sample_classes,
)
from .margins import Psi, anneal, is_trivial, psi_slope, psi_value

__all__ = ["margin_cross_entropy", "margin_logits"]

Gradient: TypeAlias = Literal["exact", "detached", "caffe"]
Reduction: TypeAlias = Literal["mean", "sum", "none"]

GRADIENTS = ("exact", "detached", "caffe")


def margin_logits(
    features: Tensor,
    weight: Tensor,
    labels: Tensor | None = None,
    psi: Psi = None,
    *,
    scale: float | Tensor | None = None,
    unit: bool = True,
    bias: Tensor | None = None,
    kind: Angular = "cosine",
    k: float | Tensor | None = None,
    lam: float | Tensor | None = None,
    gradient: Gradient = "exact",
    ignore_index: int = -100,
) -> Tensor:
    """The (B, C) scores; with labels, the target's has the margin psi.

    features: (B, d). weight: (C, d). labels: (B,) integers; where they are `ignore_index` there is
    no margin. Class probabilities (B, C) are taken only without a margin, and change nothing.
    psi: a Margin, any callable of cos(theta), or None. scale: s, or None for |x|.
    unit: n = 1, else n = |w|. kind, k: the angular activation g. lam: the lambda of annealing.
    gradient: see :func:`margin_cross_entropy`. Computed in float32 or wider, also under autocast.

    >>> from hypersphere.functional import Margin
    >>> x, y = torch.tensor([[3.0, 4.0]]), torch.tensor([0])
    >>> margin_logits(x, torch.eye(2), y, Margin(subtract=0.5), scale=10.0).round()
    tensor([[1., 8.]])
    """
    check_shapes(features, weight, labels)
    if labels is not None:
        check_soft_targets(labels, psi)
        if labels.is_floating_point():
            labels = None
        else:
            labels = labels.long()
            check_labels(labels, weight.shape[0], ignore_index)
    with torch.autocast(features.device.type, enabled=False):
        z = scaled_features(features, weight, scale)
        w = weight.to(z.dtype)
        unit_w = normalize(w)
        if gradient == "caffe":  # the gradient goes to the rows as they are
            unit_w = w + (unit_w - w).detach()
        if is_cosine(kind):
            logits = z @ (unit_w if unit else w).T
        else:
            logits = row_norm(z, keepdim=True) * angular(pairwise_cosine(z, w), kind, k)
            logits = logits if unit else logits * row_norm(w)
        if labels is not None and (gradient == "caffe" or not is_trivial(psi)):
            valid = (labels != ignore_index)[:, None]
            safe = torch.where(valid, labels[:, None], 0)
            target = target_score(z, w[safe[:, 0]], psi, unit, kind, k, lam, gradient)[:, None]
            target = torch.where(valid, target, logits.gather(1, safe))
            logits = logits.scatter(1, safe, target)
        if bias is not None:
            logits = logits + bias
        return logits.to(torch.promote_types(features.dtype, weight.dtype))


def margin_cross_entropy(
    features: Tensor,
    weight: Tensor,
    labels: Tensor,
    psi: Psi = None,
    *,
    scale: float | Tensor | None = None,
    unit: bool = True,
    bias: Tensor | None = None,
    kind: Angular = "cosine",
    k: float | Tensor | None = None,
    lam: float | Tensor | None = None,
    gradient: Gradient = "exact",
    class_weight: Tensor | None = None,
    ignore_index: int = -100,
    label_smoothing: float = 0.0,
    reduction: Reduction = "mean",
    sample: float | None = None,
    sample_correction: bool = True,
    generator: torch.Generator | None = None,
    chunk: int | None = None,
) -> Tensor:
    """The cross entropy of :func:`margin_logits`, without the (B, C) matrix.

    labels: (B,) integers, or (B, C) class probabilities if there is no margin. class_weight (C,),
    ignore_index, label_smoothing and reduction mean what they mean in torch's `cross_entropy`.

    gradient, with the same value in all three: "exact"; "detached", the margin is a constant added
    to the target's score, so the gradient is that of the plain score; "caffe", as the released
    layer did it for |x| psi(theta): the rows of `weight` get (dL/df)^T x without the Jacobian of
    their normalization, and the x-gradient a w + b x of the target's score is divided by
    sqrt(a^2 + b^2).

    sample: a share of the classes to use, all labels of the batch among them and the rest drawn
    anew at each call. With `sample_correction` the drawn ones count for those left out, so that the
    sum of exponentials is right on average; without, the loss is over the drawn classes alone.

    chunk: classes at a time. Extra memory is O(B chunk).

    >>> from hypersphere.functional import Margin
    >>> x, w, y = torch.randn(4, 8), torch.randn(10, 8), torch.tensor([3, 0, 9, 3])
    >>> dense = torch.nn.functional.cross_entropy(margin_logits(x, w, y, Margin(m=4)), y)
    >>> torch.allclose(margin_cross_entropy(x, w, y, Margin(m=4)), dense)
    True
    """
    check_shapes(features, weight, labels)
    count = weight.shape[0]
    check_options(labels, psi, label_smoothing, sample, class_weight, count)
    with torch.autocast(features.device.type, enabled=False):
        z = scaled_features(features, weight, scale)
        options = {"unit": unit, "bias": bias, "kind": kind, "k": k, "chunk": chunk}
        options["jacobian"] = gradient != "caffe"
        if labels.is_floating_point():
            mass = labels * (1 - label_smoothing) + label_smoothing / count
            mass = mass if class_weight is None else mass * class_weight
            none = torch.full_like(labels[:, 0], -1, dtype=torch.long)
            total, moment, _ = class_logsumexp(z, weight, none, mass=mass, **options)  # type: ignore[arg-type]
            return reduce(total * mass.sum(1) - moment, None, reduction)
        labels = labels.long()
        check_labels(labels, count, ignore_index)
        target_class = torch.where(labels != ignore_index, labels, -1)
        index = offset = None
        if sample is not None:
            index, offset = sample_classes(target_class, count, sample, generator)
            offset = offset if sample_correction else None
        others, moment, rows = class_logsumexp(
            z,
            weight,
            target_class,
            mass=smoothing_mass(label_smoothing, class_weight, count, z),
            index=index,
            offset=offset,
            **options,  # type: ignore[arg-type]
        )
        target = target_score(z, rows, psi, unit, kind, k, lam, gradient)
        if bias is not None:
            target = target + bias[target_class.clamp_min(0)]
        return assemble(
            others, target, moment, target_class, count, class_weight, label_smoothing, reduction
        )


# --- the parts, which the sharded head uses one by one ------------------------------------------


def scaled_features(features: Tensor, weight: Tensor, scale: float | Tensor | None) -> Tensor:
    """x or s x/|x|, in float32 or wider: its length is the scale of the scores."""
    wide = torch.promote_types(torch.promote_types(features.dtype, weight.dtype), torch.float32)
    x = features.to(wide)
    return x if scale is None else scale * normalize(x)


def target_score(
    z: Tensor,
    rows: Tensor,
    psi: Psi,
    unit: bool = True,
    kind: Angular = "cosine",
    k: float | Tensor | None = None,
    lam: float | Tensor | None = None,
    gradient: Gradient = "exact",
) -> Tensor:
    """|z| n psi(theta) between corresponding rows of z and of the target classes: (B,)."""
    if gradient not in GRADIENTS:
        raise ValueError(f"gradient must be one of {', '.join(GRADIENTS)}; got {gradient!r}")
    if gradient == "caffe" and not (unit and is_cosine(kind)):
        raise ValueError(
            "gradient='caffe' is the released A-Softmax layer: unit weights and the cosine; "
            "use 'exact' or 'detached' for other heads"
        )
    if gradient != "caffe" and is_trivial(psi):
        return _plain_score(z, rows, unit, kind, k)
    cos = cosine(z, rows)
    length = row_norm(z) if unit else row_norm(z) * row_norm(rows)
    angle_part = psi_value(psi, cos, kind, k)
    if lam is not None:
        score = length * anneal(angle_part, angular(cos, kind, k), lam)
    else:
        score = length * angle_part
    if gradient == "exact":
        return score
    if gradient == "detached":
        plain = _plain_score(z, rows, unit, kind, k)
        return plain + (score - plain).detach()
    return _with_caffe_gradient(score, z, rows, cos.detach(), psi, lam)


def _plain_score(
    z: Tensor, rows: Tensor, unit: bool, kind: Angular, k: float | Tensor | None
) -> Tensor:
    if is_cosine(kind):
        return (z * (normalize(rows) if unit else rows)).sum(-1)
    score = row_norm(z) * angular(cosine(z, rows), kind, k)
    return score if unit else score * row_norm(rows)


def _with_caffe_gradient(
    score: Tensor, z: Tensor, rows: Tensor, cos: Tensor, psi: Psi, lam: float | Tensor | None
) -> Tensor:
    with torch.no_grad():
        direction, x = normalize(rows), z.detach()
        value, slope = psi_value(psi, cos), psi_slope(psi, cos)
        length = row_norm(x)
        # the x-gradient of |x| psi(theta) is a w + b x
        b = torch.where(length > 0, (value - slope * cos) / length, torch.zeros_like(length))
        size = torch.hypot(slope, b).clamp_min(torch.finfo(z.dtype).tiny)
        toward = (slope / size)[:, None] * direction + (b / size)[:, None] * x
        if lam is not None:
            toward = anneal(toward, direction, lam)
    surrogate = (toward * z).sum(-1) + (x * rows).sum(-1)
    return score.detach() + surrogate - surrogate.detach()


def smoothing_mass(
    label_smoothing: float, class_weight: Tensor | None, count: int, like: Tensor
) -> Tensor | None:
    """The weights of the scores in the smoothing term, or None without smoothing."""
    if label_smoothing == 0:
        return None
    return like.new_ones(count) if class_weight is None else class_weight.to(like)


def assemble(
    others: Tensor,
    target: Tensor,
    moment: Tensor,
    target_class: Tensor,
    count: int,
    class_weight: Tensor | None,
    label_smoothing: float,
    reduction: Reduction,
) -> Tensor:
    """The loss from log sum exp over the other classes, the target's score and sum mass_j f_j."""
    valid = target_class >= 0
    total = torch.logaddexp(others, target)
    own = valid.to(total) if class_weight is None else class_weight.to(total)[target_class] * valid
    loss = own * (total - target)
    if label_smoothing > 0:
        mass = float(count) if class_weight is None else class_weight.to(total).sum()
        spread = mass * total - moment - own * target
        loss = (1 - label_smoothing) * loss + label_smoothing / count * spread
    return reduce(torch.where(valid, loss, torch.zeros_like(loss)), own, reduction)


def reduce(loss: Tensor, weights: Tensor | None, reduction: Reduction) -> Tensor:
    """As torch: "mean" divides by the sum of the samples' weights, or their number if None."""
    if reduction == "none":
        return loss
    if reduction == "sum":
        return loss.sum()
    if reduction == "mean":
        return loss.sum() / (loss.shape[0] if weights is None else weights.sum())
    raise ValueError(f"reduction must be 'mean', 'sum' or 'none', got {reduction!r}")
