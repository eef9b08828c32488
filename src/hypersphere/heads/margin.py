"""One head for every objective: the class weights, and how a score is made of them."""

from __future__ import annotations

import math
import numbers
from typing import TYPE_CHECKING, Any, TypeVar, get_args

import torch
from torch import Tensor, nn

from ..functional.angular import Angular, check_angular, held_angular, is_cosine
from ..functional.cross_entropy import Gradient, Reduction, margin_cross_entropy, margin_logits
from ..functional.margins import Psi, is_trivial, make_margin
from ..registry import register
from .annealing import LambdaAnnealing

if TYPE_CHECKING:
    from .sharded import ClassShard

__all__ = ["MarginHead", "plain_number", "sizes"]

_Number = TypeVar("_Number")


def plain_number(value: _Number) -> _Number | float:
    """A number of another library (``np.float32(0.5)``) as Python's; anything else as it is."""
    if type(value) in (int, float, bool) or not isinstance(value, numbers.Real):
        return value
    return int(value) if isinstance(value, numbers.Integral) else float(value)


def sizes(in_features: int, num_classes: int) -> tuple[int, int]:
    """Both as Python integers; raise unless they are whole numbers above 0."""
    for name, size in (("in_features", in_features), ("num_classes", num_classes)):
        if not isinstance(size, numbers.Integral) or size < 1:
            raise ValueError(f"expected a whole number {name} >= 1, got {size!r}")
    return int(in_features), int(num_classes)


