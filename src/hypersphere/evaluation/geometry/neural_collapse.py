"""Neural collapse (Papyan, Han and Donoho, PNAS 2020): four measures that are 0 when complete.

With class means m_c, their mean m_G and M the rows m_c - m_G:

    NC1  tr(S_w S_b^+) / C           features vary within their classes
    NC2  equal lengths and equal angles of the rows of M, and of the classifier
    NC3  |W / |W| - M / |M||          the classifier is not the class means
    NC4  share of samples            the classifier does not choose the nearest class mean
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from ...functional import check_labels, normalize, row_norm
from ..inputs import (
    check_features,
    check_row_labels,
    check_two_classes,
    times_power,
    to_unit_scale,
)
from ..results import Result, percent

__all__ = ["NeuralCollapseResult", "neural_collapse"]


@dataclass
class NeuralCollapseResult(Result):
    """Result of :func:`neural_collapse`: each figure is 0 for a collapsed network.

    Args:
        within_class: NC1, tr(S_w S_b^+) / C.
        mean_norms: NC2, deviation of the lengths of the centered class means over their mean.
        mean_angles: NC2, mean \\|cos + 1/(C-1)\\| over pairs of centered class means.
        weight_norms: NC2 of the classifier's rows; NaN without a classifier.
        weight_angles: NC2 of the classifier's rows; NaN without a classifier.
        duality: NC3, distance of classifier and centered class means, both of Frobenius norm 1; NaN
            without a classifier.
        disagreement: NC4, share of samples that the classifier assigns to another class than the
            nearest class mean; NaN without a classifier.
        classes: number of classes that occur.
        samples: number of features.
    """

    within_class: float
    mean_norms: float
    mean_angles: float
    weight_norms: float
    weight_angles: float
    duality: float
    disagreement: float
    classes: int
    samples: int

    def header(self) -> Sequence[str]:
        return ("neural collapse (0: complete)", "features", "classifier")

    def rows(self) -> Iterator[Sequence[object]]:
        yield "NC1 within-class variability", f"{self.within_class:.4g}"
        yield "NC2 unequal lengths", f"{self.mean_norms:.4f}", _figure(self.weight_norms)
        yield "NC2 unequal angles", f"{self.mean_angles:.4f}", _figure(self.weight_angles)
        yield "NC3 distance from duality", "", _figure(self.duality)
        yield "NC4 not the nearest mean", "", percent(self.disagreement)


def _figure(value: float) -> str:
    return "-" if math.isnan(value) else f"{value:.4f}"


@torch.no_grad()
def neural_collapse(
    features: Tensor,
    labels: Tensor,
    weight: Tensor | None = None,
    bias: Tensor | None = None,
) -> NeuralCollapseResult:
    """How far a network is from neural collapse.

    Args:
        features: (n, d) features before the last layer, on the training set.
        labels: (n,) classes, of at least two kinds.
        weight: (C, d) rows of the last layer. Default: measures of the features alone.
        bias: (C,) of the last layer.

    Returns:
        The four measures, in float64. Classes count alike, however many samples they have, and
        those without samples are left out. No (d, d) matrix is made.

    >>> from hypersphere.functional import simplex_prototypes
    >>> means, y = simplex_prototypes(4), torch.arange(4).repeat(5)
    >>> result = neural_collapse(3 * means[y], y, 2 * means)
    >>> max(result.within_class, result.mean_angles, result.duality) < 1e-12, result.disagreement
    (True, 0.0)
    """
    x = check_features("features", features).double()
    # Every measure is the same at any scale, if the bias goes with the features.
    (x,), exponent = to_unit_scale(x)
    labels = check_row_labels("labels", labels, len(x)).to(x.device)
    check_two_classes("labels", labels)
    seen, index, counts = torch.unique(labels, return_inverse=True, return_counts=True)
    total = x.new_zeros(len(seen), x.shape[1]).index_add_(0, index, x)
    means = total / counts[:, None]
    centered = means - means.mean(0)
    within = _within_class(x - means[index], centered, index, counts)
    norms, angles = _equal(centered)
    result = NeuralCollapseResult(
        within, norms, angles, math.nan, math.nan, math.nan, math.nan, len(seen), len(x)
    )
    if weight is not None:
        w, b = _classifier(weight, bias, x, labels)
        (w,), larger = to_unit_scale(w)
        b = times_power(times_power(b, -exponent), -larger)
        chosen = w[seen]
        duality = chosen / row_norm(chosen.flatten()) - centered / row_norm(centered.flatten())
        result.weight_norms, result.weight_angles = _equal(chosen)
        result.duality = float(duality.norm())
        result.disagreement = _disagreement(x, w, b, means, seen)
    return result


def _within_class(deviation: Tensor, centered: Tensor, index: Tensor, counts: Tensor) -> float:
    """tr(S_w S_b^+) / C, through the at most C - 1 directions in which class means differ.

    With the singular values s_k and right vectors v_k of M, S_b^+ = sum_k (C / s_k^2) v_k v_k^T,
    so the trace is sum_k C / s_k^2 times the variance within classes along v_k.
    """
    _, singular, vectors = torch.linalg.svd(centered, full_matrices=False)
    rank = singular > singular.amax() * max(centered.shape) * torch.finfo(centered.dtype).eps
    if not bool(rank.any()) or not bool(singular.amax() > 0):
        return math.inf if bool((deviation != 0).any()) else math.nan
    classes = len(counts)
    variance = centered.new_zeros(int(rank.sum()))
    for part in range(0, len(deviation), 8192):
        rows = slice(part, part + 8192)
        share = 1 / (classes * counts[index[rows]].to(deviation.dtype))
        variance += share @ (deviation[rows] @ vectors[rank].T).square()
    # C of S_b^+ and 1 / C of the measure cancel
    return float((variance / singular[rank].square()).sum())


def _equal(rows: Tensor) -> tuple[float, float]:
    """Deviation of the lengths over their mean, and mean distance of the cosines from a simplex."""
    length, count = row_norm(rows), len(rows)
    mean = float(length.mean())
    spread = float(length.std(unbiased=False)) / mean if mean > 0 else math.nan
    unit = normalize(rows)
    total = 0.0
    for start in range(0, count, 1024):
        cos = unit[start : start + 1024] @ unit.T
        gap = (cos + 1 / (count - 1)).abs()
        gap.diagonal(offset=start).zero_()
        total += float(gap.sum())
    return spread, total / (count * (count - 1))


def _disagreement(x: Tensor, w: Tensor, b: Tensor, means: Tensor, seen: Tensor) -> float:
    """Share of samples whose largest score is not that of the nearest class mean."""
    wrong = 0
    half = means.square().sum(1) / 2
    for start in range(0, len(x), 4096):
        rows = x[start : start + 4096]
        scores = rows @ w[seen].T + b[seen]
        nearest = (rows @ means.T - half).argmax(1)
        best = scores.amax(1)
        # A tie within rounding is no disagreement.
        slack = 1e-12 * (scores.abs().amax(1) + 1e-300)
        wrong += int((scores.gather(1, nearest[:, None])[:, 0] < best - slack).sum())
    return wrong / len(x)


def _classifier(
    weight: Tensor, bias: Tensor | None, x: Tensor, labels: Tensor
) -> tuple[Tensor, Tensor]:
    weight = check_features("weight", weight.detach(), x.shape[1]).to(x)
    check_labels(labels, len(weight))
    if bias is None:
        return weight, weight.new_zeros(len(weight))
    if tuple(bias.shape) != (len(weight),):
        raise ValueError(f"bias: expected ({len(weight)},), one per class; got {tuple(bias.shape)}")
    return weight, bias.detach().to(x)
