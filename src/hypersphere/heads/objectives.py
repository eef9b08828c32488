"""The objectives of the dissertation by name: each a setting of MarginHead, and nothing else."""

from __future__ import annotations

from ..functional.angular import Angular
from ..functional.cross_entropy import Gradient
from ..functional.margins import Margin
from ..registry import register
from .arguments import chosen_scale, plain_number, slow_start
from .margin import MarginHead
from .margin_values import MarginValue, make_held_margin

__all__ = [
    "AMSoftmaxHead",
    "ASoftmaxHead",
    "ArcFaceHead",
    "GASoftmaxHead",
    "LSoftmaxHead",
    "SSoftmaxHead",
    "SoftmaxHead",
    "WSoftmaxHead",
]


@register("head", "softmax", source="Eq. 2.1")
class SoftmaxHead(MarginHead):
    """Softmax loss, Eq. 2.1: f_j = w_j . x + b_j.

    Features (B, d) -> scores (B, C).

    Args:
        in_features: dimension d of the features.
        num_classes: number of classes C.
        bias: whether there are biases b_j.
        sample: share of the classes, in (0, 1], that `loss` uses in training; all labels of the
            batch are among them. Default: all.
    """

    def __init__(
        self, in_features: int, num_classes: int, bias: bool = True, sample: float | None = None
    ) -> None:
        super().__init__(in_features, num_classes, keep_weight_norm=True, bias=bias, sample=sample)


@register("head", "l_softmax", source="Eq. 2.4-2.8")
class LSoftmaxHead(MarginHead):
    """Large-margin softmax, Eq. 2.4-2.8: f_y = |w_y| |x| psi(theta_y), psi by Eq. 2.6.

    Features (B, d) -> scores (B, C); with labels (B,), the margin on the target. For many classes
    give it an annealing (2.2.7).

    Args:
        in_features: dimension d of the features.
        num_classes: number of classes C.
        m: multiplicative margin, m >= 1, real or integer.
        gradient: "exact", "detached" or "caffe"; see `functional.margin_cross_entropy`.
        sample: share of the classes, in (0, 1], that `loss` uses in training; all labels of the
            batch are among them. Default: all.
    """

    def __init__(
        self,
        in_features: int,
        num_classes: int,
        m: float = 2,
        gradient: Gradient = "exact",
        sample: float | None = None,
    ) -> None:
        super().__init__(
            in_features,
            num_classes,
            Margin(m=plain_number(m)),
            keep_weight_norm=True,
            gradient=gradient,
            sample=sample,
        )


@register("head", "w_softmax", source="Eq. 2.18, 3.10")
class WSoftmaxHead(MarginHead):
    """Weight-normalized softmax, Eq. 2.18 and 3.10: f_j = |x| g(theta_j).

    Features (B, d) -> scores (B, C). Deviation: the released linear and sigmoid forms leave out |x|
    and give NaN for many logits.

    Args:
        in_features: dimension d of the features.
        num_classes: number of classes C.
        angular: the angular activation g: a name, a callable of cos(theta), or one of the layers'
            activations.
        k: curvature of the sigmoid activation. Default: that of `functional.angular`.
        learn_k: learn the curvature, one for the whole head.
        bias: whether there are biases b_j.
        sample: share of the classes, in (0, 1], that `loss` uses in training; all labels of the
            batch are among them. Default: all.
    """

    def __init__(
        self,
        in_features: int,
        num_classes: int,
        angular: Angular = "cosine",
        k: float | None = None,
        learn_k: bool = False,
        bias: bool = False,
        sample: float | None = None,
    ) -> None:
        super().__init__(
            in_features,
            num_classes,
            angular=angular,
            k=k,
            learn_k=learn_k,
            bias=bias,
            sample=sample,
        )


@register("head", "s_softmax", source="Sec. B.3")
class SSoftmaxHead(MarginHead):
    """Sphere-normalized softmax, L_s and B.3: f_j = s g(theta_j), s fixed or learned.

    Features (B, d) -> scores (B, C).

    Args:
        in_features: dimension d of the features.
        num_classes: number of classes C.
        scale: s > 0. Default: `automatic_scale(num_classes)`; much larger ones, such as 30, need a
            network that ends with a BatchNorm, or a lower rate.
        angular: the angular activation g: a name, a callable of cos(theta), or one of the layers'
            activations.
        k: curvature of the sigmoid activation. Default: that of `functional.angular`.
        learn_scale: make s a parameter, kept positive.
        learn_k: learn the curvature, one for the whole head.
        sample: share of the classes, in (0, 1], that `loss` uses in training; all labels of the
            batch are among them. Default: all.
    """

    def __init__(
        self,
        in_features: int,
        num_classes: int,
        scale: float | None = None,
        angular: Angular = "cosine",
        k: float | None = None,
        learn_scale: bool = False,
        learn_k: bool = False,
        sample: float | None = None,
    ) -> None:
        super().__init__(
            in_features,
            num_classes,
            scale=chosen_scale(scale, in_features, num_classes),
            learn_scale=learn_scale,
            angular=angular,
            k=k,
            learn_k=learn_k,
            sample=sample,
        )


