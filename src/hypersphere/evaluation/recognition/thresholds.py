"""Thresholds at a false-accept rate, for pairs (1:1) and for search among N people.

Note [Search among N]: somebody who is not in the gallery is named when the best of N scores reaches
the threshold, so the false-positive identification rate grows with N. With the scores of P such
searches in a gallery of G people, as a matrix (P, G):

- N <= G: the best of N people drawn from the G is the j-th smallest score of a search with
  probability C(j-1, N-1) / C(G, N). The scores with these weights are the distribution of the best
  score, and the threshold is its quantile. N = G takes the maximum of each search.
- N > G: N/G galleries of G people, taken as independent, FPIR_N = 1 - (1 - FPIR_G)^(N/G). Scores of
  one search rise and fall together, so this errs on the safe side. Single impostor scores (P,) are
  the case G = 1.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from ..results import Result, round_up

REPLICATES = 1000
LEAST_GROUPS = 3  # a bootstrap over fewer people says nothing about other people


@dataclass(frozen=True)
class Threshold(Result):
    """A threshold and what it rests on; a score is accepted if it is at least `value`.

    Args:
        value: the threshold; at most `far` of the impostors behind it reach it.
        far: the false-accept rate: of a pair, or of a whole search among `gallery_size` people.
        low: lower end of the 95 % bootstrap interval of `value`.
        high: upper end.
        negatives: number of impostor scores, or of searches by unknown people.
        gallery_size: the number of people that are searched; 1 is verification.
        people: how many different people the impostors are, where that is known.
    """

    value: float
    far: float
    low: float
    high: float
    negatives: int
    gallery_size: int = 1
    people: int | None = None

    def __post_init__(self) -> None:
        if not math.isfinite(self.value):
            raise ValueError(f"value: expected a finite number; got {self.value!r}")
        check_rate(self.far)

    def __float__(self) -> float:
        return self.value

    def far_at(self, gallery_size: int) -> float:
        """The false-accept rate to expect in a gallery of another size (Note [Search among N]).

        Args:
            gallery_size: number of people that are searched.

        Returns:
            1 - (1 - far)^(gallery_size / own gallery_size).

        >>> round(Threshold(0.5, 0.01, 0.4, 0.6, 1000).far_at(30), 3)
        0.26
        """
        return -math.expm1(gallery_size / self.gallery_size * math.log1p(-self.far))

    def rows(self) -> Iterator[Sequence[object]]:
        many = self.gallery_size > 1
        yield "decision", f"search among {self.gallery_size:,} people" if many else "pair (1:1)"
        yield "false-accept rate", f"{100 * self.far:g} %"
        low, high = round_up(self.low), round_up(self.high)
        yield "threshold", f"{round_up(self.value)}  (95 %: {low} to {high})"
        whose = f" of {self.people:,} people" if self.people is not None else ""
        yield "fitted on", f"{self.negatives:,} impostors{whose}"

    @classmethod
    def from_dict(cls, record: Any) -> Threshold:
        """Read back what `to_dict` gave.

        Args:
            record: a dictionary.

        Returns:
            The threshold.

        Raises:
            ValueError: if it is no such record.
        """
        if not isinstance(record, dict):
            raise ValueError(f"a threshold: expected an object; got {type(record).__name__}")
        numbers = {key: record.get(key) for key in ("value", "far", "low", "high")}
        counts = {key: record.get(key) for key in ("negatives", "gallery_size")}
        for key, value in (numbers | counts).items():
            wanted = int if key in counts else (int, float)
            if not isinstance(value, wanted) or isinstance(value, bool):
                raise ValueError(f"a threshold: {key} is no number ({value!r})")
        people = record.get("people")
        if people is not None and type(people) is not int:
            raise ValueError(f"a threshold: people is no number ({people!r})")
        return cls(**numbers, **counts, people=people)  # type: ignore[arg-type]


def fit_threshold(
    impostor_scores: Any,
    far: float = 1e-3,
    gallery_size: int = 1,
    *,
    searched: int = 1,
    groups: Any = None,
    seed: int = 0,
) -> Threshold:
    """The least threshold that at most `far` of the impostors reach.

    Args:
        impostor_scores: (P,) scores of pairs of different people; or (P, G), each row the scores of
            an unknown person against the G people of a gallery.
        far: false-accept rate in (0, 1): of a pair where `gallery_size` is 1, else the share of
            searches by unknown people that end with a name.
        gallery_size: the number N of people that will be searched; see Note [Search among N].
        searched: with scores (P,): each is the best of a search among this many people.
        groups: (P,) who each row is, such as labels: the bootstrap then draws people, and several
            pictures of one person count as what they are. Default: every row by itself.
        seed: seed of the bootstrap.

    Returns:
        The threshold with its 95 % interval and the number of impostors behind it.

    Raises:
        ValueError: where the impostors are too few: one false accept has to be a share of at most
            the rate asked for. A search among N by single scores needs about N / far of them.

    >>> scores = torch.linspace(-1, 1, 1001)
    >>> found = fit_threshold(scores, far=0.01)
    >>> round(found.value, 3), int((scores >= found.value).sum())
    (0.98, 10)
    >>> fit_threshold(scores[:50], far=0.01)
    Traceback (most recent call last):
    ValueError: a false-accept rate of 0.01 needs at least 100 impostor scores; got 50...
    """
    check_rate(far)
    for name, size in (("gallery_size", gallery_size), ("searched", searched)):
        if isinstance(size, bool) or int(size) != size or size < 1:
            raise ValueError(f"{name}: expected a number of people, 1 or more; got {size}")
    table = check_impostor_scores(impostor_scores)
    rows, columns = table.shape
    if columns > 1 and searched > 1:
        raise ValueError("searched: for scores (P,) only; a matrix (P, G) says itself what G is")
    width = max(columns, int(searched))
    people, members = _numbered(groups, rows)
    # The rate that the scores at hand have to keep, so that the search among N keeps `far`.
    rate = far if gallery_size <= width else -math.expm1(width / gallery_size * math.log1p(-far))
    needed = math.ceil(1 / rate - 1e-9)
    if rows < needed:
        _refuse(far, rows, needed, int(gallery_size), width)
    whole = columns == 1 or gallery_size >= columns  # each search counts by its best score
    if whole:
        values, weights, owner = table.amax(1), torch.ones(rows, dtype=torch.float64), members
    else:
        values = table.sort(1).values.flatten()
        weights = subset_weights(columns, int(gallery_size)).repeat(rows)
        owner = members.repeat_interleave(columns)
    order = values.argsort(descending=True, stable=True)
    values, weights, owner = values[order], weights[order], owner[order]
    found = float(just_above(_quantile(values, weights, rate * rows)))
    generator = torch.Generator().manual_seed(seed)
    if groups is None and whole:
        samples = _order_statistics(values, rate, generator)
    else:
        samples = _resampled(values, weights, owner, members, rate, generator)
    low, high = samples.double().quantile(torch.tensor([0.025, 0.975]).double()).tolist()
    known = people if groups is not None else None
    return Threshold(found, far, low, high, rows, int(gallery_size), known)


def check_rate(far: float) -> float:
    """Refuse what is no rate.

    Args:
        far: a false-accept rate.

    Returns:
        The rate.
    """
    if not 0 < far < 1:
        raise ValueError(f"far: a false-accept rate lies between 0 and 1, such as 0.01; got {far}")
    return far


def check_impostor_scores(scores: Any) -> Tensor:
    """Impostor scores as a matrix.

    Args:
        scores: (P,) or (P, G).

    Returns:
        (P, G), finite; G is 1 for single scores.
    """
    found = torch.as_tensor(scores).detach()
    if found.ndim not in (1, 2) or found.numel() == 0:
        raise ValueError(
            "impostor_scores: expected scores (P,) of pairs, or (P, G) of searches among G people; "
            f"got shape {tuple(found.shape)}"
        )
    if not found.is_floating_point():
        raise ValueError(f"impostor_scores: expected floating point scores; got {found.dtype}")
    bad = int((~found.isfinite()).sum())
    if bad:
        raise ValueError(f"impostor_scores: {bad} of {found.numel()} are NaN or infinite")
    found = found if found.dtype in (torch.float32, torch.float64) else found.float()
    return found.cpu().reshape(len(found), -1)


def subset_weights(size: int, chosen: int) -> Tensor:
    """Probability that the j-th smallest of `size` scores is the best of `chosen` drawn ones.

    Args:
        size: number of scores G.
        chosen: number N of them, N <= G.

    Returns:
        (G,) float64, C(j-1, N-1) / C(G, N) for j = 1 ... G.

    >>> subset_weights(3, 2)
    tensor([0.0000, 0.3333, 0.6667], dtype=torch.float64)
    """
    j = torch.arange(1, size + 1, dtype=torch.float64)
    possible = j >= chosen
    j = j.clamp(min=chosen)
    log = torch.lgamma(j) - torch.lgamma(j - chosen + 1) - math.lgamma(chosen)
    total = math.lgamma(size + 1) - math.lgamma(chosen + 1) - math.lgamma(size - chosen + 1)
    return torch.where(possible, (log - total).exp(), 0.0)


def just_above(scores: Tensor) -> Tensor:
    """The least thresholds that reject these scores: the next number that their type has.

    Args:
        scores: any shape.

    Returns:
        The same shape and type.
    """
    return torch.nextafter(scores, scores.new_full((), math.inf))


def _refuse(far: float, rows: int, needed: int, gallery_size: int, width: int) -> None:
    what = "searches by unknown people" if width > 1 else "impostor scores"
    among = f" in a search among {gallery_size:,} people" if gallery_size > 1 else ""
    advice = "take more impostors, or a higher rate"
    if gallery_size > width:
        advice += f", or scores of whole searches, (P, {gallery_size})"
    raise ValueError(
        f"a false-accept rate of {far:g}{among} needs at least {needed:,} {what}; got {rows:,}: "
        f"{advice}"
    )


def _numbered(groups: Any, rows: int) -> tuple[int, Tensor]:
    """Number of groups, and the number of each row's group."""
    if groups is None:
        return rows, torch.arange(rows)
    if len(groups) != rows:
        raise ValueError(f"groups: expected one for each of the {rows} rows; got {len(groups)}")
    items = groups.tolist() if hasattr(groups, "tolist") else list(groups)
    number: dict[Any, int] = {}
    members = torch.tensor([number.setdefault(item, len(number)) for item in items])
    if len(number) < LEAST_GROUPS:
        raise ValueError(
            f"groups: the impostors are {len(number)} people; at least {LEAST_GROUPS} are needed "
            "to say anything about others"
        )
    return len(number), members


