"""Intervals of thresholds: how far the true one may lie from that of the impostors at hand.

Note [Interval of a threshold]: of n independent impostors, the number above the true threshold is
binomial, B(n, far), so the true threshold lies between two of the sorted scores with at least 95 %,
whatever their distribution is. Below about 3.7 / far impostors none of them may lie above it, and
the interval has no upper end (infinity): a bootstrap cannot know that, and was too narrow there.
Impostors of the same people count for less. The bootstrap over people says for how many, by the
variance of the rate in comparison with that of a binomial (the design effect; Korn and Graubard
1998). The interval is the wider one of the two at both ends.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
from torch import Tensor

REPLICATES = 1000
MOST_COUNTED = 1 << 15  # rows that tell how much a resampling drew in all
MOST_AT_ONCE = 1 << 18  # numbers of the resamplings that are computed together


def just_above(scores: Tensor) -> Tensor:
    """The least thresholds that reject these scores: the next number that their type has.

    Args:
        scores: any shape.

    Returns:
        The same shape and type.
    """
    return torch.nextafter(scores, scores.new_full((), math.inf))


def allowed_weight(rate: float, total: float) -> float:
    """How much of the impostors may pass, so that of others at most `rate` is to be expected to.

    See Note [Rate to expect] in thresholds.py.

    Args:
        rate: the false-accept rate.
        total: number of impostors.

    Returns:
        (total + 1) rate - 1, at least 0.

    >>> round(allowed_weight(0.01, 99), 9), round(allowed_weight(0.01, 1099), 9)
    (0.0, 10.0)
    """
    return max(0.0, (total + 1) * rate - 1)


def quantile(values: Tensor, weights: Tensor, allowed: float) -> Tensor:
    """The highest score that must be rejected so that the weight above it is at most `allowed`.

    Equal scores are rejected together: the threshold lies above all of them.

    Args:
        values: (n,) scores, highest first.
        weights: (n,) what each counts.
        allowed: the weight.

    Returns:
        The score.
    """
    total = weights.cumsum(0)
    place = int(torch.searchsorted(total, total.new_tensor(allowed + 1e-9), right=True))
    return values[min(place, len(values) - 1)]


def exact_ends(
    values: Tensor, weights: Tensor, rate: float, rows: int, effect: float
) -> tuple[float, float]:
    """The two scores between which the true threshold lies with at least 95 %.

    Args:
        values: (n,) scores, highest first.
        weights: (n,) what each counts.
        rate: the false-accept rate.
        rows: number of impostors.
        effect: so many of them count as one independent one (Note [Interval of a threshold]).

    Returns:
        Lower and upper end; infinite where the impostors cannot say.
    """
    fewest, most, trials = _binomial_ends(max(1, math.floor(rows / effect + 1e-9)), rate)
    low, high = -math.inf, math.inf
    if fewest > 0:
        place = max((fewest - 1) * effect, fewest * effect - 1)
        high = float(just_above(quantile(values, weights, place)))
    if most < trials:
        low = float(quantile(values, weights, most * effect))
    return low, high


def _binomial_ends(trials: int, rate: float) -> tuple[int, int, int]:
    """The 2.5 % and 97.5 % quantiles of B(trials, rate), and trials."""
    deviation = math.sqrt(trials * rate * (1 - rate))
    first = max(0, math.floor(trials * rate - 10 * deviation - 50))
    last = min(trials, math.ceil(trials * rate + 10 * deviation + 50))
    k = torch.arange(first, last + 1, dtype=torch.float64)
    log = math.lgamma(trials + 1) - torch.lgamma(k + 1) - torch.lgamma(trials - k + 1)
    share = (log + k * math.log(rate) + (trials - k) * math.log1p(-rate)).exp().cumsum(0)
    ends = torch.searchsorted(share, torch.tensor([0.025, 0.975]).double()) + first
    return int(ends[0]), min(int(ends[1]), last), trials


def resampled(
    values: Tensor,
    weights: Tensor,
    owner: Tensor,
    members: Tensor,
    rate: float,
    generator: torch.Generator,
) -> tuple[Tensor, float]:
    """Thresholds of resampled people, and the design effect: how many impostors count as one.

    A pair of two people counts as often as both were drawn. The effect is taken where 20 more pass
    than at the rate: of the few that pass at a strict rate, hardly two are of the same people.

    Args:
        values: (n,) scores, highest first.
        weights: (n,) what each counts.
        owner: (n, 1) or (n, 2), the numbers of the people of each score.
        members: the same of each impostor.
        rate: the false-accept rate.
        generator: of the draws.

    Returns:
        The thresholds of the replicates, and the effect.
    """
    count, rows = int(members.max()) + 1, len(members)
    # Only the tail is looked at: four times the allowed weight, and a little for small counts.
    total = weights.cumsum(0)
    tail = min(int(torch.searchsorted(total, 4 * rate * rows + 20)) + 1, len(values))
    level = int(torch.searchsorted(total[:tail], rate * rows + 20).clamp(max=tail - 1))
    values, weights = values[:tail], weights[:tail]
    replicates = REPLICATES if tail <= 1 << 17 else REPLICATES // 5  # the interval is narrow then
    tabled = members.shape[1] == 2 and count**2 <= MOST_COUNTED
    if tabled:  # few people have few pairs: how often each was drawn is a table, and rows its cells
        owner, members = (x[:, :1] * count + x[:, 1:] for x in (owner, members))
    owners = owner[:tail].unbind(1)
    # How much is drawn in all hardly varies: evenly spread rows are enough to tell.
    spread = members[:: -(-rows // MOST_COUNTED)].unbind(1)
    found = torch.empty(replicates, dtype=values.dtype)
    passed = torch.empty(replicates, dtype=torch.float64)
    widest = max(tail, count, len(spread[0]), count**2 * tabled)
    for some in torch.arange(replicates).split(max(1, MOST_AT_ONCE // widest)):
        drawn = torch.randint(count, (len(some), count), generator=generator)
        times = torch.zeros(drawn.shape, dtype=torch.float64)
        times.scatter_add_(1, drawn, torch.ones_like(times))
        if tabled:
            times = (times[:, :, None] * times[:, None]).flatten(1)
        mass = _mean_together(times, spread) * rows
        above = (weights * _together(times, owners)).cumsum(1)
        allowed = mass.new_tensor([allowed_weight(rate, m) for m in mass.tolist()]) + 1e-9
        place = torch.searchsorted(above, allowed[:, None], right=True)[:, 0]
        nobody = mass == 0  # one person again and again: no pair of different people
        found[some] = values[place.clamp(max=tail - 1).masked_fill(nobody, 0)]
        passed[some] = above[:, level] / mass  # NaN of nobody
    share = float(total[level]) / rows
    passed = passed[passed.isfinite()]
    if share > 1 - 1e-9 or len(passed) < 2:  # everybody passes: nothing varies
        return just_above(found), 1.0
    # A bootstrap of n people has (n - 1) / n of the variance.
    variance = float(passed.var()) * count / (count - 1)
    return just_above(found), variance * rows / (share * (1 - share))


def _together(times: Tensor, people: Sequence[Tensor]) -> Tensor:
    """How often each row was drawn: as often as its person, or as both people of a pair."""
    once = times.index_select(1, people[0])
    return once if len(people) == 1 else once * times.index_select(1, people[1])


def _mean_together(times: Tensor, people: Sequence[Tensor]) -> Tensor:
    """The mean of `_together` over the rows; rows of the same person are counted first."""
    if len(people) == 2:
        return _together(times, people).mean(1)
    held = torch.bincount(people[0], minlength=times.shape[1]).double()
    return times @ held / len(people[0])
