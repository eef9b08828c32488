"""One head for every objective: the class weights, and how a score is made of them."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, ClassVar, Literal

import torch
from torch import Tensor, nn

from ..functional.angles import cosine
from ..functional.angular import Angular, check_angular, held_angular, is_cosine
from ..functional.class_parts import Reduction
from ..functional.cross_entropy import Gradient, margin_cross_entropy, margin_logits
from ..functional.labels import check_labels, check_shapes
from ..functional.margins import Psi, is_trivial, make_margin
from ..registry import register
from .annealing import LambdaAnnealing
from .arguments import check_head, plain_number, sizes, weighted_penalty
from .margin_values import bound
from .mixing import mixed_loss

if TYPE_CHECKING:
    from .sharded import ClassShard

__all__ = ["MarginHead"]


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
        margin: a `Margin`, any callable psi of cos(theta), a margin that changes with the batch
            (`AdaptiveMargin`, `MagnitudeMargin`, `HeldMargin`), or None. `check_margin` knows the
            rule that a psi has to obey.
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
            batch are among them (PartialFC). Default: all.
        chunk: classes that `loss` takes at a time. Default: about 2 MB of scores.
        subcenters: directions per class, K; the nearest to a feature makes the score. With more
            than one the weight is (C, K, d).
        start_std: standard deviation of the entries of W at the start; the smaller, the faster the
            rows turn at first. Default: 1 / sqrt(d), rows of length about 1.

    >>> from hypersphere.heads import Margin
    >>> head = MarginHead(8, 10, margin=Margin(m=4))
    >>> x, y = torch.randn(5, 8), torch.arange(5)
    >>> head(x).shape, head(x, y).shape, head.loss(x, y).shape
    (torch.Size([5, 10]), torch.Size([5, 10]), torch.Size([]))
    """

    neuron_role = "output"
    # How the scores of the other classes are summed up; see `SphereFace2Head`.
    link: ClassVar[Literal["logsumexp", "softplus"]] = "logsumexp"
    positive: float = 0.5

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
        subcenters: int = 1,
        start_std: float | None = None,
    ) -> None:
        super().__init__()
        in_features, num_classes = sizes(in_features, num_classes)
        scale, k, sample = plain_number(scale), plain_number(k), plain_number(sample)
        margin, angular = make_margin(margin), held_angular(angular)
        check_head(
            margin,
            scale=scale,
            learn_scale=learn_scale,
            keep_weight_norm=keep_weight_norm,
            angular=angular,
            k=k,
            learn_k=learn_k,
            gradient=gradient,
            sample=sample,
            subcenters=subcenters,
            start_std=start_std,
        )
        kind: Angular = getattr(angular, "kind", angular)
        self.in_features, self.num_classes = in_features, num_classes
        self.margin, self.keep_weight_norm, self.gradient = margin, keep_weight_norm, gradient
        self.angular, self.sample, self.chunk = angular, sample, chunk
        self.subcenters, self.start_std = int(subcenters), start_std
        shape = (num_classes, in_features)
        if subcenters > 1:
            shape = (num_classes, subcenters, in_features)  # type: ignore[assignment]
        self.weight = nn.Parameter(torch.empty(shape))
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
                self.weight.normal_(std=self.start_std or self.in_features**-0.5)
            if self.bias is not None:
                self.bias.zero_()

    @property
    def no_weight_decay(self) -> tuple[str, ...]:
        """Whatever is learned in s, g and psi: decay would pull them to a value without meaning."""
        return tuple(n for n, _ in self.named_parameters() if n not in ("weight", "bias"))

    @property
    def curriculum(self) -> Tensor | None:
        """The t of `functional.curricular`; None for scores of other classes as they are."""
        return None

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
        options = self.score_options()
        if labels is None:
            return margin_logits(features, self.weight, **options)
        psi = self.bound_margin(features, labels, ignore_index)
        options.update(self.label_options(), ignore_index=ignore_index)
        return margin_logits(features, self.weight, labels, psi, **options)

    def label_options(self) -> dict[str, Any]:
        """What labels change in the scores, beside psi.

        Returns:
            Keyword arguments of `functional.margin_logits`.
        """
        return {
            "lam": None if self.annealing is None else self.annealing(),
            "gradient": self.gradient,
            "curriculum": self.curriculum,
            "others_kind": self.others_kind(),
        }

    def loss(
        self,
        features: Tensor,
        labels: Tensor,
        reduction: Reduction = "mean",
        label_smoothing: float = 0.0,
        class_weight: Tensor | None = None,
        ignore_index: int = -100,
        shares: Tensor | None = None,
    ) -> Tensor:
        """The cross entropy of `head(features, labels, ignore_index)`, without that matrix.

        Several classes per sample, (B, M) labels with their `shares` (mixup has M = 2), or (B, C)
        probabilities: the mean of the losses of the classes, each with the margin in its turn.

        Args:
            features: (B, d).
            labels: (B,) or (B, M) integers, or (B, C) probabilities, whose loss with a margin holds
                a (B, C) matrix.
            reduction: "mean", "sum" or "none".
            label_smoothing: share of the target's probability, in [0, 1], that is spread over all
                classes.
            class_weight: weight of each class, (C,). Default: 1.
            ignore_index: samples with this label do not count.
            shares: (B, M) weights of the labels of each sample. Default: one label per sample.

        Returns:
            A scalar, or (B,) for "none".
        """
        options = (label_smoothing, class_weight, ignore_index)
        if shares is not None or (labels.ndim == 2 and not labels.is_floating_point()):
            return mixed_loss(self._loss, features, labels, shares, reduction, *options)
        return self._loss(features, labels, reduction, *options)

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
        """The loss with one label per sample, or with probabilities."""
        self._project()
        if self.shard is not None:
            options = (reduction, label_smoothing, class_weight, ignore_index, observe)
            return self.shard.loss(self, features, labels, *options)
        classes = self._classes(features, labels, ignore_index)
        if observe and self.training:
            rows = self.weight
            self.observe(features, classes, lambda: cosine(features, rows[classes.clamp_min(0)]))
        soft = labels.is_floating_point()
        loss = margin_cross_entropy(
            features,
            self.weight,
            labels,
            bound(self.margin, features, None if soft else classes),
            reduction=reduction,
            label_smoothing=label_smoothing,
            class_weight=class_weight,
            ignore_index=ignore_index,
            sample=self.sample if self.training else None,
            chunk=self.chunk,
            **self.label_options(),
            **self.score_options(),
        )
        penalty = self.penalty(features)
        if penalty is None:
            return loss
        targets = labels if soft else classes
        return loss + weighted_penalty(penalty, targets, class_weight, reduction)

    def bound_margin(self, features: Tensor, labels: Tensor, ignore_index: int = -100) -> Psi:
        """The margin that a batch has: `head.margin`, or what that makes of the batch.

        Args:
            features: (B, d).
            labels: (B,) integers.
            ignore_index: a label of no class.

        Returns:
            A `Margin`, another callable psi of cos(theta), or None.
        """
        if not hasattr(self.margin, "bind"):
            return self.margin
        soft = labels.is_floating_point()
        classes = None if soft else self._classes(features, labels, ignore_index)
        return bound(self.margin, features, classes)

    def _classes(self, features: Tensor, labels: Tensor, ignore_index: int) -> Tensor:
        """The label of each sample, (B,), with -1 for those that do not count."""
        check_shapes(features, self.weight, labels)
        if labels.is_floating_point():
            return torch.zeros_like(labels[:, 0], dtype=torch.long)
        labels = labels.long()
        check_labels(labels, self.num_classes, ignore_index)
        return torch.where(labels != ignore_index, labels, -1)

    def observe(
        self, features: Tensor, classes: Tensor, target_cosines: Callable[[], Tensor]
    ) -> None:
        """Take a training batch into what the margin remembers; `loss` does so before it is used.

        Args:
            features: (B, d).
            classes: (B,) labels, -1 for samples that do not count.
            target_cosines: gives cos(theta_y), (B,), if called.
        """
        own = getattr(self.margin, "observe", None)
        if own is not None:
            own(features, classes)

    def penalty(self, features: Tensor) -> Tensor | None:
        """What is added to the losses of the samples because of the lengths of their features.

        Args:
            features: (B, d).

        Returns:
            (B,), or None for nothing.
        """
        own = getattr(self.margin, "penalty", None)
        return None if own is None else own(features)

    def raised(self) -> float | Tensor:
        """What is added to g of the other classes in training.

        Returns:
            A number, a scalar tensor, or one number per class (C,).
        """
        return 0.0

    def others_kind(self) -> Angular | None:
        """g of the other classes in training; None if it is that of the target.

        Returns:
            An angular activation, or None.
        """
        return None

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
        shown = not is_trivial(self.margin) and not isinstance(self.margin, nn.Module)
        parts += [f"margin={self.margin}"] if shown else []
        parts += [f"subcenters={self.subcenters}"] if self.subcenters > 1 else []
        parts += ["bias=True"] if self.bias is not None else []
        parts += [f"gradient={self.gradient}"] if self.gradient != "exact" else []
        parts += [f"sample={self.sample}"] if self.sample is not None else []
        if self.shard is not None:
            parts.append(f"classes {self.shard.start}..{self.shard.stop - 1} here")
        return ", ".join(parts)
