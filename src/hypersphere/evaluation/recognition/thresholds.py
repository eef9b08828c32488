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

Note [Rate to expect]: of n impostors, those that pass are fewer than the rate says. The next one
reaches a threshold just above the j-th largest with probability j / (n + 1), so the threshold lies
just above the one with j = floor((n + 1) f): k = j - 1 of the impostors pass, and the rate to
expect of other people is at most f, where scores are exchangeable. This is the rule of split
conformal prediction (Vovk et al. 2005); with weights, of conformal risk control (Angelopoulos et
al. 2022). It needs n >= 1/f - 1. Several scores of a person are not exchangeable with those of
somebody else: the interval, not the rate, tells what they are worth.

Note [Measured rates]: TAR at FAR (`Roc.tar_at`) and DIR at FAR (`open_set_identification`) describe
the scores at hand, as published protocols do: the loosest threshold that floor(n f) of the n
impostors pass, which needs n >= 1/f. The rate to expect of others there is (floor(n f) + 1) /
(n + 1), which may be nearly twice f where impostors are few (n = 1/f). So these thresholds are to
be reported, not to be used. Those of `fit_threshold`, which decide about others, let one
impostor fewer pass, or none fewer where the rate to expect is f already.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from ..inputs import is_number
from ..results import Result, round_up
from .threshold_intervals import allowed_weight, exact_ends, just_above, quantile, resampled

LEAST_GROUPS = 3  # a bootstrap over fewer people says nothing about other people


@dataclass(frozen=True)
class Threshold(Result):
    """A threshold and what it rests on; a score is accepted if it is at least `value`.

    Args:
        value: the threshold; at most `far` of the impostors behind it reach it, and of others at
            most `far` are to be expected to (Note [Rate to expect]).
        far: the false-accept rate: of a pair, or of a whole search among `gallery_size` people.
        low: lower end of the 95 % interval of `value`; minus infinity where the impostors are too
            few to say.
        high: upper end; infinity below about 3.7 / far impostors. See Note [Interval of a
            threshold].
        negatives: number of impostor scores, or of searches by unknown people.
        gallery_size: the number of people that are searched; 1 is verification.
        people: how many different people the impostors are, where that is known.
        part: the part of a run's data that they are of, where a run folder keeps the threshold.
    """

    value: float
    far: float
    low: float
    high: float
    negatives: int
    gallery_size: int = 1
    people: int | None = None
    part: str | None = None

    def __post_init__(self) -> None:
        if not (is_number(self.value) and math.isfinite(self.value)):
            raise ValueError(f"value: expected a finite number; got {self.value!r}")
        check_rate(self.far)

    def __float__(self) -> float:
        return self.value

    def far_at(self, gallery_size: float) -> float:
        """The false-accept rate to expect in a gallery of another size (Note [Search among N]).

        Args:
            gallery_size: number of people that are searched.

        Returns:
            1 - (1 - far)^(gallery_size / own gallery_size).

        >>> round(Threshold(0.5, 0.01, 0.4, 0.6, 1000).far_at(30), 3)
        0.26
        """
        return -math.expm1(gallery_size / self.gallery_size * math.log1p(-self.far))

    def interval(self) -> str:
        """The interval in words.

        Returns:
            Both ends; "or more" where the impostors are too few for an upper end.

        >>> Threshold(0.5, 0.01, 0.4, math.inf, 100).interval()
        '0.400000 or more'
        """
        if math.isinf(self.high):
            return "any" if math.isinf(self.low) else f"{round_up(self.low)} or more"
        if math.isinf(self.low):
            return f"at most {round_up(self.high)}"
        return f"{round_up(self.low)} to {round_up(self.high)}"

    def rows(self) -> Iterator[Sequence[object]]:
        many = self.gallery_size > 1
        yield "decision", f"search among {self.gallery_size:,} people" if many else "pair (1:1)"
        yield "false-accept rate", f"{100 * self.far:g} %"
        yield "threshold", f"{round_up(self.value)}  (95 %: {self.interval()})"
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
        for key, end in (("low", -math.inf), ("high", math.inf)):  # JSON has no infinity
            if key in record and record[key] is None:
                numbers[key] = end
        counts = {key: record.get(key) for key in ("negatives", "gallery_size")}
        for key, value in (numbers | counts).items():
            wanted = int if key in counts else (int, float)
            if not isinstance(value, wanted) or isinstance(value, bool):
                raise ValueError(f"a threshold: {key} is no number ({value!r})")
        people = record.get("people")
        if people is not None and type(people) is not int:
            raise ValueError(f"a threshold: people is no number ({people!r})")
        part = record.get("part")
        if part is not None and not isinstance(part, str):
            raise ValueError(f"a threshold: part is no name ({part!r})")
        return cls(**numbers, **counts, people=people, part=part)  # type: ignore[arg-type]


