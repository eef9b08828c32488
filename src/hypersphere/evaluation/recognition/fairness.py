"""Errors by group: whether one threshold treats groups of people alike."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from ..results import Result, percent, wilson_interval
from .roc import check_scores
from .thresholds import Threshold, check_threshold


@dataclass
class GroupErrors:
    """Errors of one group.

    Args:
        group: its name.
        positives: pairs of one person.
        negatives: pairs of two people.
        false_reject: share of the positives that are rejected; NaN without any.
        false_reject_interval: its 95 % interval (Wilson).
        false_accept: share of the negatives that are accepted; NaN without any.
        false_accept_interval: its 95 % interval (Wilson).
    """

    group: str
    positives: int
    negatives: int
    false_reject: float
    false_reject_interval: tuple[float, float]
    false_accept: float
    false_accept_interval: tuple[float, float]


@dataclass
class FairnessResult(Result):
    """Result of `error_by_group`.

    Args:
        threshold: of all groups.
        groups: errors of each group.
        false_accept_ratio: largest over smallest false-accept rate; infinite if only one is 0, NaN
            if it is known of fewer than two groups.
        false_reject_ratio: largest over smallest false-reject rate.
    """

    threshold: float
    groups: list[GroupErrors]
    false_accept_ratio: float
    false_reject_ratio: float

    def header(self) -> Sequence[str]:
        return "group", "same", "different", "false rejects", "95 %", "false accepts", "95 %"

    def rows(self) -> Iterator[Sequence[object]]:
        for group in self.groups:
            yield (
                group.group,
                f"{group.positives:,}",
                f"{group.negatives:,}",
                percent(group.false_reject),
                _interval(group.false_reject_interval),
                percent(group.false_accept),
                _interval(group.false_accept_interval),
            )
        ratios = (self.false_reject_ratio, self.false_accept_ratio)
        rejects, accepts = ("-" if math.isnan(ratio) else f"{ratio:.2f}" for ratio in ratios)
        yield "largest / smallest", "", "", rejects, "", accepts, ""


def error_by_group(
    scores: Any, same: Any, groups: Sequence[Any], threshold: float | Threshold
) -> FairnessResult:
    """False accepts and false rejects of each group at one threshold.

    Intervals that overlap say that the data are too few to tell a difference, not that there is
    none.

    Args:
        scores: (n,) of pairs.
        same: (n,) whether a pair is of one person.
        groups: (n,) the group of each pair, such as a label that both pictures share.
        threshold: a pair is accepted if its score is at least this.

    Returns:
        The errors of each group with intervals, and the ratio of the largest to the smallest.

    >>> scores, same = torch.tensor([0.9, 0.2, 0.8, 0.6]), torch.tensor([True, False, True, False])
    >>> found = error_by_group(scores, same, ["a", "a", "b", "b"], 0.5)
    >>> [group.false_accept for group in found.groups]
    [0.0, 1.0]
    """
    values, truth = torch.as_tensor(scores).detach(), torch.as_tensor(same)
    truth = truth if truth.dtype == torch.bool else truth != 0
    check_scores(values, truth)
    names = [str(g) for g in (groups.tolist() if hasattr(groups, "tolist") else groups)]
    if len(names) != len(values):
        raise ValueError(f"groups: expected one per pair, {len(values)}; got {len(names)}")
    # A rate that equal scores allow nobody to have is reached by accepting none.
    least = float(check_threshold(threshold, finite=False))
    accepted = values >= least
    number = {name: i for i, name in enumerate(dict.fromkeys(names))}
    index = torch.tensor([number[name] for name in names])
    found = []
    for name, i in number.items():
        mine = index == i
        positives, negatives = int((mine & truth).sum()), int((mine & ~truth).sum())
        rejects = int((mine & truth & ~accepted).sum())
        accepts = int((mine & ~truth & accepted).sum())
        found.append(
            GroupErrors(
                name, positives, negatives, *_rate(rejects, positives), *_rate(accepts, negatives)
            )
        )
    return FairnessResult(
        least,
        found,
        _ratio([group.false_accept for group in found]),
        _ratio([group.false_reject for group in found]),
    )


def _rate(count: int, total: int) -> tuple[float, tuple[float, float]]:
    if total == 0:
        return math.nan, (math.nan, math.nan)
    return count / total, wilson_interval(count, total)


def _ratio(rates: Sequence[float]) -> float:
    known = [rate for rate in rates if not math.isnan(rate)]
    if len(known) < 2 or max(known) == 0:  # one group is compared with nobody
        return math.nan
    return max(known) / min(known) if min(known) else math.inf


def _interval(bounds: tuple[float, float]) -> str:
    low, high = bounds
    return "-" if math.isnan(low) else f"{100 * low:.2f} to {100 * high:.2f}"
