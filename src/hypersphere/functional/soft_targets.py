"""Class probabilities as targets, also with a margin: the mean of the losses of their classes."""

from __future__ import annotations

import torch
from torch import Tensor

from .angles import pairwise_cosine, row_norm
from .angular import Angular, angular
from .class_parts import Reduction, reduce, scaled_features
from .margins import Psi
from .target_score import Gradient, target_level

__all__ = ["soft_margin_cross_entropy"]


def soft_margin_cross_entropy(
    features: Tensor,
    weight: Tensor,
    targets: Tensor,
    psi: Psi = None,
    *,
    scale: float | Tensor | None = None,
    unit: bool = True,
    bias: Tensor | None = None,
    kind: Angular = "cosine",
    k: float | Tensor | None = None,
    lam: float | Tensor | None = None,
    gradient: Gradient = "exact",
    others_kind: Angular | None = None,
    class_weight: Tensor | None = None,
    reduction: Reduction = "mean",
) -> Tensor:
    r"""sum_c p_c L(x, c): each class takes the margin in turn, and counts for its probability.

    .. math:: L(x, c) = \log\Big(e^{s\psi(\theta_c)} + \sum_{j \ne c} e^{s g(\theta_j)}\Big)
        - s \psi(\theta_c)

    For one class it is the loss with that label, without a margin the usual cross entropy, and for
    two classes what mixup does. Sums over the others come from one sum over all classes; where one
    class is nearly all of it, its others are added up by themselves. Holds (B, C) scores, as the
    targets are.

    Args:
        features: (B, d).
        weight: (C, d), one class per row; or (C, K, d): of K sub-centers the nearest counts.
        targets: (B, C) class probabilities.
        psi: a Margin, any callable of cos(theta), or None for no margin; tensors in it broadcast
            against (B, C).
        scale: s, the scale of the scores. Default: \|x\|.
        unit: True for n = 1, False for n = \|w\|.
        bias: (C,), added to the scores. Default: none.
        kind: the angular activation g, a name or any callable of cos(theta).
        k: curvature of the sigmoid activation.
        lam: the lambda of annealing. Default: none, the margin acts in full.
        gradient: "exact", or "detached" for a margin that is a constant.
        others_kind: g of the classes that are not c. Default: `kind`.
        class_weight: (C,), a weight per class, as in torch's `cross_entropy`.
        reduction: "mean", "sum" or "none".

    Returns:
        A scalar, or (B,) with reduction "none".

    >>> x, w = torch.eye(3)[:1], torch.eye(3)
    >>> soft_margin_cross_entropy(x, w, torch.tensor([[0.5, 0.5, 0.0]]))
    tensor(1.0514)
    """
    with torch.autocast(features.device.type, enabled=False):
        z = scaled_features(features, weight, scale)
        w = weight.to(z.dtype)
        cos = pairwise_cosine(z, w.flatten(0, -2))
        if w.ndim == 3:
            cos = torch.unflatten(cos, 1, w.shape[:2]).amax(2)
        length = row_norm(z, keepdim=True)
        if not unit:
            length = length * row_norm(w)
        plain = length * angular(cos, kind, k)
        margin = length * target_level(cos, psi, kind, k, lam)
        if gradient == "detached":
            margin = plain + (margin - plain).detach()
        if others_kind is not None:
            plain = length * angular(cos, others_kind, k)
        if bias is not None:
            plain, margin = plain + bias, margin + bias
        total = torch.logsumexp(plain, 1, keepdim=True)
        top = plain.argmax(1, keepdim=True)
        # Only the largest can be nearly all of the sum, where the difference would lose its digits.
        lower = (plain - total).scatter(1, top, -1.0)
        without_top = torch.logsumexp(plain.scatter(1, top, -torch.inf), 1, keepdim=True)
        others = (total + torch.log1p(-lower.exp())).scatter(1, top, without_top)
        losses = torch.logaddexp(others, margin) - margin
        mass = targets.to(z) if class_weight is None else targets.to(z) * class_weight.to(z)
        return reduce((mass * losses).sum(1), None, reduction)
