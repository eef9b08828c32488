"""A head whose class directions are given and stay as they are."""

from __future__ import annotations

from typing import Any

from torch import Tensor, nn

from ..functional import prototypes as spread_prototypes
from ..functional.angular import Angular
from ..functional.margins import Psi
from ..registry import register
from .arguments import sizes
from .margin import MarginHead

__all__ = ["PrototypeHead"]


@register("head", "prototype", source="hyperspherical prototype networks, neural collapse")
class PrototypeHead(MarginHead):
    """Fixed class directions p_j, scores f_j = s g(theta_j) and a margin psi on the target.

    Everything else is as in :class:`MarginHead`. The prototypes are a buffer: they are saved with
    the head and move with it, and no optimizer sees them. With a regular simplex the head has the
    geometry that a trained classifier would collapse to. Features are (B, d), labels (B,), scores
    (B, C).

    Features after a ReLU reach only prototypes that have large positive coordinates: leave the ReLU
    out before this head, or use `simplex_prototypes(C, d)` with d >= C, which are made so.

    Args:
        prototypes: (C, d) class directions of any length, C >= 2, for example
            :func:`~hypersphere.functional.simplex_prototypes`. Default: made by
            :func:`~hypersphere.functional.prototypes` for `num_classes` and `in_features`.
        in_features: d; needed without prototypes, else checked.
        num_classes: C; needed without prototypes, else checked.
        margin: a :class:`Margin`, any callable psi of cos(theta), or None.
        scale: s; None for the length of the feature, \\|x\\|.
        learn_scale: whether s is a parameter, kept positive.
        angular: g, as in the layers.
        k: curvature of g, for angular="sigmoid".
        learn_k: whether k is a parameter.
        sample: share of the classes that `loss` uses in training.
        chunk: classes that `loss` takes at a time. Default: about 2 MB of scores.
        seed: of the prototypes that are made here.

    >>> import torch
    >>> from hypersphere import functional as HF
    >>> head = PrototypeHead(HF.simplex_prototypes(10, 16), scale=10.0)
    >>> head.loss(head.weight, torch.arange(10)).item() < 0.001
    True
    >>> [name for name, _ in head.named_parameters()], list(head.state_dict())
    ([], ['weight'])
    """

    weight: Tensor  # type: ignore[assignment]

    def __init__(
        self,
        prototypes: Tensor | None = None,
        *,
        in_features: int | None = None,
        num_classes: int | None = None,
        margin: Psi = None,
        scale: float | None = 30.0,
        learn_scale: bool = False,
        angular: Angular = "cosine",
        k: float | None = None,
        learn_k: bool = False,
        sample: float | None = None,
        chunk: int | None = None,
        seed: int = 0,
    ) -> None:
        if prototypes is None:
            if in_features is None or num_classes is None:
                raise ValueError(
                    "PrototypeHead expects prototypes (C, d), or in_features and num_classes to "
                    "make them"
                )
            in_features, num_classes = sizes(in_features, num_classes)
            prototypes = spread_prototypes(num_classes, in_features, seed)
        _check(prototypes, in_features, num_classes)
        super().__init__(
            prototypes.shape[1],
            prototypes.shape[0],
            margin,
            scale=scale,
            learn_scale=learn_scale,
            angular=angular,
            k=k,
            learn_k=learn_k,
            sample=sample,
            chunk=chunk,
        )
        made = self.weight
        del self.weight
        self.register_buffer("weight", prototypes.detach().to(made.dtype).to(made.device).clone())

    def __setattr__(self, name: str, value: Any) -> None:
        if name == "weight" and isinstance(value, nn.Parameter) and "weight" in self._buffers:
            raise TypeError(
                "the prototypes of a PrototypeHead are fixed and the same in every process: it "
                "cannot be sharded; use a MarginHead for class weights that are trained"
            )
        super().__setattr__(name, value)

    def reset_parameters(self) -> None:
        """Nothing: the prototypes stay as they are."""


def _check(prototypes: Tensor, in_features: int | None, num_classes: int | None) -> None:
    shape = tuple(prototypes.shape)
    if len(shape) != 2 or shape[0] < 2 or not prototypes.is_floating_point():
        raise ValueError(
            f"expected prototypes (C, d) of floating point, one class per row, C >= 2; got "
            f"{prototypes.dtype} of shape {shape}"
        )
    if num_classes not in (None, shape[0]) or in_features not in (None, shape[1]):
        raise ValueError(
            f"prototypes {shape} do not fit num_classes={num_classes}, in_features={in_features}"
        )
    lengths = prototypes.detach().norm(dim=1)
    if not bool((lengths.isfinite() & (lengths > 0)).all()):
        row = int((~(lengths.isfinite() & (lengths > 0))).nonzero()[0, 0])
        raise ValueError(
            f"every prototype needs a direction; row {row} has length {float(lengths[row])}"
        )
