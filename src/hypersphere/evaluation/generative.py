"""Scores of generated pictures by a classifier the user gives (D.7): inception score, Frechet.

The published numbers use one fixed ImageNet network; here any classifier stands in its place, so
figures compare only with figures from the same classifier.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from .inputs import check_features, to_unit_scale
from .results import Result, shown


@dataclass
class InceptionResult(Result):
    """Inception-style score, between 1 and the number of classes.

    Args:
        score: mean over the splits.
        deviation: standard deviation over the splits.
        splits: number of splits.
        samples: number of samples.
    """

    score: float
    deviation: float
    splits: int
    samples: int

    def rows(self) -> Iterator[Sequence[object]]:
        yield "inception-style score", f"{self.score:.3f} +- {self.deviation:.3f}"
        yield "samples", f"{self.samples:,} in {self.splits} splits"


def inception_score(logits: Tensor, splits: int = 10) -> InceptionResult:
    """exp(E_x KL(p(y|x) || p(y))) from a classifier's logits, per split (Table D.4).

    Args:
        logits: (n, C).
        splits: into how many parts the samples are cut.

    Returns:
        Mean and deviation over the splits.

    Certain and varied predictions reach the number of classes; constant ones give 1:

    >>> round(inception_score(100 * torch.eye(4).repeat(5, 1), splits=5).score, 4)
    4.0
    """
    logits = check_features("logits", logits).double()
    if not 1 <= splits <= len(logits):
        raise ValueError(f"splits: expected 1 to {len(logits)} (the samples); got {splits}")
    scores = []
    for part in logits.log_softmax(1).tensor_split(splits):
        marginal = torch.logsumexp(part, 0) - torch.tensor(float(len(part))).log()
        scores.append((part.exp() * (part - marginal)).sum(1).mean().exp())
    values = torch.stack(scores)
    deviation = float(values.std()) if splits > 1 else 0.0
    return InceptionResult(float(values.mean()), deviation, splits, len(logits))


@dataclass
class FrechetResult(Result):
    """Frechet distance between two sets of features: 0 for equal mean and covariance.

    Args:
        distance: the sum of the two parts.
        mean_part: squared distance of the means.
        covariance_part: distance of the covariances.
        samples: number of samples in each set.
    """

    distance: float
    mean_part: float
    covariance_part: float
    samples: tuple[int, int]

    def rows(self) -> Iterator[Sequence[object]]:
        yield "Frechet distance", shown(self.distance, 4)
        yield "  of the means", shown(self.mean_part, 4)
        yield "  of the covariances", shown(self.covariance_part, 4)
        yield "samples", f"{self.samples[0]:,} and {self.samples[1]:,}"


def frechet_distance(features_a: Tensor, features_b: Tensor) -> FrechetResult:
    """|m_a - m_b|^2 + tr(A + B - 2 (A^1/2 B A^1/2)^1/2), A and B the covariances.

    The square roots are symmetric, by eigenvalues, in float64; rank-deficient covariances (fewer
    samples than dimensions) need no jitter.

    Args:
        features_a: (n, d), n >= 2.
        features_b: (m, d), m >= 2.

    Returns:
        The distance and its two parts.

    >>> x = torch.randn(100, 3, generator=torch.Generator().manual_seed(0))
    >>> round(frechet_distance(x, x + 2.0).distance, 4)          # three coordinates moved by 2
    12.0
    """
    a = check_features("features_a", features_a).double()
    b = check_features("features_b", features_b, a.shape[1]).double()
    for name, features in (("features_a", a), ("features_b", b)):
        if len(features) < 2:
            raise ValueError(f"{name}: a covariance needs at least 2 samples; got {len(features)}")
    largest = max(float(features.abs().max()) for features in (a, b))
    (a, b), exponent = to_unit_scale(a, b)
    cov_a, cov_b = torch.cov(a.T).reshape(a.shape[1], -1), torch.cov(b.T).reshape(a.shape[1], -1)
    values, vectors = torch.linalg.eigh(cov_a)
    root = (vectors * values.clamp(min=0).sqrt()) @ vectors.T
    cross = torch.linalg.eigvalsh(root @ cov_b @ root).clamp(min=0).sqrt().sum()
    mean_part = float((a.mean(0) - b.mean(0)).square().sum())
    covariance_part = max(0.0, float(cov_a.trace() + cov_b.trace() - 2 * cross))
    try:
        parts = [math.ldexp(part, 2 * exponent) for part in (mean_part, covariance_part)]
    except OverflowError:
        raise ValueError(
            "features_a, features_b: expected values whose squared distance is below 1.8e308, the "
            f"end of float64; got values up to {largest:.3g}: divide both by one number"
        ) from None
    return FrechetResult(sum(parts), parts[0], parts[1], (len(a), len(b)))
