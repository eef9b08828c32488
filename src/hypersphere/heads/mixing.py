"""Several classes per sample, each with its share: mixup and CutMix with any margin."""

from __future__ import annotations

from collections.abc import Callable

from torch import Tensor

from ..functional.class_parts import Reduction

__all__ = ["mixed_loss"]


def mixed_loss(
    loss: Callable[..., Tensor],
    features: Tensor,
    labels: Tensor,
    shares: Tensor | None,
    reduction: Reduction,
    label_smoothing: float,
    class_weight: Tensor | None,
    ignore_index: int,
) -> Tensor:
    """sum_k share_k L(x, y_k): the loss of each label in turn, with its margin.

    Args:
        loss: of one label per sample: (features, labels, "none", label_smoothing, class_weight,
            ignore_index, observe) -> (B,).
        features: (B, d).
        labels: (B, M) integers.
        shares: (B, M) weights, usually with sum 1.
        reduction: "mean" over the weights of the samples, "sum" or "none".
        label_smoothing: as in the head's loss.
        class_weight: as in the head's loss.
        ignore_index: labels that do not count.

    Returns:
        A scalar, or (B,) for "none".
    """
    if shares is None or labels.is_floating_point() or labels.ndim != 2:
        raise ValueError(
            f"several labels per sample are integers (B, M) with shares (B, M); got labels "
            f"{labels.dtype} {tuple(labels.shape)} and "
            f"{'no shares' if shares is None else f'shares {tuple(shares.shape)}'}"
        )
    if shares.shape != labels.shape:
        raise ValueError(f"expected shares {tuple(labels.shape)}, got {tuple(shares.shape)}")
    if reduction not in ("mean", "sum", "none"):
        raise ValueError(f"reduction must be 'mean', 'sum' or 'none', got {reduction!r}")
    options = (label_smoothing, class_weight, ignore_index)
    total, weight = None, None
    for column in range(labels.shape[1]):
        own = labels[:, column]
        # Running statistics see the batch once.
        losses = loss(features, own, "none", *options, column == 0)
        share = shares[:, column].to(losses)
        counts = share * (own != ignore_index)
        if class_weight is not None:
            counts = counts * class_weight.to(losses)[own.clamp_min(0)]
        total = share * losses if total is None else total + share * losses
        weight = counts if weight is None else weight + counts
    if total is None or weight is None:
        raise ValueError("several labels per sample need at least one column")
    if reduction == "none":
        return total
    return total.sum() if reduction == "sum" else total.sum() / weight.sum()
