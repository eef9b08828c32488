"""SphereFace2: a binary decision per class, with one threshold for all of them."""

from __future__ import annotations

from typing import Annotated, Any, ClassVar, Literal

import torch
from torch import Tensor, nn

from ..functional.binary_classes import binary_bias, binary_margin_loss
from ..functional.class_parts import Reduction
from ..functional.cross_entropy import Gradient
from ..functional.margins import Margin
from ..functional.similarity import WidenedCosine
from ..ranges import Range
from ..registry import register
from .arguments import chosen_scale, plain_number
from .margin import MarginHead
from .margin_values import HeldMargin, MarginValue, bound, make_held_margin

__all__ = ["SphereFace2Head"]

_ROLES: dict[str, Any] = {"cosine": "subtract", "angle": "shift", "multiple": "m"}


@register("head", "sphereface2", source="SphereFace2 (2022)")
class SphereFace2Head(MarginHead):
    """SphereFace2, Eq. 5: is it this class or not, asked for each class by itself.

    lambda / s log(1 + exp(-s (g_y - m) - b)) + (1 - lambda) / s sum_j log(1 + exp(s (g_j + m) + b))
    with g = 2 ((cos(theta) + 1) / 2)^t - 1. Features (B, d) -> scores (B, C); with labels (B,), the
    margins. No class competes with another, so a feature far from all classes has a low score for
    each of them, and b is a threshold in training as in use. b is learned; it starts where the loss
    of orthogonal features is smallest, in closed form (`functional.binary_bias`).

    `loss` is this times `factor`. By default that is s again, so that the loss is a plain sum of
    binary cross entropies, and s is as large as C asks for, as in `ArcFaceHead`: so it learns from
    scratch at ordinary rates, in networks with and without BatchNorm; at high ones (SGD with 0.1
    and no BatchNorm) ``gradient="detached"`` does. With the factor 1 of the
    equation the gradient is s times smaller than that of a softmax with this s, and next to nothing
    is learned; with s = 40 of the paper and the factor 50 of the authors' code networks without a
    BatchNorm at the end go astray. Those values are for long trainings with BatchNorm:
    `SphereFace2Head(d, C, scale=40.0, factor=50.0, gradient="detached")`. There is no label
    smoothing.

    Args:
        in_features: dimension d of the features.
        num_classes: number of classes C.
        m: the margin; also a number per class or a `MarginSchedule`, for which b starts as for its
            mean and its last value.
        scale: s > 0; r of the paper, which has 40. Default: `automatic_scale(num_classes)`.
        positive: lambda, the weight of the own class against all others, in (0, 1).
        t: exponent in g, >= 1; 1 is the cosine.
        margin_type: "cosine": g -+ m on both sides (SphereFace2-C); "angle": g(theta_y + m) on the
            own class alone (-A); "multiple": g(m theta_y) (-M).
        gradient: "exact" or "detached".
        sample: share of the classes, in (0, 1], that `loss` uses in training; all labels of the
            batch are among them, and those drawn count for the rest. Default: all.
        factor: of the loss; 1 is the equation. Default: s.

    >>> head = SphereFace2Head(8, 1000, scale=40.0)
    >>> round(head.shared_bias.item(), 2)
    7.94
    """

    link: ClassVar[Literal["logsumexp", "softplus"]] = "softplus"

    def __init__(
        self,
        in_features: int,
        num_classes: int,
        m: MarginValue = 0.4,
        scale: float | None = None,
        positive: float = 0.7,
        t: float = 3.0,
        margin_type: Literal["cosine", "angle", "multiple"] = "cosine",
        gradient: Gradient = "exact",
        sample: float | None = None,
        factor: Annotated[float, Range(gt=0)] | None = None,
    ) -> None:
        if margin_type not in _ROLES:
            raise ValueError(f"margin_type is one of {', '.join(_ROLES)}; got {margin_type!r}")
        if gradient not in ("exact", "detached"):
            raise ValueError(f"expected gradient 'exact' or 'detached', got {gradient!r}")
        if not 0 < positive < 1:
            raise ValueError(f"positive is a weight in (0, 1); got {positive}")
        margin = make_held_margin(_ROLES[margin_type], plain_number(m), num_classes)
        super().__init__(
            in_features,
            num_classes,
            margin,
            scale=chosen_scale(scale, in_features, num_classes),
            angular=WidenedCosine(plain_number(t), detached=gradient == "detached"),
            gradient=gradient,
            sample=sample,
        )
        factor = self._scale if factor is None else plain_number(factor)
        if factor is None or not factor > 0:
            raise ValueError(f"factor is a number above 0; got {factor}")
        self.factor = factor
        self.positive, self.t = plain_number(positive), plain_number(t)
        self.margin_type = margin_type
        self.reset_state()

    def reset_state(self, device: torch.device | None = None) -> None:
        """b in closed form.

        Args:
            device: where it is kept. Default: torch's default device.
        """
        self.shared_bias = nn.Parameter(torch.tensor(self._first_bias(), device=device))

    def raised(self) -> float | Tensor:
        """What is added to g of the other classes: m where both sides have a margin.

        Returns:
            A number, a scalar tensor, or one number per class (C,).
        """
        if self.margin_type != "cosine":
            return 0.0
        psi = bound(self.margin, self.weight, None)
        assert isinstance(psi, Margin)
        return psi.subtract

    def _first_bias(self) -> float:
        held: Any = self.margin
        if isinstance(held, HeldMargin):
            values: dict[str, Any] = {_ROLES[self.margin_type]: held.typical()}
            held = Margin(**values)
        assert self._scale is not None
        return binary_bias(
            self.num_classes,
            held,
            scale=self._scale,
            kind=WidenedCosine(self.t),
            raised=float(held.subtract),
            positive=self.positive,
        )

    def score_options(self) -> dict[str, Any]:
        """How scores are made of weights.

        Returns:
            Keyword arguments of `functional.margin_logits`.
        """
        return {**super().score_options(), "bias": self.shared_bias}

    def forward(
        self, features: Tensor, labels: Tensor | None = None, ignore_index: int = -100
    ) -> Tensor:
        """(B, C) scores: without labels for inference, with labels (B,) to train on.

        Args:
            features: (B, d).
            labels: (B,) integers. Default: no margins.
            ignore_index: samples with this label get no margins.

        Returns:
            Scores (B, C), float32 or wider; above 0 for "this class".
        """
        scores = super().forward(features, labels, ignore_index)
        if labels is None:
            return scores
        valid = labels != ignore_index
        others = torch.ones_like(scores).scatter(1, torch.where(valid, labels, 0)[:, None], 0.0)
        raised = self.raised()
        raised = raised.to(scores) if isinstance(raised, Tensor) else raised
        return scores + self._scale * raised * others * valid[:, None]  # type: ignore[operator]

    def _loss(
        self,
        features: Tensor,
        labels: Tensor,
        reduction: Reduction,
        label_smoothing: float,
        class_weight: Tensor | None,
        ignore_index: int,
        observe: bool = True,
    ) -> Tensor:
        if label_smoothing:
            raise ValueError("SphereFace2 has no label smoothing: use label_smoothing 0")
        if labels.is_floating_point():
            raise ValueError(
                "SphereFace2 takes soft targets as integer labels (B, M) with shares (B, M)"
            )
        if self.shard is not None:
            options = (reduction, label_smoothing, class_weight, ignore_index, observe)
            return self.factor * self.shard.loss(self, features, labels, *options)
        options_of_scores = self.score_options()
        return self.factor * binary_margin_loss(
            features,
            self.weight,
            labels,
            self.bound_margin(features, labels, ignore_index),
            scale=self._scale,  # type: ignore[arg-type]
            bias=self.shared_bias,
            kind=options_of_scores["kind"],
            raised=self.raised(),
            positive=self.positive,
            lam=None if self.annealing is None else self.annealing(),
            gradient=self.gradient,
            class_weight=class_weight,
            ignore_index=ignore_index,
            reduction=reduction,
            sample=self.sample if self.training else None,
            chunk=self.chunk,
        )
