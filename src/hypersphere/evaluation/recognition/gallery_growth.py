"""Open-set identification as the gallery grows: a higher threshold finds fewer known people."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from ...functional.angles import normalize
from ..inputs import check_features, check_row_labels, number_names, to_common_type
from ..results import Result, percent, round_up
from .thresholds import check_rate, fit_threshold

DRAWS = 10  # galleries of each size that are drawn


@dataclass
class GrowthPoint:
    """A size of the gallery.

    Args:
        people: number of people in the gallery.
        threshold: at the false-accept rate of a search among them; mean over the drawn galleries.
        found: share of the known who are nearest to themselves and accepted; mean over the drawn
            galleries that have known people, NaN where none has.
        deviation: of `found` over these galleries; NaN for one.
        rank_1: share of the known who are nearest to themselves, accepted or not.
        galleries: how many of the drawn galleries have known people.
    """

    people: int
    threshold: float
    found: float
    deviation: float
    rank_1: float
    galleries: int


@dataclass
class GalleryGrowthResult(Result):
    """Result of `error_by_gallery_size`.

    Args:
        far: the false-accept rate of a search.
        points: one per size.
        unknown: number of unknown probes.
        draws: galleries drawn of each size.
    """

    far: float
    points: list[GrowthPoint]
    unknown: int
    draws: int

    def header(self) -> Sequence[str]:
        return (
            "people",
            "threshold",
            f"found at FAR {self.far:g}",
            "deviation",
            "rank-1",
            "galleries",
        )

    def rows(self) -> Iterator[Sequence[object]]:
        for p in self.points:
            cells = percent(p.found), percent(p.deviation), percent(p.rank_1), p.galleries
            yield f"{p.people:,}", round_up(p.threshold), *cells


def error_by_gallery_size(
    probes: Any,
    gallery: Any,
    probe_ids: Any,
    gallery_ids: Any,
    *,
    far: float = 0.01,
    sizes: Sequence[int] | None = None,
    seed: int = 0,
) -> GalleryGrowthResult:
    """Share of known people found at a false-accept rate of a search, by the size of the gallery.

    For each size, galleries of that many people are drawn; the threshold is fitted to each of them
    with the unknown probes, so that the rate stays the same while the gallery grows.

    Args:
        probes: (P, d), of people of the gallery and of unknown ones.
        gallery: (G, d), one or more features per person.
        probe_ids: (P,) who the probes are: numbers or names.
        gallery_ids: (G,) who the gallery features are.
        far: share of the unknown probes that may be named.
        sizes: numbers of people. Default: 10, 20, 50, 100, ... and all.
        seed: seed of the drawn galleries.

    Returns:
        Threshold and share found at each size; `reports.figures.error_by_size` draws it.
    """
    check_rate(far)
    probes = normalize(check_features("probes", probes))
    gallery = normalize(check_features("gallery", gallery, probes.shape[1]))
    probes, gallery = to_common_type(probes, gallery)
    probe_ids, gallery_ids = number_names(probe_ids, gallery_ids)
    ids = check_row_labels("probe_ids", probe_ids, len(probes))
    owners = check_row_labels("gallery_ids", gallery_ids, len(gallery))
    people, owner = owners.unique(return_inverse=True)
    known = torch.isin(ids, people)
    if bool(known.all()) or not bool(known.any()):
        kind = "known" if bool(known.all()) else "unknown"
        raise ValueError(f"all {len(probes)} probes are {kind}; known and unknown ones are needed")
    best = probes.new_full((len(probes), len(people)), -2.0)
    best.scatter_reduce_(1, owner.expand(len(probes), -1), probes @ gallery.T, "amax")
    mine = torch.searchsorted(people, ids[known])
    wanted = _sizes(len(people)) if sizes is None else sorted(set(sizes))
    if not wanted or wanted[0] < 1 or wanted[-1] > len(people):
        raise ValueError(f"sizes: expected numbers in 1..{len(people)}; got {list(sizes or ())}")
    generator = torch.Generator().manual_seed(seed)
    points = []
    for size in wanted:
        draws = 1 if size == len(people) else DRAWS
        samples = [_draw(best, known, mine, size, far, generator) for _ in range(draws)]
        threshold, found, rank = torch.tensor(samples, dtype=torch.float64).T
        asked = found.isfinite()  # a small gallery may have none of the known people in it
        found, rank = found[asked], rank[asked]
        spread = float(found.std()) if len(found) > 1 else math.nan
        means = float(threshold.mean()), float(found.mean()), spread, float(rank.mean())
        points.append(GrowthPoint(size, *means, len(found)))
    return GalleryGrowthResult(far, points, int((~known).sum()), DRAWS)


def _draw(
    best: Tensor, known: Tensor, mine: Tensor, size: int, far: float, generator: torch.Generator
) -> tuple[float, float, float]:
    """Threshold, share found and rank-1 of one drawn gallery."""
    chosen = torch.randperm(best.shape[1], generator=generator)[:size]
    threshold = fit_threshold(best[~known][:, chosen], far, size).value
    inside = torch.isin(mine, chosen)
    if not bool(inside.any()):
        return threshold, math.nan, math.nan
    scores = best[known][inside]
    own = scores.gather(1, mine[inside].unsqueeze(1)).squeeze(1)
    first = own >= scores[:, chosen].amax(1)
    return (
        threshold,
        float((first & (own >= threshold)).double().mean()),
        float(first.double().mean()),
    )


def _sizes(people: int) -> list[int]:
    steps = [factor * 10**power for power in range(1, 7) for factor in (1, 2, 5)]
    return [*(size for size in steps if size < people), people]
