"""SphereFace-R: the multiplicative margin of A-Softmax, in forms that train from scratch."""

from __future__ import annotations

from typing import Annotated, Any, Literal

import torch
from torch import Tensor

from ..functional.angles import row_norm
from ..functional.angular import Angular
from ..functional.cross_entropy import Gradient
from ..functional.similarity import StretchedCosine
from ..ranges import Range
from ..registry import register
from .arguments import chosen_scale, plain_number
from .margin import MarginHead
from .margin_values import HeldMargin, MarginSchedule, MarginValue, make_held_margin

__all__ = ["SphereFaceRHead"]


@register("head", "sphereface_r", source="SphereFace-R (2022)")
class SphereFaceRHead(MarginHead):
    r"""SphereFace-R: f_y = s cos(m theta_y) or f_j = s cos(theta_j / m), by `version`.

    "v0": psi of A-Softmax, which falls on beyond pi / m. "v1": cos(min(m theta_y, pi)), -1 beyond.
    "v2": the target keeps cos(theta_y), and the others have cos(theta_j / m), which is larger.
    Features (B, d) -> scores (B, C); with labels (B,), the margin.

    The gradient is that of cos(theta) by default, the margin a constant ("characteristic gradient
    detachment"): that of cos(m theta) vanishes where psi turns. The lengths of features are s (hard
    normalization, the default), free with `scale=None`, or drawn towards s with `soft` > 0, which
    adds soft (|x| - s)^2 to the loss (the released code has soft \|\|x\| - s\|).

    Args:
        in_features: dimension d of the features.
        num_classes: number of classes C.
        m: multiplicative margin, m >= 1, real or integer; also a `MarginSchedule`, and a number per
            class unless the version is "v2".
        scale: s > 0. "automatic": `automatic_scale(num_classes)`; the 30 and 64 of the papers need
            a network that ends with a BatchNorm, or a lower rate. None: |x|, no normalization.
        version: "v0", "v1" or "v2".
        soft: weight of the penalty on lengths, whose scores are then |x| cos(theta). Default: 0,
            hard normalization.
        gradient: "detached" or "exact".
        sample: share of the classes, in (0, 1], that `loss` uses in training; all labels of the
            batch are among them (PartialFC). Default: all.
    """

    def __init__(
        self,
        in_features: int,
        num_classes: int,
        m: MarginValue = 1.5,
        scale: float | Literal["automatic"] | None = "automatic",
        version: Literal["v0", "v1", "v2"] = "v1",
        soft: Annotated[float, Range(ge=0)] = 0.0,
        gradient: Gradient = "detached",
        sample: float | None = None,
    ) -> None:
        if version not in ("v0", "v1", "v2"):
            raise ValueError(f"version is 'v0', 'v1' or 'v2'; got {version!r}")
        if gradient not in ("exact", "detached"):
            raise ValueError(f"expected gradient 'exact' or 'detached', got {gradient!r}")
        soft = plain_number(soft)
        if isinstance(scale, str):
            if scale != "automatic":
                raise ValueError(f"scale is a number, None or 'automatic'; got {scale!r}")
            scale = chosen_scale(None, in_features, num_classes)
        if not soft >= 0 or (soft and scale is None):
            raise ValueError(
                f"soft is the weight >= 0 of (|x| - scale)^2 and needs a scale; got soft={soft}, "
                f"scale={scale}"
            )
        margin = make_held_margin(
            "m", plain_number(m), num_classes, beyond="flat" if version == "v1" else "falling"
        )
        stretch: Any = None
        if version == "v2":  # there m acts on the others, through `others_kind`
            stretch = margin.schedule if isinstance(margin, HeldMargin) else margin.m
            if stretch is None:
                raise ValueError("SphereFace-R v2 has one m for all classes, or a MarginSchedule")
        super().__init__(
            in_features,
            num_classes,
            None if version == "v2" else margin,
            scale=None if soft else scale,
            gradient=gradient,
            sample=sample,
        )
        self.version, self.soft, self.length = version, soft, plain_number(scale)
        self.stretch: float | MarginSchedule | None = stretch

    def others_kind(self) -> Angular | None:
        """cos(theta / m) of the other classes in version "v2".

        Returns:
            The similarity, or None for the cosine.
        """
        if self.stretch is None:
            return None
        m = self.stretch() if isinstance(self.stretch, MarginSchedule) else self.stretch
        return StretchedCosine(m, detached=self.gradient == "detached")

    def penalty(self, features: Tensor) -> Tensor | None:
        """soft (|x| - s)^2 per sample.

        Args:
            features: (B, d).

        Returns:
            (B,), or None for nothing.
        """
        if not self.soft or self.length is None:
            return None
        wide = features.to(torch.promote_types(features.dtype, torch.float32))
        return self.soft * (row_norm(wide) - self.length).square()

    def extra_repr(self) -> str:
        soft = f", soft={self.soft:g}" if self.soft else ""
        m = f", m={self.stretch:g}" if isinstance(self.stretch, (int, float)) else ""
        return f"{super().extra_repr()}, version={self.version}{m}{soft}"
