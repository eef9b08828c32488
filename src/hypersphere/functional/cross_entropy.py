"""Softmax cross entropy with a margin on the target class, as logits and as a loss.

The score of class j for feature x is f_j = s n_j g(theta_j) + b_j with s = |x| or a given scale and
n_j = 1 or |w_j|; the target's is s n_y psi(theta_y) + b_y, mixed with the plain one by annealing.
That is every objective of Part I, 3.3, B.3 and D.6. :func:`margin_logits` gives the (B, C) matrix,
:func:`margin_cross_entropy` the same loss without ever holding it.
"""

from __future__ import annotations

from typing import Literal

import torch
from torch import Tensor

from ._kernels.classes.chunks import ClassScores, default_chunk
from ._kernels.classes.logsumexp import others_and_moment
from .angles import cosine, normalize, pairwise_cosine, row_norm
from .angular import Angular, angular, check_angular, is_cosine
from .class_parts import (
    Reduction,
    assemble_loss,
    check_weight,
    own_bias,
    reached_level,
    reduce,
    scaled_features,
    smoothing_mass,
)
from .curricular import curricular
from .labels import (
    check_labels,
    check_options,
    check_shapes,
    check_soft_targets,
    sample_classes,
)
from .margins import Psi, is_trivial
from .soft_targets import soft_margin_cross_entropy
from .target_score import GRADIENTS, Gradient, target_level, target_score