def _quantile(values: Tensor, weights: Tensor, allowed: float) -> Tensor:
    """The highest score that must be rejected so that the weight above it is at most `allowed`.

    Values are sorted, highest first. Equal scores are rejected together: the threshold lies above
    all of them.
    """
    total = weights.cumsum(0)
    place = int(torch.searchsorted(total, torch.tensor(allowed + 1e-9).double(), right=True))
    return values[min(place, len(values) - 1)]


def _order_statistics(values: Tensor, rate: float, generator: torch.Generator) -> Tensor:
    """Thresholds of resampled scores, exactly, without resampling.

    The k-th largest of n draws with replacement is the score at the place ceil(n U), where U is the
    k-th smallest of n uniform numbers: a beta variable B(k, n - k + 1).
    """
    n = len(values)
    k = min(math.floor(rate * n + 1e-9) + 1, n)
    # Beta from two gammas, in float64; sums of exponentials would need k of them.
    shapes = torch.tensor([k, n - k + 1], dtype=torch.float64).expand(REPLICATES, 2)
    gamma = torch._standard_gamma(shapes, generator=generator)
    uniform = gamma[:, 0] / gamma.sum(1)
    return just_above(values[(uniform * n).ceil().long().clamp(1, n) - 1])


def _resampled(
    values: Tensor,
    weights: Tensor,
    owner: Tensor,
    members: Tensor,
    rate: float,
    generator: torch.Generator,
) -> Tensor:
    """Thresholds of resampled groups (people, or searches)."""
    count = int(members.max()) + 1
    size = torch.bincount(members, minlength=count).double()  # searches of each group
    # Only the tail is looked at: four times the allowed weight, and a little for small counts.
    tail = int(torch.searchsorted(weights.cumsum(0), 4 * rate * len(members) + 20)) + 1
    values, weights, owner = values[:tail], weights[:tail], owner[:tail]
    replicates = REPLICATES if tail <= 1 << 17 else REPLICATES // 5  # the interval is narrow then
    found = torch.empty(replicates, dtype=values.dtype)
    for i in range(replicates):
        drawn = torch.randint(count, (count,), generator=generator)
        times = torch.bincount(drawn, minlength=count).double()
        found[i] = _quantile(values, weights * times[owner], rate * float(times @ size))
    return just_above(found)
