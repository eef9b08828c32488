"""Verification: are these two the same? Accuracy over folds, ROC, equal error, TAR at FAR.

Pairs are worked off in blocks; neither an n x n matrix nor a gathered copy of all features is made.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor

from ..results import Result, mean_interval, percent, round_up, wilson_interval
from .pair_scores import Moments, PairScorer
from .protocols import Protocol, check_folds, fold_index, get_protocol
from .roc import FARS, Roc, check_scores, roc_curve


@dataclass
class FarPoint:
    """True accept rate at one false accept rate.

    Args:
        far: the false accept rate asked for.
        tar: the true accept rate; NaN where it was refused.
        threshold: a pair is accepted if its score is at least this.
        negatives_needed: how many negative pairs this rate needs.
        low: lower end of the 95 % bootstrap interval of `tar`.
        high: upper end.
    """

    far: float
    tar: float
    threshold: float
    negatives_needed: int
    low: float = math.nan
    high: float = math.nan

    @property
    def refused(self) -> bool:
        """Whether there were too few negative pairs to say."""
        return math.isnan(self.tar)


@dataclass
class VerificationResult(Result):
    """Result of `verification`.

    Args:
        protocol: the name of the protocol.
        accuracy: mean over the folds.
        interval: its 95 % confidence interval: Student over the folds; Wilson over the pairs where
            all folds agree or one threshold serves all.
        std_error: the deviation of the folds over sqrt(folds), as LFW tables give it.
        fold_accuracies: accuracy of each fold.
        thresholds: the threshold of each fold, on the cosine.
        auc: area under the ROC curve.
        eer: equal error rate, in [0, 1].
        tar_at_far: true accept rate at each false accept rate.
        positives: number of pairs of one person.
        negatives: number of pairs of two people.
        roc: the curve, thinned.
        angles: "edges" in radians, and how many pairs "same" and "different" have each angle.
    """

    protocol: str
    accuracy: float
    interval: tuple[float, float]
    std_error: float
    fold_accuracies: list[float]
    thresholds: list[float]
    auc: float
    eer: float
    tar_at_far: list[FarPoint]
    positives: int
    negatives: int
    roc: Roc
    angles: dict[str, list[float]] = field(default_factory=dict)

    def rows(self) -> Iterator[Sequence[object]]:
        yield "protocol", self.protocol
        yield "pairs", f"{self.positives:,} same, {self.negatives:,} different"
        low, high = (f"{100 * bound:.2f}" for bound in self.interval)
        yield "accuracy", f"{percent(self.accuracy)}  (95 %: {low} to {high})"
        yield "threshold (cosine)", f"{sum(self.thresholds) / len(self.thresholds):.4f}"
        yield "AUC", f"{self.auc:.5f}"
        yield "EER", percent(self.eer)
        for point in self.tar_at_far:
            yield f"TAR at FAR {point.far:g}", describe(point, self.negatives)


def describe(point: FarPoint, negatives: int) -> str:
    """A true accept rate in words, or why there is none.

    Args:
        point: the rate.
        negatives: how many negative pairs there were.

    Returns:
        The text.
    """
    if point.refused:
        return f"refused: {negatives:,} negatives, needs {point.negatives_needed:,}"
    interval = ""
    if not math.isnan(point.low):
        interval = f"95 %: {100 * point.low:.2f} to {100 * point.high:.2f}; "
    return f"{percent(point.tar)}  ({interval}threshold {round_up(point.threshold)})"


def tar_at_fars(roc: Roc, fars: Sequence[float]) -> list[FarPoint]:
    """True accept rates; refused (NaN) where there are fewer than 1/FAR negatives.

    Args:
        roc: the curve.
        fars: false accept rates in (0, 1).

    Returns:
        One point per rate.
    """
    points = []
    for far in fars:
        tar, threshold = roc.tar_at(far) or (math.nan, math.nan)
        interval = roc.tar_interval(far) or (math.nan, math.nan)
        points.append(FarPoint(far, tar, threshold, math.ceil(1 / far - 1e-9), *interval))
    return points


def verification(
    features_a: Tensor,
    features_b: Tensor,
    same: Tensor,
    protocol: str | Protocol = "sphereface",
    *,
    index: Tensor | None = None,
    folds: int | Tensor | Sequence[int] = 10,
    pca: int | None = None,
    fars: Sequence[float] = FARS,
) -> VerificationResult:
    """Verify pairs by the cosine of their features (2.3.6).

    Args:
        features_a: (n, d), or (n, 2, d) with picture and mirror image; row i of both makes pair i.
            With `index` they are tables and may be one and the same.
        features_b: as features_a.
        same: (n,) bool, whether a pair is of one person.
        protocol: "sphereface" (flips concatenated, mean of the training folds subtracted),
            "insightface" (flips summed), "opensphere" (flips averaged, one best threshold for all
            pairs: optimistic), "plain" (no flips), or a `Protocol`. Thresholds come from the other
            folds, except for opensphere.
        index: (n, 2) rows of features_a and features_b for each pair.
        folds: their number (equal runs of the list), or the fold of each pair, (n,) as a tensor,
            array or list.
        pca: keep this many principal directions of the training folds. Default: all.
        fars: false accept rates; a rate with fewer than 1/rate negatives is refused.

    With centering or PCA a pair's score, also in the ROC, is the one of the fold that tests it.

    Returns:
        Accuracy with its interval, area, equal error rate, true accept rates and the curve.

    >>> g = torch.Generator().manual_seed(0)
    >>> people = torch.randn(200, 64, generator=g)
    >>> noise = torch.randn(400, 64, generator=g)
    >>> a = people
    >>> b = torch.cat([people[:100] + 0.8 * noise[:100], people[100:].roll(1, 0)])
    >>> same = torch.arange(200) < 100
    >>> order = torch.randperm(200, generator=g)
    >>> result = verification(a[order], b[order], same[order], protocol="plain")
    >>> result.accuracy, result.tar_at_far[3].refused
    (1.0, True)
    """
    rule = get_protocol(protocol)
    same = torch.as_tensor(same)
    if not bool(((same == 0) | (same == 1)).all()):
        raise ValueError("same: expected 0 (two people) or 1 (one person) per pair; got others")
    same = same == 1
    pairs = PairScorer(features_a, features_b, index, rule.flips)
    if same.shape != (len(pairs),):
        raise ValueError(f"same: expected one per pair, ({len(pairs)},); got {tuple(same.shape)}")
    if not rule.folds:
        return _one_threshold(rule, pairs, same, pca, fars)

    fold = fold_index(folds, len(pairs))
    count = int(fold.max()) + 1
    check_scores(torch.zeros(len(same)), same)
    check_folds(same, fold)
    fitted = rule.center or pca is not None
    moments = Moments.of_folds(pairs, fold, second=pca is not None) if fitted else None
    scores = torch.empty(len(pairs)) if fitted else pairs.scores()
    accuracies, thresholds = [], []
    for f in range(count):
        test = fold == f
        mine = pairs.scores(*moments.without(f, rule.center, pca)) if moments else scores
        threshold = rule.threshold(mine[~test], same[~test])
        accuracies.append(float(((mine[test] >= threshold) == same[test]).double().mean()))
        thresholds.append(threshold)
        scores[test] = mine[test]
    mean, half = mean_interval(torch.tensor(accuracies, dtype=torch.float64))
    mean = sum(accuracies) / count
    if len(set(accuracies)) == 1:  # folds that all agree tell nothing about the spread
        interval = wilson_interval(mean * len(same), len(same))
    else:
        interval = (max(0.0, mean - half), min(1.0, mean + half))
    spread = torch.tensor(accuracies, dtype=torch.float64).std()
    error = float(spread) / math.sqrt(count)
    return _result(rule, scores, same, accuracies, thresholds, mean, interval, error, fars)


def _one_threshold(
    rule: Protocol, pairs: PairScorer, same: Tensor, pca: int | None, fars: Sequence[float]
) -> VerificationResult:
    if pca is not None:
        raise ValueError(f"pca is fitted on training folds; protocol {rule.name!r} has none")
    scores = pairs.scores()
    threshold = rule.threshold(scores, same)
    right = (scores >= threshold) == same
    accuracy = float(right.double().mean())
    interval = wilson_interval(float(right.sum()), len(same))
    error = math.sqrt(accuracy * (1 - accuracy) / len(same))
    return _result(rule, scores, same, [accuracy], [threshold], accuracy, interval, error, fars)


def _result(
    rule: Protocol,
    scores: Tensor,
    same: Tensor,
    accuracies: list[float],
    thresholds: list[float],
    mean: float,
    interval: tuple[float, float],
    error: float,
    fars: Sequence[float],
) -> VerificationResult:
    roc = roc_curve(scores, same)
    angle = scores.clamp(-1, 1).acos()
    bins = 90
    return VerificationResult(
        rule.name,
        mean,
        interval,
        error,
        accuracies,
        thresholds,
        roc.area(),
        roc.equal_error_rate(),
        tar_at_fars(roc, fars),
        roc.positives,
        roc.negatives,
        roc.thin(),
        {
            "edges": torch.linspace(0, math.pi, bins + 1).tolist(),
            "same": torch.histc(angle[same], bins, 0, math.pi).tolist(),
            "different": torch.histc(angle[~same], bins, 0, math.pi).tolist(),
        },
    )
