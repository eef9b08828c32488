"""AdaFace and MagFace: the margin of a sample depends on the length of its feature."""

from __future__ import annotations

from ..functional.cross_entropy import Gradient
from ..registry import register
from .arguments import chosen_scale, plain_number, slow_start
from .margin import MarginHead
from .quality_margins import AdaptiveMargin, MagnitudeMargin

__all__ = ["AdaFaceHead", "MagFaceHead"]


@register("head", "adaface", source="AdaFace (2022)")
class AdaFaceHead(MarginHead):
    """AdaFace: f_y = s (cos(theta_y - m q) - m (1 + q)), q the quality of the sample.

    Features (B, d) -> scores (B, C); with labels (B,), the margin on the target. q in [-1, 1] is
    the length of the feature against the lengths of others, see `AdaptiveMargin`; their running
    mean and deviation are saved with the head, and `loss` updates them in training mode. Where
    theta_y < m q the angle counts as 0, as in the authors' code.

    Args:
        in_features: dimension d of the features.
        num_classes: number of classes C.
        m: the margin, one number for all classes.
        h: how many standard deviations of length fill the range of q: q = 1 is 1 / h of them.
        momentum: share of the current batch in the running statistics.
        scale: s > 0. Default: `automatic_scale(num_classes)`; the paper has 64.
        gradient: "exact" or "detached"; see `functional.margin_cross_entropy`.
        sample: share of the classes, in (0, 1], that `loss` uses in training; all labels of the
            batch are among them (PartialFC). Default: all.
        subcenters: directions per class.

    >>> import torch
    >>> head = AdaFaceHead(8, 10)
    >>> sorted(head.state_dict())
    ['margin.mean', 'margin.std', 'weight']
    """

    def __init__(
        self,
        in_features: int,
        num_classes: int,
        m: float = 0.4,
        h: float = 0.333,
        momentum: float = 0.99,
        scale: float | None = None,
        gradient: Gradient = "exact",
        sample: float | None = None,
        subcenters: int = 1,
    ) -> None:
        super().__init__(
            in_features,
            num_classes,
            AdaptiveMargin(plain_number(m), plain_number(h), plain_number(momentum)),
            scale=chosen_scale(scale, in_features, num_classes),
            start_std=slow_start(in_features),
            gradient=gradient,
            sample=sample,
            subcenters=subcenters,
        )


@register("head", "magface", source="MagFace (2021)")
class MagFaceHead(MarginHead):
    """MagFace: f_y = s cos(theta_y + m(|x|)), plus pull (1 / |x| + |x| / longest^2) in the loss.

    Features (B, d) -> scores (B, C); with labels (B,), the margin on the target. After training the
    length of a feature tells the quality of its picture. Lengths count as at least `shortest` and
    at most `longest`, as in the authors' code, and outside nothing pulls them: let features begin
    within, for example by a BatchNorm of d numbers, which gives |x| about sqrt(d).

    The cross entropy of `head(x, y)` is the loss without the penalty.

    Args:
        in_features: dimension d of the features.
        num_classes: number of classes C.
        low: margin of short features, in radians.
        high: margin of long features, in radians.
        shortest: length below which the margin is `low`.
        longest: length above which it is `high`.
        pull: weight of the penalty; lambda_g of the paper.
        scale: s > 0. Default: `automatic_scale(num_classes)`; the paper has 64.
        gradient: "exact" or "detached"; see `functional.margin_cross_entropy`.
        sample: share of the classes, in (0, 1], that `loss` uses in training; all labels of the
            batch are among them (PartialFC). Default: all.
        subcenters: directions per class.
    """

    def __init__(
        self,
        in_features: int,
        num_classes: int,
        low: float = 0.45,
        high: float = 0.8,
        shortest: float = 10.0,
        longest: float = 110.0,
        pull: float = 35.0,
        scale: float | None = None,
        gradient: Gradient = "exact",
        sample: float | None = None,
        subcenters: int = 1,
    ) -> None:
        numbers = (plain_number(n) for n in (low, high, shortest, longest, pull))
        super().__init__(
            in_features,
            num_classes,
            MagnitudeMargin(*numbers),
            scale=chosen_scale(scale, in_features, num_classes),
            start_std=slow_start(in_features),
            gradient=gradient,
            sample=sample,
            subcenters=subcenters,
        )