@register("head", "a_softmax", source="Eq. 2.20")
class ASoftmaxHead(MarginHead):
    """Angular softmax (SphereFace), Eq. 2.20: f_y = |x| psi(theta_y), f_j = |x| cos(theta_j).

    Features (B, d) -> scores (B, C); with labels (B,), the margin on the target. With ``scale`` it
    is L_m of Part I, s instead of |x|. From scratch it wants an annealing (A.7): `head.annealing =
    LambdaAnnealing.sphereface()`.

    Args:
        in_features: dimension d of the features.
        num_classes: number of classes C.
        m: multiplicative margin, m >= 1, real or integer; also a number per class or a
            `MarginSchedule`.
        scale: s > 0 in place of |x|. Default: |x|.
        learn_scale: make s a parameter, kept positive.
        gradient: "exact", "detached" or "caffe"; see `functional.margin_cross_entropy`.
        sample: share of the classes, in (0, 1], that `loss` uses in training; all labels of the
            batch are among them. Default: all.
    """

    def __init__(
        self,
        in_features: int,
        num_classes: int,
        m: MarginValue = 4,
        scale: float | None = None,
        learn_scale: bool = False,
        gradient: Gradient = "exact",
        sample: float | None = None,
    ) -> None:
        super().__init__(
            in_features,
            num_classes,
            make_held_margin("m", plain_number(m), num_classes),
            scale=scale,
            learn_scale=learn_scale,
            gradient=gradient,
            sample=sample,
        )


@register("head", "ga_softmax", source="Eq. 3.11")
class GASoftmaxHead(MarginHead):
    """Generalized angular softmax, Eq. 3.11: f_y = |x| g(m theta_y), f_j = |x| g(theta_j).

    Features (B, d) -> scores (B, C); with labels (B,), the margin on the target. Beyond pi / m the
    rule of `functional.margin` keeps it continuous and decreasing for every g; the dissertation has
    the recursion for the cosine only and "similar" for the others.

    Args:
        in_features: dimension d of the features.
        num_classes: number of classes C.
        m: multiplicative margin, m >= 1, real or integer.
        angular: the angular activation g: a name, a callable of cos(theta), or one of the layers'
            activations.
        k: curvature of the sigmoid activation. Default: that of `functional.angular`.
        learn_k: learn the curvature, one for the whole head.
        scale: s > 0 in place of |x|. Default: |x|.
        gradient: "exact", "detached" or "caffe"; see `functional.margin_cross_entropy`.
        sample: share of the classes, in (0, 1], that `loss` uses in training; all labels of the
            batch are among them. Default: all.
    """

    def __init__(
        self,
        in_features: int,
        num_classes: int,
        m: float = 4,
        angular: Angular = "linear",
        k: float | None = None,
        learn_k: bool = False,
        scale: float | None = None,
        gradient: Gradient = "exact",
        sample: float | None = None,
    ) -> None:
        super().__init__(
            in_features,
            num_classes,
            Margin(m=plain_number(m)),
            scale=scale,
            angular=angular,
            k=k,
            learn_k=learn_k,
            gradient=gradient,
            sample=sample,
        )


@register("head", "am_softmax", source="Eq. D.11")
class AMSoftmaxHead(MarginHead):
    """Additive margin softmax (CosFace), L_a1 and Eq. D.11: f_y = s (cos(theta_y) - m).

    Features (B, d) -> scores (B, C); with labels (B,), the margin on the target.

    Args:
        in_features: dimension d of the features.
        num_classes: number of classes C.
        m: what is subtracted from the target's cosine, m >= 0; also a number per class (see
            `long_tail_margins`) or a `MarginSchedule`.
        scale: s > 0. Default: `automatic_scale(num_classes)`; the papers' 30 and 64 need a network
            that ends with a BatchNorm, or a lower rate.
        learn_scale: make s a parameter, kept positive.
        gradient: "exact", "detached" or "caffe"; see `functional.margin_cross_entropy`.
        sample: share of the classes, in (0, 1], that `loss` uses in training; all labels of the
            batch are among them. Default: all.
    """

    def __init__(
        self,
        in_features: int,
        num_classes: int,
        m: MarginValue = 0.35,
        scale: float | None = None,
        learn_scale: bool = False,
        gradient: Gradient = "exact",
        sample: float | None = None,
    ) -> None:
        super().__init__(
            in_features,
            num_classes,
            make_held_margin("subtract", plain_number(m), num_classes),
            scale=chosen_scale(scale, in_features, num_classes),
            learn_scale=learn_scale,
            gradient=gradient,
            sample=sample,
        )


@register("head", "arcface", source="L_a2")
class ArcFaceHead(MarginHead):
    """Additive angular margin (ArcFace), L_a2: f_y = s cos(theta_y + m).

    Features (B, d) -> scores (B, C); with labels (B,), the margin on the target. Beyond theta = pi
    - m, where that cosine turns upwards, psi goes on falling: cos(theta) - 1 + cos(m). Released
    codes differ from each other there: left as it is, which does not learn from features that begin
    opposite to their class, or cos(theta) - m sin(m), which jumps.

    Scale and start of W keep out of the trap that docs/heads.md describes, features that lie
    opposite to all classes at once: s is as large as C asks for, and the rows of W have length 3 at
    first, so that they turn slowly. The paper's s = 64 and the short rows of its code, N(0,
    0.01^2), are for networks that end with a BatchNorm: `MarginHead(d, C, Margin(shift=0.5),
    scale=64.0, start_std=0.01)`.

    With `subcenters` a class has several directions, for pictures that are wrong or hard; see
    `find_outliers` and `keep_dominant`.

    Args:
        in_features: dimension d of the features.
        num_classes: number of classes C.
        m: what is added to the target's angle, in radians, in [0, pi); also a number per class (see
            `long_tail_margins`) or a `MarginSchedule`.
        scale: s > 0. Default: `automatic_scale(num_classes)`, 8 for 10 classes and 18 for 100,000;
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
            scale=chosen_scale(scale, in_features, num_classes),
            start_std=slow_start(in_features),
            learn_scale=learn_scale,
            gradient=gradient,
            sample=sample,
            subcenters=subcenters,
        )