def fit_threshold(
    impostor_scores: Any,
    far: float = 1e-3,
    gallery_size: int = 1,
    *,
    searched: int = 1,
    groups: Any = None,
    seed: int = 0,
) -> Threshold:
    """The least threshold that other impostors are expected to reach at a rate of at most `far`.

    Of those at hand fewer pass: floor((P + 1) far) - 1 of P (Note [Rate to expect]).

    Args:
        impostor_scores: (P,) scores of pairs of different people; or (P, G), each row the scores of
            an unknown person against the G people of a gallery.
        far: false-accept rate in (0, 1): of a pair where `gallery_size` is 1, else the share of
            searches by unknown people that end with a name.
        gallery_size: the number N of people that will be searched; see Note [Search among N].
        searched: with scores (P,): each is the best of a search among this many people.
        groups: (P,) who each row is, such as labels: the bootstrap then draws people, and several
            pictures of one person count as what they are; or (P, 2), a tensor or array, the two
            people of each pair. Default: every row by itself.
        seed: seed of the bootstrap.

    Returns:
        The threshold with its 95 % interval (Note [Interval of a threshold]) and the number of
        impostors behind it.

    Raises:
        ValueError: where the impostors are fewer than 1 / far - 1: one more could not be promised
            to pass at most so often. A search among N by single scores needs about N / far of them.

    >>> scores = torch.linspace(-1, 1, 1001)
    >>> found = fit_threshold(scores, far=0.01)
    >>> round(found.value, 3), int((scores >= found.value).sum())
    (0.982, 9)
    >>> fit_threshold(scores[:50], far=0.01)
    Traceback (most recent call last):
    ValueError: a false-accept rate of 0.01 needs at least 99 impostor scores; got 50...
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
    needed = math.ceil(1 / rate - 1 - 1e-9)
    if rows < needed:
        _refuse(far, rows, needed, int(gallery_size), width)
    whole = columns == 1 or gallery_size >= columns  # each search counts by its best score
    if whole:
        values, weights, owner = table.amax(1), torch.ones(rows, dtype=torch.float64), members
    else:
        values = table.sort(1).values.flatten()
        weights = subset_weights(columns, int(gallery_size)).repeat(rows)
        owner = members.repeat_interleave(columns, 0)
    order = values.argsort(descending=True, stable=True)
    values, weights, owner = values[order], weights[order], owner[order]
    found = float(just_above(quantile(values, weights, allowed_weight(rate, rows))))
    if groups is None and whole:
        low, high = exact_ends(values, weights, rate, rows, 1.0)
    else:
        generator = torch.Generator().manual_seed(seed)
        samples, effect = resampled(values, weights, owner, members, rate, generator)
        effect = max(effect, 1.0 if whole else 1 / columns)
        low, high = exact_ends(values, weights, rate, rows, effect)
        ends = samples.double().quantile(torch.tensor([0.025, 0.975]).double()).tolist()
        low, high = min(low, ends[0], found), max(high, ends[1], found)
    known = people if groups is not None else None
    return Threshold(found, far, low, high, rows, int(gallery_size), known)


def check_rate(far: float) -> float:
    """Refuse what is no rate.

    Args:
        far: a false-accept rate.

    Returns:
        The rate.
    """
    if not (is_number(far) and 0 < far < 1):
        raise ValueError(
            f"far: a false-accept rate lies between 0 and 1, such as 0.01; got {far!r}"
        )
    return far


def check_threshold(threshold: Any, finite: bool = True) -> float | Threshold:
    """Refuse what is no threshold.

    Args:
        threshold: a number, such as a cosine, or a `Threshold`.
        finite: refuse infinity too, which accepts none or all. Default: True.

    Returns:
        The threshold.
    """
    if isinstance(threshold, Threshold):
        return threshold
    value = threshold.item() if isinstance(threshold, Tensor) and not threshold.ndim else threshold
    if not is_number(value) or math.isnan(value) or (finite and math.isinf(value)):
        raise ValueError(
            f"threshold: expected a finite number, such as a cosine of 0.5; got {threshold!r}"
        )
    return float(value)


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
    # In their own type: the next number of float32 rounds back to a score of 16 bits.
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
    """Number of people, and the numbers of each row's people, (rows, 1) or (rows, 2)."""
    if groups is None:
        return rows, torch.arange(rows)[:, None]
    if len(groups) != rows:
        raise ValueError(f"groups: expected one for each of the {rows} rows; got {len(groups)}")
    shape = tuple(getattr(groups, "shape", (rows,)))
    if len(shape) > 2 or shape[1:] not in ((), (1,), (2,)):
        raise ValueError(f"groups: expected (P,), or (P, 2) of pairs of people; got {shape}")
    if isinstance(groups, Tensor):
        kinds, members = groups.reshape(rows, -1).cpu().unique(return_inverse=True)
        count = len(kinds)
    else:
        items = groups.reshape(-1).tolist() if hasattr(groups, "reshape") else list(groups)
        number: dict[Any, int] = {}
        members = torch.tensor([number.setdefault(item, len(number)) for item in items])
        members, count = members.view(rows, -1), len(number)
    if count < LEAST_GROUPS:
        raise ValueError(
            f"groups: the impostors are {count} people; at least {LEAST_GROUPS} are needed "
            "to say anything about others"
        )
    return count, members
