"""Scores as probabilities: fitted by logistic or isotonic regression, and how reliable they are."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from ..._optional import require
from ..results import Result, percent
from .roc import check_scores

METHODS = ("logistic", "isotonic")


@dataclass(frozen=True)
class ScoreCalibration:
    """From a score to the probability that it is of one person.

    Args:
        method: "logistic": 1 / (1 + exp(-(slope score + intercept))); "isotonic": a rising
            function, linear between knots.
        share: share of pairs of one person among those it was fitted on.
        slope: of "logistic".
        intercept: of "logistic".
        knots: (score, probability) of "isotonic".
    """

    method: str
    share: float
    slope: float = 0.0
    intercept: float = 0.0
    knots: tuple[tuple[float, float], ...] = ()

    def __call__(self, scores: Any, prior: float | None = None) -> Tensor:
        """Probabilities of scores.

        Args:
            scores: any shape.
            prior: probability that a pair is of one person where the scores come from. Default: the
                share among those it was fitted on; half of the pairs of a benchmark are, few of
                those at a door.

        Returns:
            The same shape, float64, in [0, 1].
        """
        values = torch.as_tensor(scores).detach().double()
        if self.method == "logistic":
            found = torch.sigmoid(self.slope * values + self.intercept)
        else:
            x, y = np.array(self.knots).T
            found = torch.from_numpy(np.asarray(np.interp(values.numpy(), x, y)))
        if prior is None:
            return found
        if not 0 < prior < 1:
            raise ValueError(f"prior: expected a probability between 0 and 1; got {prior}")
        # Bayes: the odds change by the ratio of the prior odds.
        shift = math.log(prior / (1 - prior)) - math.log(self.share / (1 - self.share))
        return torch.sigmoid(torch.logit(found) + shift)


def calibrate_scores(scores: Any, same: Any, method: str = "logistic") -> ScoreCalibration:
    """Fit the probability that a pair is of one person.

    Args:
        scores: (n,) cosines of pairs that were not trained on.
        same: (n,) whether a pair is of one person.
        method: "logistic" (two numbers, for any amount of data) or "isotonic" (any rising function,
            for thousands of pairs).

    Returns:
        The function from scores to probabilities.

    >>> scores = torch.linspace(-1, 1, 200)
    >>> found = calibrate_scores(scores, scores > 0.2)
    >>> bool(found(0.9) > 0.99), bool(found(-0.5) < 0.01)
    (True, True)
    """
    values, truth = _pairs(scores, same)
    if method not in METHODS:
        raise ValueError(f"method: 'logistic' or 'isotonic'; got {method!r}")
    share = float(truth.double().mean())
    x, y = values.double().numpy(), truth.numpy()
    if method == "logistic":
        linear = require("sklearn.linear_model", extra="data")
        # Practically no penalty: cosines are small numbers, and a slope of 100 is ordinary.
        fitted = linear.LogisticRegression(C=1e6, max_iter=1000).fit(x[:, None], y)
        return ScoreCalibration(
            method, share, float(fitted.coef_[0, 0]), float(fitted.intercept_[0])
        )
    isotonic = require("sklearn.isotonic", extra="data").IsotonicRegression()
    isotonic.fit(x, y.astype(np.float64))
    pairs = zip(isotonic.X_thresholds_.tolist(), isotonic.y_thresholds_.tolist(), strict=True)
    return ScoreCalibration(method, share, knots=tuple(pairs))


@dataclass
class ReliabilityResult(Result):
    """How far probabilities can be trusted.

    Args:
        error: expected calibration error: mean distance of probability and frequency over the bins,
            weighted by their pairs.
        brier: mean squared distance of probability and truth.
        log_loss: mean of -log of the probability of what was true.
        pairs: number of pairs.
        bins: for each bin with pairs: mean probability, share of pairs of one person, pairs.
    """

    error: float
    brier: float
    log_loss: float
    pairs: int
    bins: list[tuple[float, float, int]]

    def rows(self) -> Iterator[Sequence[object]]:
        yield "pairs", f"{self.pairs:,}"
        yield "expected calibration error", percent(self.error)
        yield "Brier score", f"{self.brier:.4f}"
        yield "log loss", f"{self.log_loss:.4f}"


def reliability(probabilities: Any, same: Any, bins: int = 10) -> ReliabilityResult:
    """Compare probabilities with what is true.

    Args:
        probabilities: (n,) in [0, 1], of pairs that nothing was fitted on.
        same: (n,) whether a pair is of one person.
        bins: number of bins of equal width.

    Returns:
        Calibration error, Brier score, log loss and the bins, which
        `reports.figures.reliability_diagram` draws.
    """
    values, truth = _pairs(probabilities, same)
    values = values.double()
    if bool(((values < 0) | (values > 1)).any()):
        raise ValueError("probabilities: expected numbers in [0, 1]")
    if bins < 1:
        raise ValueError(f"bins: expected at least 1; got {bins}")
    place = (values * bins).long().clamp(max=bins - 1)
    count = torch.bincount(place, minlength=bins)
    mean = torch.bincount(place, values, bins) / count.clamp(min=1)
    share = torch.bincount(place, truth.double(), bins) / count.clamp(min=1)
    own = torch.where(truth, values, 1 - values).clamp(min=1e-15)
    used = count.nonzero().flatten().tolist()
    return ReliabilityResult(
        float(((mean - share).abs() * count).sum() / len(values)),
        float((values - truth.double()).square().mean()),
        float(-own.log().mean()),
        len(values),
        [(float(mean[i]), float(share[i]), int(count[i])) for i in used],
    )


def _pairs(scores: Any, same: Any) -> tuple[Tensor, Tensor]:
    values, truth = torch.as_tensor(scores).detach(), torch.as_tensor(same)
    truth = truth if truth.dtype == torch.bool else truth != 0
    check_scores(values, truth)
    return values, truth
