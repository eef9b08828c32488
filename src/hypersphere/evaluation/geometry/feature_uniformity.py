"""How evenly features cover the sphere, beside what uniform directions would give."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from ...functional import normalize, uniformity, uniformity_of_uniform
from ..inputs import check_features, check_row_labels
from ..results import Result

__all__ = ["FeatureUniformityResult", "feature_uniformity"]


@dataclass
class FeatureUniformityResult(Result):
    """Result of :func:`feature_uniformity`; lower is better in every line.

    Args:
        uniformity: log mean exp(-t |x - y|^2) over all pairs of features.
        uniform: its value for uniform directions in this dimension.
        class_uniformity: the same of the class means, NaN without labels.
        alignment: mean |x - y|^2 over pairs of one class, NaN without labels or pairs. It is 2 for
            uniform directions, whatever the dimension.
        samples: number of features.
        dim: their dimension.
        t: of the uniformity.
    """

    uniformity: float
    uniform: float
    class_uniformity: float
    alignment: float
    samples: int
    dim: int
    t: float

    @property
    def excess(self) -> float:
        """How far the features are above uniform directions; 0 is uniform, 2t the largest."""
        return self.uniformity - self.uniform

    def header(self) -> Sequence[str]:
        return ("", "features", "uniform", "excess")

    def rows(self) -> Iterator[Sequence[object]]:
        title = f"uniformity (t = {self.t:g}, d = {self.dim})"
        yield title, f"{self.uniformity:.4f}", f"{self.uniform:.4f}", f"{self.excess:+.4f}"
        if not math.isnan(self.class_uniformity):
            gap = self.class_uniformity - self.uniform
            row = f"{self.class_uniformity:.4f}", f"{self.uniform:.4f}", f"{gap:+.4f}"
            yield "  of class means", *row
        if not math.isnan(self.alignment):
            row = f"{self.alignment:.4f}", f"{2.0:.4f}", f"{self.alignment - 2:+.4f}"
            yield "alignment within classes", *row


@torch.no_grad()
def feature_uniformity(
    features: Tensor, labels: Tensor | None = None, t: float = 2.0
) -> FeatureUniformityResult:
    """Uniformity and alignment of features, relative to uniform directions in their dimension.

    Args:
        features: (n, d), n >= 2, of any length.
        labels: (n,) classes; without them there is no alignment.
        t: of the uniformity.

    Returns:
        The figures, from all pairs; memory is O(n x block).

    >>> result = feature_uniformity(torch.eye(3), torch.tensor([0, 0, 1]))
    >>> round(result.uniformity, 4), round(result.uniform, 4), round(result.alignment, 4)
    (-4.0, -2.0798, 2.0)
    """
    features = check_features("features", features)
    if len(features) < 2:
        raise ValueError("features: uniformity compares features; expected n >= 2, got 1")
    classes = aligned = math.nan
    if labels is not None:
        labels = check_row_labels("labels", labels, len(features)).to(features.device)
        classes, aligned = _by_class(features.double(), labels, t)
    return FeatureUniformityResult(
        float(uniformity(features, t)),
        uniformity_of_uniform(features.shape[1], t),
        classes,
        aligned,
        len(features),
        features.shape[1],
        t,
    )


def _by_class(features: Tensor, labels: Tensor, t: float) -> tuple[float, float]:
    """Uniformity of the class means, and alignment over all pairs within classes.

    Over a class of n unit vectors with sum s, sum_{i != j} |x_i - x_j|^2 = 2 n^2 - 2 |s|^2: no
    pairs are made.
    """
    unit = normalize(features)
    _, index, counts = torch.unique(labels, return_inverse=True, return_counts=True)
    total = unit.new_zeros(len(counts), unit.shape[1]).index_add_(0, index, unit)
    n = counts.double()
    pairs = float((n * (n - 1)).sum())
    spread = float((2 * n.square() - 2 * total.square().sum(1)).clamp_min(0).sum())
    classes = float(uniformity(total, t)) if len(counts) > 1 else math.nan
    return classes, spread / pairs if pairs else math.nan