@register("head", "margin")
class MarginHead(nn.Module):
    """Class weights W (C, d), scores f_j = s n_j g(theta_j) + b_j, and a margin psi on the target.

    `head(x)` maps features (B, d) to scores (B, C); `head(x, y)` with labels (B,) puts the margin
    on the target, and `head.loss(x, y)` is their cross entropy without the (B, C) matrix. All are
    computed in float32 or wider, also under autocast. `head.annealing` is None or a
    `LambdaAnnealing`, saved with the head.

    Args:
        in_features: dimension d of the features.
        num_classes: number of classes C.
        margin: a `Margin`, any callable psi of cos(theta), or None. `check_margin` knows the rule
            that a psi has to obey.
        scale: s > 0. Default: |x|.
        learn_scale: make s a parameter, kept positive.
        keep_weight_norm: n_j = |w_j| in place of 1.
        angular: the angular activation g, as in the layers: "linear", "cosine", "sigmoid" (with its
            k), "square_cosine", any callable of cos(theta), or one of the layers' activations, such
            as `SigmoidAngular(k=0.3, learnable=True)`: a learned k is one for the whole head.
        k: curvature of the sigmoid activation. Default: that of `functional.angular`.
        learn_k: learn the curvature, one for the whole head.
        bias: whether there are biases b_j.
        gradient: "exact", "detached" or "caffe"; see `functional.margin_cross_entropy`. With
            "caffe" the rows of W are put back to unit length before each training step, as the
            released layer did.
        sample: share of the classes, in (0, 1], that `loss` uses in training; all labels of the
            batch are among them. Default: all.
        chunk: classes that `loss` takes at a time. Default: about 2 MB of scores.

    >>> from hypersphere.heads import Margin
    >>> head = MarginHead(8, 10, margin=Margin(m=4))
    >>> x, y = torch.randn(5, 8), torch.arange(5)
    >>> head(x).shape, head(x, y).shape, head.loss(x, y).shape
    (torch.Size([5, 10]), torch.Size([5, 10]), torch.Size([]))
    """

    neuron_role = "output"

    weight: nn.Parameter
    annealing: LambdaAnnealing | None
    shard: ClassShard | None  # what `heads.shard` put there

    def __init__(
        self,
        in_features: int,
        num_classes: int,
        margin: Psi | str = None,
        *,
        scale: float | None = None,
        learn_scale: bool = False,
        keep_weight_norm: bool = False,
        angular: Angular = "cosine",
        k: float | None = None,
        learn_k: bool = False,
        bias: bool = False,
        gradient: Gradient = "exact",
        sample: float | None = None,
        chunk: int | None = None,
    ) -> None:
        super().__init__()
        in_features, num_classes = sizes(in_features, num_classes)
        scale, k, sample = plain_number(scale), plain_number(k), plain_number(sample)
        if scale is not None and not scale > 0:
            raise ValueError(
                f"scale is None for |x|, or a number > 0 (10 to 70 works); got {scale}"
            )
        margin = make_margin(margin)
        if margin is not None and not callable(margin):
            raise TypeError(
                f"margin is a Margin, such as Margin(m=4), Margin(shift=0.5) or "
                f"Margin(subtract=0.35), a callable psi of cos(theta), or None; got {margin!r}"
            )
        if learn_scale and scale is None:
            raise ValueError("learn_scale=True needs a scale to start from, e.g. scale=30.0")
        angular = held_angular(angular)
        if learn_k and (
            isinstance(angular, nn.Module) or check_angular(angular, k).default_k is None
        ):
            raise ValueError(
                f"learn_k=True learns the curvature of angular='sigmoid' (Eq. 4.13), which "
                f"{angular!r} is not; a module of the layers learns its own (learnable=True)"
            )
        if gradient not in get_args(Gradient):
            raise ValueError(f"gradient must be one of {get_args(Gradient)}, got {gradient!r}")
        kind: Angular = getattr(angular, "kind", angular)
        check_angular(kind, k)
        if gradient == "caffe" and (keep_weight_norm or scale is not None or not is_cosine(kind)):
            raise ValueError(
                "gradient='caffe' is the released A-Softmax layer: unit weights, scale=None (|x|) "
                "and the cosine; use 'exact' or 'detached' here"
            )
        if sample is not None and not 0 < sample <= 1:
            raise ValueError(f"sample is a share of the classes, in (0, 1]; got {sample}")
        self.in_features, self.num_classes = in_features, num_classes
        self.margin, self.keep_weight_norm, self.gradient = margin, keep_weight_norm, gradient
        self.angular, self.sample, self.chunk = angular, sample, chunk
        self.weight = nn.Parameter(torch.empty(num_classes, in_features))
        self.bias = nn.Parameter(torch.empty(num_classes)) if bias else None
        self._scale, self._k = scale, k
        self.log_scale = (
            nn.Parameter(torch.tensor(math.log(scale))) if scale and learn_scale else None
        )
        start = check_angular(kind).default_k if k is None else k
        self.log_k = nn.Parameter(torch.tensor(math.log(start))) if learn_k and start else None
        self.annealing = None
        self.shard = None
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """Rows in random directions: of length about 1, or as nn.Linear where the length counts."""
        with torch.no_grad():
            if self.keep_weight_norm:
                nn.init.kaiming_uniform_(self.weight, a=math.sqrt(5))
            else:
                self.weight.normal_(std=self.in_features**-0.5)
            if self.bias is not None:
                self.bias.zero_()

    @property
    def no_weight_decay(self) -> tuple[str, ...]:
        """Whatever is learned in s, g and psi: decay would pull them to a value without meaning."""
        return tuple(n for n, _ in self.named_parameters() if n not in ("weight", "bias"))

    @property
    def scale(self) -> float | Tensor | None:
        """s, or None for |x|."""
        return self._scale if self.log_scale is None else self.log_scale.exp()

    @property
    def k(self) -> Tensor | None:
        """Curvature of the sigmoid activation; None for its default."""
        own = getattr(self.angular, "k", None)
        k = own() if callable(own) else self._k
        if self.log_k is not None:
            k = self.log_k.exp()
        return self.weight.detach().new_tensor(k) if isinstance(k, (int, float)) else k

    def forward(
        self, features: Tensor, labels: Tensor | None = None, ignore_index: int = -100
    ) -> Tensor:
        """(B, C) scores: without labels for inference, with labels (B,) to train on.

        Args:
            features: (B, d).
            labels: (B,) integers. Default: no margin.
            ignore_index: samples with this label get no margin.

        Returns:
            Scores (B, C), float32 or wider.
        """
        if labels is not None:
            self._project()
        if self.shard is not None:
            return self.shard.logits(self, features, labels, ignore_index)
        lam = self.annealing() if self.annealing is not None and labels is not None else None
        return margin_logits(
            features,
            self.weight,
            labels,
            self.margin,
            lam=lam,
            gradient=self.gradient,
            ignore_index=ignore_index,
            **self.score_options(),
        )

    def loss(
        self,
        features: Tensor,
        labels: Tensor,
        reduction: Reduction = "mean",
        label_smoothing: float = 0.0,
        class_weight: Tensor | None = None,
        ignore_index: int = -100,
    ) -> Tensor:
        """The cross entropy of `head(features, labels, ignore_index)`, without that matrix.

        Args:
            features: (B, d).
            labels: (B,) integers, or (B, C) probabilities for a head without margin.
            reduction: "mean", "sum" or "none".
            label_smoothing: share of the target's probability, in [0, 1], that is spread over all
                classes.
            class_weight: weight of each class, (C,). Default: 1.
            ignore_index: samples with this label do not count.

        Returns:
            A scalar, or (B,) for "none".
        """
        self._project()
        if self.shard is not None:
            options = (reduction, label_smoothing, class_weight, ignore_index)
            return self.shard.loss(self, features, labels, *options)
        return margin_cross_entropy(
            features,
            self.weight,
            labels,
            self.margin,
            lam=None if self.annealing is None else self.annealing(),
            gradient=self.gradient,
            reduction=reduction,
            label_smoothing=label_smoothing,
            class_weight=class_weight,
            ignore_index=ignore_index,
            sample=self.sample if self.training else None,
            chunk=self.chunk,
            **self.score_options(),
        )

    def score_options(self) -> dict[str, Any]:
        """How scores are made of weights.

        Returns:
            Keyword arguments of `functional.margin_logits`.
        """
        return {
            "scale": self.scale,
            "unit": not self.keep_weight_norm,
            "bias": self.bias,
            "kind": getattr(self.angular, "kind", self.angular),
            "k": self.k,
        }

    @torch.no_grad()
    def _project(self) -> None:
        if self.gradient == "caffe" and self.training:
            # Through .data: a second forward before the backward finds unit rows and keeps them.
            norm = torch.linalg.vector_norm(self.weight, dim=1, keepdim=True)
            self.weight.data.div_(torch.where(norm > 0, norm, torch.ones_like(norm)))

    def _load_from_state_dict(self, state_dict: Any, prefix: str, *args: Any) -> None:
        if self.annealing is None and f"{prefix}annealing._extra_state" in state_dict:
            device = torch.device("cpu") if self.weight.is_meta else self.weight.device
            self.annealing = LambdaAnnealing().to(device)  # filled in after this, as a child
        super()._load_from_state_dict(state_dict, prefix, *args)

    def extra_repr(self) -> str:
        scale = "|x|" if self._scale is None else f"{self._scale:g}"
        parts = [f"in_features={self.in_features}, num_classes={self.num_classes}, scale={scale}"]
        parts += ["learn_scale=True"] if self.log_scale is not None else []
        parts += ["keep_weight_norm=True"] if self.keep_weight_norm else []
        named = isinstance(self.angular, str) and not is_cosine(self.angular)
        parts += [f"angular={self.angular}"] if named else []
        parts += [f"margin={self.margin}"] if not is_trivial(self.margin) else []
        parts += ["bias=True"] if self.bias is not None else []
        parts += [f"gradient={self.gradient}"] if self.gradient != "exact" else []
        parts += [f"sample={self.sample}"] if self.sample is not None else []
        if self.shard is not None:
            parts.append(f"classes {self.shard.start}..{self.shard.stop - 1} here")
        return ", ".join(parts)
