"""Receiver operating characteristic, its area, equal error rate, and true accepts at false accepts.

A pair is accepted when its score is at least the threshold. Everything is computed from counts at
the distinct scores, so ties are exact and nothing depends on a grid.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from ..inputs import is_number
from ..results import wilson_interval

FARS = (1e-1, 1e-2, 1e-3, 1e-4, 1e-5, 1e-6)


@dataclass
class Roc:
    """Counts of accepted positives and negatives at each threshold, from strict to loose.

    Args:
        thresholds: (T,), falling, from infinity; a pair is accepted when its score is at least the
            threshold.
        accepted: (T,) accepted positive pairs, from zero to all.
        false: (T,) accepted negative pairs, from zero to all.
    """

    thresholds: Tensor
    accepted: Tensor
    false: Tensor

    @property
    def positives(self) -> int:
        """Number of positive pairs."""
        return int(self.accepted[-1])

    @property
    def negatives(self) -> int:
        """Number of negative pairs."""
        return int(self.false[-1])

    @property
    def tar(self) -> Tensor:
        """True accept rate, (T,)."""
        return self.accepted.double() / self.positives

    @property
    def far(self) -> Tensor:
        """False accept rate, (T,)."""
        return self.false.double() / self.negatives

    def area(self) -> float:
        """Area under the curve: P(positive > negative) + P(tie) / 2.

        Returns:
            The area, in [0, 1].
        """
        return float(torch.trapezoid(self.tar, self.far))

    def equal_error_rate(self) -> float:
        """Where false accepts meet false rejects, on the straight line between two thresholds.

        Returns:
            The rate, in [0, 1].
        """
        gap = self.far - (1 - self.tar)  # rises from -1 to 1
        i = int((gap >= 0).nonzero()[0])
        low, high = float(gap[i - 1]), float(gap[i])
        share = -low / (high - low)
        return float(self.far[i - 1] + share * (self.far[i] - self.far[i - 1]))

    def tar_at(self, far: float) -> tuple[float, float] | None:
        """The true accept rate at a false accept rate.

        Args:
            far: the false accept rate, in (0, 1).

        Returns:
            (true accept rate, threshold) at the loosest threshold with false accepts <= far. None
            when there are fewer than 1/far negatives: one single false accept would already be
            more than the rate asked for, so that no statement can be made. The threshold describes
            these pairs; `fit_threshold` gives one for others (Note [Measured rates] there).
        """
        if not (is_number(far) and 0 < far < 1):
            raise ValueError(f"a false accept rate lies between 0 and 1; got {far!r}")
        if self.negatives * far < 1 - 1e-9:
            return None
        allowed = math.floor(self.negatives * far + 1e-9)
        i = int(torch.searchsorted(self.false, allowed, right=True)) - 1
        return float(self.tar[i]), float(self.thresholds[i])

    def tar_interval(self, far: float, seed: int = 0) -> tuple[float, float] | None:
        """95 % interval of the true accept rate at a false accept rate, by the bootstrap.

        Both the threshold, fitted on resampled negatives, and the positives above it vary. The k-th
        largest of n resampled negatives stands at the place ceil(n U), with U from the beta
        distribution B(k, n - k + 1); the number of resampled positives above is binomial. It is at
        least as wide as Wilson's interval: where none or all pass, resampling says nothing.

        Args:
            far: the false accept rate, in (0, 1).
            seed: seed of the draws.

        Returns:
            Lower and upper bound; None where `tar_at` gives none.
        """
        point = self.tar_at(far)
        if point is None:
            return None
        n, draws = self.negatives, 1000
        k = min(math.floor(n * far + 1e-9) + 1, n)
        generator = torch.Generator().manual_seed(seed)
        shape = torch.tensor([k, n - k + 1], dtype=torch.float64).expand(draws, 2)
        gamma = torch._standard_gamma(shape, generator=generator)
        place = (gamma[:, 0] / gamma.sum(1) * n).ceil().clamp(1, n).long()
        # The strictest threshold with as many false accepts lets that negative in: stop before it.
        before = torch.searchsorted(self.false, place) - 1
        share = self.tar[before.clamp(min=0)]
        trials = torch.full_like(share, float(self.positives))
        passed = torch.binomial(trials, share, generator=generator) / self.positives
        bounds = passed.quantile(torch.tensor([0.025, 0.975], dtype=torch.float64))
        low, high = wilson_interval(point[0] * self.positives, self.positives)
        return min(float(bounds[0]), low), max(float(bounds[1]), high)

    def thin(self, points: int = 400) -> Roc:
        """Fewer thresholds, spread evenly over log(far) and over tar.

        Args:
            points: about how many to keep.

        Returns:
            The thinned curve.
        """
        if len(self.thresholds) <= points:
            return self
        half = points // 2
        floor = math.log10(0.5 / self.negatives)
        wanted_far = torch.logspace(floor, 0, half, dtype=torch.float64) * self.negatives
        wanted_tar = torch.linspace(0, 1, half, dtype=torch.float64) * self.positives
        keep = torch.cat(
            [
                torch.searchsorted(self.false.double(), wanted_far, right=True) - 1,
                torch.searchsorted(self.accepted.double(), wanted_tar),
                torch.tensor([0, len(self.thresholds) - 1]),
            ]
        )
        keep = keep.clamp(0, len(self.thresholds) - 1).unique()
        return Roc(self.thresholds[keep], self.accepted[keep], self.false[keep])


def roc_curve(scores: Tensor, same: Tensor) -> Roc:
    """Receiver operating characteristic of scored pairs.

    Args:
        scores: (n,), higher meaning more alike.
        same: (n,) bool, true for positive pairs.

    Returns:
        The curve.

    >>> roc = roc_curve(torch.tensor([0.9, 0.8, 0.3, 0.1]), torch.tensor([1, 1, 0, 0]).bool())
    >>> roc.area(), roc.equal_error_rate()
    (1.0, 0.0)
    >>> roc.tar_at(0.5)
    (1.0, 0.30000001192092896)
    >>> roc.tar_at(0.01) is None                      # two negatives cannot tell 1 %
    True
    """
    check_scores(scores, same)
    order = scores.argsort(descending=True, stable=True)
    ordered, hits = scores[order], same[order]
    last = torch.ones_like(hits)  # the last of each run of equal scores
    last[:-1] = ordered[1:] != ordered[:-1]
    accepted, rejected = hits.long().cumsum(0)[last], (~hits).long().cumsum(0)[last]
    zero = accepted.new_zeros(1)
    top = ordered.new_full((1,), math.inf)
    return Roc(
        torch.cat([top, ordered[last]]),
        torch.cat([zero, accepted]),
        torch.cat([zero, rejected]),
    )


def check_scores(scores: Tensor, same: Tensor) -> None:
    """Refuse scores that cannot make a curve.

    Args:
        scores: (n,).
        same: (n,) bool.
    """
    if scores.ndim != 1 or scores.shape != same.shape:
        raise ValueError(
            "expected scores (n,) and same (n,), one of each per pair; "
            f"got {tuple(scores.shape)} and {tuple(same.shape)}"
        )
    if same.dtype != torch.bool:
        raise ValueError(f"same: expected a bool per pair; got {same.dtype}")
    positives = int(same.sum())
    if positives == 0 or positives == len(same):
        kind = "negative (different)" if positives == 0 else "positive (same)"
        raise ValueError(
            f"same: all {len(same)} pairs are {kind}; verification needs pairs of both kinds"
        )
    bad = (~scores.isfinite()).nonzero().flatten()
    if len(bad):
        raise ValueError(f"the score of pair {int(bad[0])} is NaN or infinite ({len(bad)} in all)")