__all__ = [
    "GRADIENTS",
    "Gradient",
    "Reduction",
    "class_logsumexp",
    "margin_cross_entropy",
    "margin_logits",
]


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
    curriculum: float | Tensor | None = None,
    others_kind: Angular | None = None,
    ignore_index: int = -100,
) -> Tensor:
    r"""The scores of all classes; with labels, the target's has the margin psi.

    Computed in float32 or wider, also under autocast.

    Args:
        features: (B, d).
        weight: (C, d), one class per row; or (C, K, d): of K sub-centers the nearest counts.
        labels: (B,) integers. Class probabilities (B, C) are taken only without a margin, and
            change nothing. Default: no labels, thus no margin.
        psi: a Margin, any callable of cos(theta), or None for no margin.
        scale: s, the scale of the scores. Default: \|x\|.
        unit: True for n = 1, False for n = \|w\|.
        bias: (C,), added to the scores. Default: none.
        kind: the angular activation g, a name or any callable of cos(theta).
        k: curvature of the sigmoid activation.
        lam: the lambda of annealing. Default: none, the margin acts in full.
        gradient: "exact", "detached" or "caffe"; see :func:`margin_cross_entropy`.
        curriculum: the t of :func:`curricular`, which changes the scores of the other classes where
            labels are given. Default: as they are.
        others_kind: g of the other classes where labels are given. Default: `kind`.
        ignore_index: samples with this label get no margin.

    Returns:
        (B, C), in the wider type of features and weight.

    >>> from hypersphere.functional import Margin
    >>> x, y = torch.tensor([[3.0, 4.0]]), torch.tensor([0])
    >>> margin_logits(x, torch.eye(2), y, Margin(subtract=0.5), scale=10.0).round()
    tensor([[1., 8.]])
    """
    check_shapes(features, weight, labels)
    has_margin = not is_trivial(psi) or others_kind is not None or curriculum is not None
    if labels is not None:
        check_soft_targets(labels, has_margin)
        if labels.is_floating_point():
            labels = None
        else:
            labels = labels.long()
            check_labels(labels, weight.shape[0], ignore_index)
    subcenters = check_weight(weight, unit, curriculum)
    with torch.autocast(features.device.type, enabled=False):
        z = scaled_features(features, weight, scale)
        w = weight.to(z.dtype).flatten(0, -2)
        unit_w = normalize(w)
        if gradient == "caffe":  # the gradient goes to the rows as they are
            unit_w = w + (unit_w - w).detach()
        if is_cosine(kind):
            logits = z @ (unit_w if unit else w).T
        else:
            logits = row_norm(z, keepdim=True) * angular(pairwise_cosine(z, w), kind, k)
            logits = logits if unit else logits * row_norm(w)
        logits, nearest = torch.unflatten(logits, 1, (w.shape[0] // subcenters, subcenters)).max(2)
        if labels is not None and (has_margin or gradient == "caffe"):
            valid = (labels != ignore_index)[:, None]
            safe = torch.where(valid, labels[:, None], 0)
            rows = w[(safe * subcenters + nearest.gather(1, safe))[:, 0]]
            target = target_score(z, rows, psi, unit, kind, k, lam, gradient)[:, None]
            target = torch.where(valid, target, logits.gather(1, safe))
            if curriculum is not None or others_kind is not None:
                cos = pairwise_cosine(z, w)
                if curriculum is not None:
                    level = target_level(cosine(z, rows).detach(), psi, kind, k, lam)
                    values = curricular(cos, level, curriculum)
                else:
                    values = angular(cos, others_kind or kind, k)
                    parts = (w.shape[0] // subcenters, subcenters)
                    values = torch.unflatten(values, 1, parts).amax(2)
                logits = torch.where(valid, row_norm(z, keepdim=True) * values, logits)
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
    curriculum: float | Tensor | None = None,
    others_kind: Angular | None = None,
    class_weight: Tensor | None = None,
    ignore_index: int = -100,
    label_smoothing: float = 0.0,
    reduction: Reduction = "mean",
    sample: float | None = None,
    sample_correction: bool = True,
    generator: torch.Generator | None = None,
    chunk: int | None = None,
) -> Tensor:
    r"""The cross entropy of :func:`margin_logits`, without the (B, C) matrix.

    The loss has the same value for all three settings of `gradient`. "exact" is its gradient.
    "detached": the margin is a constant added to the target's score, so the gradient is that of the
    plain score. "caffe", as the released layer did it for \|x\| psi(theta): the rows of `weight`
    get (dL/df)^T x without the Jacobian of their normalization, and the x-gradient a w + b x of the
    target's score is divided by sqrt(a^2 + b^2).

    Args:
        features: (B, d).
        weight: (C, d), one class per row; or (C, K, d): of K sub-centers the nearest counts.
        labels: (B,) integers, or (B, C) class probabilities; with a margin their loss is the one of
            :func:`soft_margin_cross_entropy`, which holds the (B, C) matrix.
        psi: a Margin, any callable of cos(theta), or None for no margin.
        scale: s, the scale of the scores. Default: \|x\|.
        unit: True for n = 1, False for n = \|w\|.
        bias: (C,), added to the scores. Default: none.
        kind: the angular activation g, a name or any callable of cos(theta).
        k: curvature of the sigmoid activation.
        lam: the lambda of annealing. Default: none, the margin acts in full.
        gradient: "exact", "detached" or "caffe", as above.
        curriculum: the t of :func:`curricular`, which changes the scores of the other classes.
            Default: as they are.
        others_kind: g of the other classes. Default: `kind`.
        class_weight: (C,), a weight per class, as in torch's `cross_entropy`.
        ignore_index: samples with this label do not count.
        label_smoothing: share of the target spread over all classes, in [0, 1].
        reduction: "mean", "sum" or "none", as in torch's `cross_entropy`.
        sample: share of the classes to use, in (0, 1]: all labels of the batch, and the rest drawn
            anew at each call. Default: all classes.
        sample_correction: whether the drawn classes count for those left out, so that the sum of
            exponentials is right on average; False takes the loss over the drawn classes alone.
        generator: source of the drawn classes.
        chunk: classes at a time; extra memory is O(B chunk). Default: such that the scores of a
            chunk take 2 MB.

    Returns:
        A scalar, or (B,) with reduction "none".

    >>> from hypersphere.functional import Margin
    >>> x, w, y = torch.randn(4, 8), torch.randn(10, 8), torch.tensor([3, 0, 9, 3])
    >>> dense = torch.nn.functional.cross_entropy(margin_logits(x, w, y, Margin(m=4)), y)
    >>> torch.allclose(margin_cross_entropy(x, w, y, Margin(m=4)), dense)
    True
    """
    check_shapes(features, weight, labels)
    count = weight.shape[0]
    check_weight(weight, unit, curriculum)
    check_options(labels, label_smoothing, sample, class_weight, count)
    has_margin = not is_trivial(psi) or others_kind is not None or curriculum is not None
    if labels.is_floating_point() and has_margin:
        if curriculum is not None or gradient == "caffe":
            raise ValueError(
                "soft targets (B, C) with a margin need gradient 'exact' or 'detached' and no "
                "curriculum: give integer labels (B, M) with shares to the head's loss"
            )
        return soft_margin_cross_entropy(
            features,
            weight,
            labels * (1 - label_smoothing) + label_smoothing / count,
            psi,
            scale=scale,
            unit=unit,
            bias=bias,
            kind=kind,
            k=k,
            lam=lam,
            gradient=gradient,
            others_kind=others_kind,
            class_weight=class_weight,
            reduction=reduction,
        )
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
        if others_kind is not None:
            options["kind"] = others_kind
        if curriculum is not None:
            options["t"] = curriculum
            options["level"] = reached_level(z, weight, target_class, psi, kind, k, lam)
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
            target = target + own_bias(bias, target_class)
        return assemble_loss(
            others, target, moment, target_class, count, class_weight, label_smoothing, reduction
        )


def class_logsumexp(
    z: Tensor,
    weight: Tensor,
    labels: Tensor,
    *,
    unit: bool = True,
    bias: Tensor | None = None,
    kind: Angular = "cosine",
    k: float | Tensor | None = None,
    mass: Tensor | None = None,
    index: Tensor | None = None,
    offset: Tensor | None = None,
    jacobian: bool = True,
    level: Tensor | None = None,
    t: float | Tensor | None = None,
    link: Literal["logsumexp", "softplus"] = "logsumexp",
    chunk: int | None = None,
) -> tuple[Tensor, Tensor, Tensor]:
    r"""log sum exp of the scores of all other classes, without the (B, C) matrix of scores:

    .. math:: \log \sum_{j \ne y} e^{f_j}, \quad \sum_{j \ne y} \mathrm{mass}_j f_j, \quad
        f_j = |z| n_j g(\theta_j) + b_j

    The score of the target is left to the caller, who computes it from the returned rows with
    ordinary autograd, so that margins, annealing and gradient semantics touch B numbers only.
    Memory beyond the inputs and their gradients is O(B chunk), plus one number per class. The
    gradient cannot be differentiated again.

    Args:
        z: (B, d) features, scaled so that \|z\| is the scale of the scores.
        weight: (C, d), one class per row; or (C, K, d): of K sub-centers the nearest counts, and
            its row is the one returned.
        labels: (B,) integers; -1 excludes nothing and gives row 0, whose use is the caller's.
        unit: True for n = 1, False for n = \|w\|.
        bias: (C,) or one number for all, added to the scores. Default: none.
        kind: the angular activation g, a name or any callable of cos(theta).
        k: curvature of the sigmoid activation.
        mass: (C,) or (B, C) constants; without them the second result is zero.
        index: (S,) ascending classes to sum over. Default: all.
        offset: (S,) constants added to the scores of the classes in `index`.
        jacobian: False drops the gradient of w/\|w\|, as if the rows were unit vectors already.
        level: (B,), with `t`: N(cos(theta_j)) of :func:`curricular` takes the place of the cosine.
        t: see `level`.
        link: "softplus" gives the sum of log(1 + exp f_j) instead of the log of the sum; the
            classes in `index` then count exp(offset) times.
        chunk: classes at a time. Default: such that the scores of a chunk take 2 MB.

    Returns:
        The log of the sum (B,), the sum weighted by `mass` (B,), and the rows w_y (B, d), in
        float32 or wider.

    >>> z, w = torch.eye(3)[:2], torch.eye(3)
    >>> class_logsumexp(z, w, torch.tensor([0, 1]))[0]  # log(e^0 + e^0)
    tensor([0.6931, 0.6931])
    """
    wide = torch.promote_types(torch.promote_types(z.dtype, weight.dtype), torch.float32)
    check_angular(kind, k)
    subcenters = check_weight(weight, unit, t)
    if isinstance(k, (int, float)):
        k = torch.tensor(k, dtype=wide, device=z.device)
    if isinstance(t, (int, float)):
        t = torch.tensor(t, dtype=wide, device=z.device)
    if bias is not None and bias.ndim == 0:
        bias = bias.expand(weight.shape[0])
    chunk = default_chunk(z.shape[0], subcenters) if chunk is None else chunk
    tensors = (z.to(wide), weight.flatten(0, -2), labels, bias, k, mass, index, offset, level, t)
    return others_and_moment(ClassScores(*tensors, unit, jacobian, chunk, subcenters, link, kind))
