"""The objectives of the dissertation by name: each a setting of MarginHead, and nothing else."""

from __future__ import annotations

from ..functional.angular import Angular
from ..functional.cross_entropy import Gradient
from ..functional.margins import Margin
from .margin import MarginHead

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


class SoftmaxHead(MarginHead):
    """Softmax loss, Eq. 2.1: f_j = w_j . x + b_j."""

    def __init__(
        self, in_features: int, num_classes: int, bias: bool = True, sample: float | None = None
    ) -> None:
        super().__init__(in_features, num_classes, keep_weight_norm=True, bias=bias, sample=sample)


class LSoftmaxHead(MarginHead):
    """Large-margin softmax, Eq. 2.4-2.8: f_y = |w_y| |x| psi(theta_y), psi by Eq. 2.6; m >= 1, real
    or integer. For many classes give it an annealing (2.2.7)."""

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
            Margin(m=m),
            keep_weight_norm=True,
            gradient=gradient,
            sample=sample,
        )


class WSoftmaxHead(MarginHead):
    """Weight-normalized softmax, Eq. 2.18 and 3.10: f_j = |x| g(theta_j).

    Deviation: the released linear and sigmoid forms leave out |x| and give NaN for many logits."""

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


class SSoftmaxHead(MarginHead):
    """Sphere-normalized softmax, L_s and B.3: f_j = s g(theta_j), s fixed or learned."""

    def __init__(
        self,
        in_features: int,
        num_classes: int,
        scale: float = 30.0,
        angular: Angular = "cosine",
        k: float | None = None,
        learn_scale: bool = False,
        learn_k: bool = False,
        sample: float | None = None,
    ) -> None:
        super().__init__(
            in_features,
            num_classes,
            scale=scale,
            learn_scale=learn_scale,
            angular=angular,
            k=k,
            learn_k=learn_k,
            sample=sample,
        )


class ASoftmaxHead(MarginHead):
    """Angular softmax (SphereFace), Eq. 2.20: f_y = |x| psi(theta_y), f_j = |x| cos(theta_j).

    With `scale` it is L_m of Part I, s instead of |x|. m >= 1, real or integer. From scratch it
    wants an annealing (A.7): `head.annealing = LambdaAnnealing.sphereface()`."""

    def __init__(
        self,
        in_features: int,
        num_classes: int,
        m: float = 4,
        scale: float | None = None,
        learn_scale: bool = False,
        gradient: Gradient = "exact",
        sample: float | None = None,
    ) -> None:
        super().__init__(
            in_features,
            num_classes,
            Margin(m=m),
            scale=scale,
            learn_scale=learn_scale,
            gradient=gradient,
            sample=sample,
        )


class GASoftmaxHead(MarginHead):
    """Generalized angular softmax, Eq. 3.11: f_y = |x| g(m theta_y), f_j = |x| g(theta_j).

    Beyond pi / m the rule of `functional.margin` keeps it continuous and decreasing for every g;
    the text has the recursion for the cosine only and "similar" for the others."""

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
            Margin(m=m),
            scale=scale,
            angular=angular,
            k=k,
            learn_k=learn_k,
            gradient=gradient,
            sample=sample,
        )


class AMSoftmaxHead(MarginHead):
    """Additive margin softmax (CosFace), L_a1 and Eq. D.11: f_y = s (cos(theta_y) - m)."""

    def __init__(
        self,
        in_features: int,
        num_classes: int,
        m: float = 0.35,
        scale: float = 30.0,
        learn_scale: bool = False,
        gradient: Gradient = "exact",
        sample: float | None = None,
    ) -> None:
        super().__init__(
            in_features,
            num_classes,
            Margin(subtract=m),
            scale=scale,
            learn_scale=learn_scale,
            gradient=gradient,
            sample=sample,
        )


class ArcFaceHead(MarginHead):
    """Additive angular margin (ArcFace), L_a2: f_y = s cos(theta_y + m), m in radians.

    Beyond theta = pi - m, where that cosine turns upwards, psi goes on falling: cos(theta) - 1 +
    cos(m). Released codes differ from each other there: left as it is, which does not learn from
    features that begin opposite to their class, or cos(theta) - m sin(m), which jumps."""

    def __init__(
        self,
        in_features: int,
        num_classes: int,
        m: float = 0.5,
        scale: float = 64.0,
        learn_scale: bool = False,
        gradient: Gradient = "exact",
        sample: float | None = None,
    ) -> None:
        super().__init__(
            in_features,
            num_classes,
            Margin(shift=m),
            scale=scale,
            learn_scale=learn_scale,
            gradient=gradient,
            sample=sample,
        )
