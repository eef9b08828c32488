"""Open-set identification: find the known people, and reject those who are not in the gallery."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from ...functional.angles import normalize
from ..inputs import check_features, check_labels
from ..results import Result, percent
from .search import get_search


@dataclass
class DirPoint:
    """Detection and identification rate at one false-alarm rate; NaN where it was refused."""

    far: float
    dir: float
    threshold: float
    unknown_needed: int


@dataclass
class OpenSetResult(Result):
    """Result of `open_set_identification`; `curve` has (false-alarm rate, rate) pairs."""

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
                text = f"{percent(point.dir)}  (threshold {point.threshold:.4f})"
            yield f"DIR at FAR {point.far:g}", text


def open_set_identification(
    probes: Tensor,
    gallery: Tensor,
    probe_ids: Tensor,
    gallery_ids: Tensor,
    *,
    fars: Sequence[float] = (1e-1, 1e-2, 1e-3),
    rank: int = 1,
    backend: str = "torch",
) -> OpenSetResult:
    """DIR at FAR: known probes found at rank <= r above the threshold, at a rate of false alarms.

    A false alarm is an unknown probe (its id is not in the gallery) whose best score reaches the
    threshold t:  FAR(t) = #{unknown: max score >= t} / #unknown,
    DIR(t, r) = #{known: mate at rank <= r with score >= t} / #known.
    A rate with fewer than 1/FAR unknown probes is refused.

    >>> gallery = torch.eye(3)[:2]
    >>> probes = torch.tensor([[1.0, 0.1, 0.0], [0.1, 1.0, 0.0], [0.1, 0.0, 1.0], [0.0, 0.2, 1.0]])
    >>> ids = torch.tensor([0, 1, 7, 8])
    >>> result = open_set_identification(probes, gallery, ids, torch.tensor([0, 1]), fars=(0.5,))
    >>> result.dir_at_far[0].dir
    1.0
    """
    probes = normalize(check_features("probes", probes))
    gallery = normalize(check_features("gallery", gallery, probes.shape[1]))
    probe_ids = check_labels("probe_ids", probe_ids, len(probes))
    gallery_ids = check_labels("gallery_ids", gallery_ids, len(gallery))
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

    def dir_above(threshold: Tensor) -> Tensor:
        """Share of the known strictly above the threshold."""
        passed = len(mate) - torch.searchsorted(sorted_mates, threshold, right=True)
        return passed.double() / len(mate)

    points = []
    for far in fars:
        needed = math.ceil(1 / far - 1e-9)
        if len(alarms) < needed:
            points.append(DirPoint(far, math.nan, math.nan, needed))
            continue
        allowed = math.floor(far * len(alarms) + 1e-9)
        # Accept only what beats the first alarm too many: at most `allowed` alarms are left.
        bar = alarms[allowed : allowed + 1] if allowed < len(alarms) else alarms[-1:] - 1
        points.append(DirPoint(far, float(dir_above(bar)), float(bar), needed))
    steps = torch.unique(torch.logspace(0, math.log10(len(alarms)), 100).long()).clamp(
        max=len(alarms) - 1
    )
    curve = zip(
        (steps.double() / len(alarms)).tolist(), dir_above(alarms[steps]).tolist(), strict=True
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
