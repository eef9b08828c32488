"""Open-set identification: find the known people, and reject those who are not in the gallery."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from ...functional.angles import normalize
from ..inputs import check_features, check_row_labels, is_number, number_names, to_common_type
from ..results import Result, percent, round_up
from .search import get_search
from .thresholds import just_above


@dataclass
class DirPoint:
    """Detection and identification rate at one false-alarm rate.

    Args:
        far: the false-alarm rate asked for.
        dir: share of the known probes that are found and accepted; NaN where it was refused.
        threshold: a score is accepted if it is at least this; at most `far` of the unknown probes
            are. It describes them; `fit_threshold` gives one that is to hold for others.
        unknown_needed: how many unknown probes this rate needs.
    """

    far: float
    dir: float
    threshold: float
    unknown_needed: int


@dataclass
class OpenSetResult(Result):
    """Result of `open_set_identification`.

    Args:
        rank: a mate within this rank counts as found.
        dir_at_far: the rate at each false-alarm rate asked for.
        rank_accuracy: share of the known probes found when nobody is rejected.
        known: number of probes whose id is in the gallery.
        unknown: number of the other probes.
        gallery: number of gallery features.
        curve: (false-alarm rate, detection and identification rate) pairs.
    """

    rank: int
    dir_at_far: list[DirPoint]
    rank_accuracy: float
    known: int
    unknown: int
    gallery: int
    curve: list[tuple[float, float]]

    def rows(self) -> Iterator[Sequence[object]]:
        yield "probes", f"{self.known:,} known, {self.unknown:,} unknown"
        yield "gallery", f"{self.gallery:,}"
        yield f"rank-{self.rank} of the known, nobody rejected", percent(self.rank_accuracy)
        for point in self.dir_at_far:
            if math.isnan(point.dir):
                text = f"refused: {self.unknown:,} unknown, needs {point.unknown_needed:,}"
            else:
                text = f"{percent(point.dir)}  (threshold {round_up(point.threshold)})"
            yield f"DIR at FAR {point.far:g}", text


def open_set_identification(
    probes: Tensor,
    gallery: Tensor,
    probe_ids: Any,
    gallery_ids: Any,
    *,
    fars: Sequence[float] = (1e-1, 1e-2, 1e-3),
    rank: int = 1,
    backend: str = "torch",
) -> OpenSetResult:
    """DIR at FAR: known probes found at rank <= r above the threshold, at a rate of false alarms.

    A false alarm is an unknown probe (its id is not in the gallery) whose best score reaches the
    threshold t:  FAR(t) = #{unknown: max score >= t} / #unknown,
    DIR(t, r) = #{known: mate at rank <= r with score >= t} / #known.
    A rate with fewer than 1/FAR unknown probes is refused. The rates are those of these very
    probes, as published protocols have it; a threshold that is to hold for other people is that of
    `fit_threshold` (Note [Measured rates] in thresholds.py).

    Args:
        probes: (P, d), known and unknown ones.
        gallery: (G, d).
        probe_ids: (P,) who the probes are: numbers or names.
        gallery_ids: (G,) who the gallery features are.
        fars: false-alarm rates in (0, 1].
        rank: a mate within this rank counts as found.
        backend: "torch" or "faiss".

    Returns:
        The rate and the threshold at each false-alarm rate, and the curve.

    >>> gallery = torch.eye(3)[:2]
    >>> probes = torch.tensor([[1.0, 0.1, 0.0], [0.1, 1.0, 0.0], [0.1, 0.0, 1.0], [0.0, 0.2, 1.0]])
    >>> ids = torch.tensor([0, 1, 7, 8])
    >>> result = open_set_identification(probes, gallery, ids, torch.tensor([0, 1]), fars=(0.5,))
    >>> result.dir_at_far[0].dir
    1.0
    """
    probes = normalize(check_features("probes", probes))
    gallery = normalize(check_features("gallery", gallery, probes.shape[1]))
    probes, gallery = to_common_type(probes, gallery)
    probe_ids, gallery_ids = number_names(probe_ids, gallery_ids)
    probe_ids = check_row_labels("probe_ids", probe_ids, len(probes))
    gallery_ids = check_row_labels("gallery_ids", gallery_ids, len(gallery))
    known = torch.isin(probe_ids, gallery_ids)
    if bool(known.all()) or not bool(known.any()):
        what = "known" if bool(known.all()) else "unknown"
        raise ValueError(
            f"all {len(probes)} probes are {what}; open-set needs known and unknown ones"
        )
    scores, rows = get_search(backend)(probes, gallery, min(rank, len(gallery)))
    right = (gallery_ids[rows] == probe_ids.unsqueeze(1))[known]
    # Score of the first mate within the rank; -inf where there is none.
    mate = torch.where(right, scores[known], torch.tensor(-math.inf)).amax(1)
    alarms = scores[~known, 0].sort(descending=True).values
    sorted_mates = mate.sort().values

    def dir_at(threshold: Tensor) -> Tensor:
        """Share of the known who are accepted: score >= threshold."""
        passed = len(mate) - torch.searchsorted(sorted_mates, threshold)
        return passed.double() / len(mate)

    points = []
    for far in fars:
        if not (is_number(far) and 0 < far <= 1):
            raise ValueError(f"fars: a false-alarm rate lies in (0, 1]; got {far!r}")
        needed = math.ceil(1 / far - 1e-9)
        if len(alarms) < needed:
            points.append(DirPoint(far, math.nan, math.nan, needed))
            continue
        allowed = math.floor(far * len(alarms) + 1e-9)
        if allowed < len(alarms):
            # With the first alarm too many rejected, at most the allowed number is left.
            bar = just_above(alarms[allowed : allowed + 1])
        else:  # every alarm is allowed
            bar = alarms.new_full((1,), -math.inf)
        points.append(DirPoint(far, float(dir_at(bar)), float(bar), needed))
    steps = torch.unique(torch.logspace(0, math.log10(len(alarms)), 100).long()).clamp(
        max=len(alarms) - 1
    )
    curve = zip(
        (steps.double() / len(alarms)).tolist(),
        dir_at(just_above(alarms[steps])).tolist(),
        strict=True,
    )
    return OpenSetResult(
        rank,
        points,
        float(right.any(1).double().mean()),
        int(known.sum()),
        int((~known).sum()),
        len(gallery),
        list(curve),
    )
