"""Two methods over the same seeds: the mean difference, its interval, and a verdict by rule."""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from .._optional import require

__all__ = ["PairedDifference", "Verdict", "paired_difference", "verdict"]

Verdict = Literal["holds", "open", "reversed"]


@dataclass(frozen=True)
class PairedDifference:
    """Mean of method - baseline over pairs that share everything but the method.

    Args:
        mean: the mean difference.
        low: lower end of the interval.
        high: upper end of the interval.
        pairs: the number of pairs.
        confidence: the share of intervals that contain the true difference.
    """

    mean: float
    low: float
    high: float
    pairs: int
    confidence: float = 0.95


def paired_difference(
    method: Sequence[float], baseline: Sequence[float], confidence: float = 0.95
) -> PairedDifference:
    """Student's t interval of the mean paired difference.

    Args:
        method: one value per seed.
        baseline: the values of the same seeds, in the same order.
        confidence: level of the interval, in (0, 1).

    Returns:
        The difference. With a single pair its interval is infinite.

    Raises:
        ValueError: if the numbers of values differ, there are none, or one is not finite.

    >>> paired_difference([1.0, 2.0, 3.5], [2.0, 3.0, 4.0]).mean
    -0.8333333333333334
    """
    if len(method) != len(baseline) or not method:
        raise ValueError(
            f"paired differences need as many values of the method as of the baseline, at least "
            f"one; got {len(method)} and {len(baseline)}"
        )
    if not 0 < confidence < 1:
        raise ValueError(f"confidence is a share in (0, 1); got {confidence}")
    differences = [float(m) - float(b) for m, b in zip(method, baseline, strict=True)]
    if not all(map(math.isfinite, differences)):
        raise ValueError("paired differences need finite values; leave out pairs that diverged")
    mean, pairs = statistics.fmean(differences), len(differences)
    half = math.inf
    if pairs > 1:
        quantile = float(
            require("scipy.stats", extra="data").t.ppf((1 + confidence) / 2, pairs - 1)
        )
        half = quantile * statistics.stdev(differences) / math.sqrt(pairs)
    return PairedDifference(mean, mean - half, mean + half, pairs, confidence)


def verdict(difference: PairedDifference, claimed: Literal["lower", "higher"]) -> Verdict:
    """Whether the claim that a method is lower (or higher) than its baseline holds.

    Args:
        difference: method - baseline.
        claimed: the side on which the claim puts the method.

    Returns:
        "holds" if the whole interval is on the claimed side of 0, "reversed" if it is on the
        other, "open" if it contains 0.

    >>> verdict(PairedDifference(-1.0, -1.5, -0.5, 5), "lower")
    'holds'
    """
    if claimed not in ("lower", "higher"):
        raise ValueError(f"claimed is 'lower' or 'higher'; got {claimed!r}")
    if difference.low <= 0 <= difference.high:
        return "open"
    return "holds" if (difference.mean < 0) == (claimed == "lower") else "reversed"
