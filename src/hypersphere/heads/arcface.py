"""ArcFace: an additive angular margin, with a scale that fits the number of classes."""

from __future__ import annotations

from ..functional.cross_entropy import Gradient
from ..registry import register
from .arguments import plain_number
from .margin import MarginHead
from .margin_values import MarginValue, make_held_margin
from .theory import automatic_scale

__all__ = ["ArcFaceHead"]

START_STD = 0.01  # of the entries of W in the authors' code


@register("head", "arcface", source="L_a2")
class ArcFaceHead(MarginHead):
    """Additive angular margin (ArcFace), L_a2: f_y = s cos(theta_y + m).

    Features (B, d) -> scores (B, C); with labels (B,), the margin on the target. Beyond theta = pi
    - m, where that cosine turns upwards, psi goes on falling: cos(theta) - 1 + cos(m). Released
    codes differ from each other there: left as it is, which does not learn from features that begin
    opposite to their class, or cos(theta) - m sin(m), which jumps.

    W starts with entries N(0, 0.01^2), as in the authors' code: short rows turn fast, so that the
    classes come to the features. With rows of length 1 and s = 64 the features run away from all
    classes at once and stay opposite to them.

    With `subcenters` a class has several directions, for pictures that are wrong or hard; see
    `find_outliers` and `keep_dominant`.

    Args:
        in_features: dimension d of the features.
        num_classes: number of classes C.
        m: what is added to the target's angle, in radians, in [0, pi); also a number per class (see
            `long_tail_margins`) or a `MarginSchedule`.
        scale: s > 0. Default: `automatic_scale(num_classes)`, 18 for 10 classes and 36 for 100,000;
            the paper has 64.
        learn_scale: make s a parameter, kept positive.
        gradient: "exact", "detached" or "caffe"; see `functional.margin_cross_entropy`.
        sample: share of the classes, in (0, 1], that `loss` uses in training; all labels of the
            batch are among them (PartialFC). Default: all.
        subcenters: directions per class.
    """

    def __init__(
        self,
        in_features: int,
        num_classes: int,
        m: MarginValue = 0.5,
        scale: float | None = None,
        learn_scale: bool = False,
        gradient: Gradient = "exact",
        sample: float | None = None,
        subcenters: int = 1,
    ) -> None:
        super().__init__(
            in_features,
            num_classes,
            make_held_margin("shift", plain_number(m), num_classes),
            scale=automatic_scale(num_classes) if scale is None else scale,
            learn_scale=learn_scale,
            gradient=gradient,
            sample=sample,
            subcenters=subcenters,
            start_std=None,
        )
