"""Identification: who is this? Ranks against a gallery and growing numbers of distractors.

The rank of a probe is 1 + the number of other people who score at least as high as its best mate,
so it needs counts only: distractors are streamed in blocks and never sorted, and one pass gives
the ranks for every number of them. A tie counts against the probe.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

from ...functional.angles import normalize
from ..inputs import check_features, check_row_labels, number_names, to_common_type
from ..results import Result, percent, wilson_interval
from .search import get_search

BLOCK = 4096
PROBES = 1024


@dataclass
class IdentificationResult(Result):
    """Result of `identification`.

    Args:
        ranks: the ranks asked for, rising.
        distractors: the numbers of distractors, rising.
        accuracy: accuracy[i][j] is the share of probes with rank <= ranks[j] among distractors[i]
            distractors.
        interval: interval[i] is the 95 % (Wilson) interval of the first rank.
        cmc: cmc[i] is the accuracy at all ranks 1, 2, ... up to the largest asked for, at most
            the number of all gallery features and distractors.
        probes: number of questions.
        gallery: number of gallery features.
    """

    ranks: list[int]
    distractors: list[int]
    accuracy: list[list[float]]
    interval: list[tuple[float, float]]
    cmc: list[list[float]]
    probes: int
    gallery: int

    def header(self) -> Sequence[str]:
        return ("distractors", *(f"rank-{rank}" for rank in self.ranks), "95 % of the first")

    def rows(self) -> Iterator[Sequence[object]]:
        for i, count in enumerate(self.distractors):
            low, high = (f"{100 * bound:.2f}" for bound in self.interval[i])
            yield f"{count:,}", *map(percent, self.accuracy[i]), f"{low} to {high}"


def identification(
    probes: Tensor,
    gallery: Tensor,
    probe_ids: Any,
    gallery_ids: Any,
    distractors: Tensor | None = None,
    ranks: Sequence[int] = (1, 5, 10),
    *,
    sizes: Sequence[int] | None = None,
    protocol: str = "gallery",
    backend: str = "torch",
) -> IdentificationResult:
    """Rank-k accuracy and CMC by cosine, as the number of distractors grows (2.3.6, MegaFace).

    Args:
        probes: (P, d); every probe has at least one mate in the gallery.
        gallery: (G, d).
        probe_ids: (P,) who the probes are: numbers or names.
        gallery_ids: (G,) who the gallery features are.
        distractors: (D, d) features of people who are nobody in the gallery. Default: none.
        ranks: which rank-k accuracies to report.
        sizes: numbers of distractors, at most D. Default: 10, 100, ... and D.
        protocol: "gallery": the other people of the gallery compete too, and the best mate counts.
            "megaface": each (probe, mate) pair is a question of its own, in which the mate is
            alone among the distractors.
        backend: "torch" counts exactly; "faiss" ranks by faiss's flat index, up to max(ranks).

    Returns:
        Accuracy at each rank and number of distractors, with intervals and curves.

    >>> gallery = torch.eye(3)
    >>> probes = torch.tensor([[0.9, 0.1, 0.0], [0.6, 0.5, 0.0]])
    >>> print(identification(probes, gallery, torch.tensor([0, 1]), torch.arange(3), ranks=(1, 2)))
    distractors   rank-1    rank-2  95 % of the first
    -----------  -------  --------  -----------------
    0            50.00 %  100.00 %     9.45 to 90.55
    """
    probes = normalize(check_features("probes", probes))
    gallery = normalize(check_features("gallery", gallery, probes.shape[1]))
    given = probe_ids
    probe_ids, gallery_ids = number_names(probe_ids, gallery_ids)
    probe_ids = check_row_labels("probe_ids", probe_ids, len(probes))
    gallery_ids = check_row_labels("gallery_ids", gallery_ids, len(gallery))
    if distractors is None:
        distractors = probes.new_empty(0, probes.shape[1])
    else:
        distractors = check_features("distractors", distractors, probes.shape[1])
    probes, gallery, distractors = to_common_type(probes, gallery, distractors)
    ranks = sorted(set(ranks))
    if not ranks or ranks[0] < 1:
        raise ValueError(f"ranks: expected whole numbers from 1 on; got {ranks}")
    sizes = _sizes(sizes, len(distractors))
    absent = (~torch.isin(probe_ids, gallery_ids)).nonzero().flatten()
    if len(absent):
        first = int(absent[0])
        raise ValueError(
            f"probe {first} (id {_plain(given[first])!r}) has nobody of its id in the "
            f"gallery ({len(absent)} such probes); for unknown people use open_set_identification"
        )
    if protocol not in ("gallery", "megaface"):
        raise ValueError(f"unknown protocol {protocol!r}: one of gallery, megaface")
    if backend == "faiss":
        if protocol != "gallery":
            raise ValueError("backend 'faiss' ranks against the gallery; use protocol='gallery'")
        place = _faiss_ranks(
            probes, gallery, probe_ids, gallery_ids, distractors, sizes, max(ranks)
        )
    elif backend == "torch":
        place = _ranks(probes, gallery, probe_ids, gallery_ids, distractors, sizes, protocol)
    else:
        raise ValueError(f"unknown backend {backend!r}: one of torch, faiss")

    # (sizes, longest): nobody has a rank beyond everyone who is searched.
    longest = min(ranks[-1], len(gallery) + len(distractors))
    hits = torch.searchsorted(
        place.sort(1).values.contiguous(),
        torch.arange(1, longest + 1, device=place.device).expand(len(place), -1).contiguous(),
        right=True,
    )
    total = place.shape[1]
    cmc = (hits.double() / total).tolist()
    return IdentificationResult(
        list(ranks),
        list(sizes),
        [[curve[min(r, longest) - 1] for r in ranks] for curve in cmc],
        [wilson_interval(float(h[min(ranks[0], longest) - 1]), total) for h in hits],
        cmc,
        total,
        len(gallery),
    )


def divide(
    features: Tensor, labels: Any, unknown: float = 0.0, seed: int = 0
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Divide labeled features into a gallery and probes.

    The first sample of each class is its gallery entry, the others are probes.

    Args:
        features: (n, d).
        labels: (n,) numbers, or names, which are numbered in alphabetical order.
        unknown: at least this share of the classes stays out of the gallery: all their samples are
            probes of unknown people. Classes of one sample, which could never be found, are among
            them, and as many of the others as the share asks for.
        seed: seed of the choice of the others.

    Returns:
        probes (P, d), gallery (G, d), probe_ids (P,), gallery_ids (G,).

    Raises:
        ValueError: if too few classes have a second sample, or there are too few classes.

    >>> x, y = torch.randn(6, 2), torch.tensor([0, 0, 1, 2, 2, 2])
    >>> probes, gallery, probe_ids, gallery_ids = divide(x, y, unknown=0.34)
    >>> gallery_ids.tolist(), probe_ids.tolist()
    ([0, 2], [0, 1, 2, 2])
    """
    if not 0 <= unknown < 1:
        raise ValueError(f"unknown: expected a share of the classes in [0, 1); got {unknown}")
    labels = check_row_labels("labels", number_names(labels)[0], len(features))
    classes, counts = labels.unique(return_counts=True)
    known = _draw_known(classes, counts, unknown, seed) if unknown else classes
    order = labels.argsort(stable=True)
    ordered = labels[order]
    first = torch.ones_like(ordered, dtype=torch.bool)
    first[1:] = ordered[1:] != ordered[:-1]
    gallery = order[first & torch.isin(ordered, known)].sort().values
    rest = torch.ones(len(labels), dtype=torch.bool)
    rest[gallery] = False
    if unknown == 0:  # a class of one sample has nothing to ask
        rest &= torch.isin(labels, known)
    if not bool(rest.any()):
        raise ValueError("every class has one sample: no probe is left")
    return features[rest], features[gallery], labels[rest], labels[gallery]


def _draw_known(classes: Tensor, counts: Tensor, unknown: float, seed: int) -> Tensor:
    """The classes of the gallery: some of those that have a sample left to ask with."""
    several = classes[counts > 1]
    if len(several) == 0 or len(classes) < 2:
        raise ValueError(
            f"{len(several)} of {len(classes)} classes have two samples or more: an open-set test "
            "needs one of them for the gallery, whose second sample is the probe, and another "
            "class that stays unknown; add samples, or take another part of the data"
        )
    wanted = len(classes) - max(1, round(unknown * len(classes)))
    order = torch.randperm(len(several), generator=torch.Generator().manual_seed(seed))
    return several[order[: max(1, wanted)]].sort().values


def _plain(label: Any) -> Any:
    """A label as Python writes it, also one of a tensor or an array."""
    return label.item() if hasattr(label, "item") else label


def _sizes(sizes: Sequence[int] | None, available: int) -> list[int]:
    if sizes is None:
        powers = [10**e for e in range(1, 12) if 10**e < available]
        return [*powers, available] if available else [0]
    wrong = [s for s in sizes if not 0 <= s <= available]
    if wrong or not sizes:
        raise ValueError(f"sizes: {wrong or 'none'} asked for; there are {available} distractors")
    return sorted(set(sizes))


def _mates(probe_ids: Tensor, gallery_ids: Tensor) -> tuple[Tensor, Tensor]:
    """All (probe, gallery row) pairs of one identity, ordered by probe."""
    order = gallery_ids.argsort(stable=True)
    ordered = gallery_ids[order]
    first = torch.searchsorted(ordered, probe_ids)
    count = torch.searchsorted(ordered, probe_ids, right=True) - first
    probe = torch.repeat_interleave(torch.arange(len(probe_ids)), count)
    step = torch.arange(len(probe)) - torch.repeat_interleave(count.cumsum(0) - count, count)
    return probe, order[first[probe] + step]


def _mate_scores(probes: Tensor, gallery: Tensor, probe: Tensor, mate: Tensor) -> Tensor:
    blocks = zip(probe.split(BLOCK), mate.split(BLOCK), strict=True)
    return torch.cat([(probes[p] * gallery[m]).sum(1) for p, m in blocks])


def _ranks(
    probes: Tensor,
    gallery: Tensor,
    probe_ids: Tensor,
    gallery_ids: Tensor,
    distractors: Tensor,
    sizes: Sequence[int],
    protocol: str,
) -> Tensor:
    """Ranks (sizes, questions): one question per probe, or per (probe, mate) pair of megaface."""
    probe, mate = _mates(probe_ids, gallery_ids)
    scores = _mate_scores(probes, gallery, probe, mate)
    if protocol == "gallery":
        best = scores.new_full((len(probes),), -math.inf)
        best.scatter_reduce_(0, probe, scores, "amax")
        bars = best.unsqueeze(1)  # (P, 1): the score to beat
    else:
        count = torch.bincount(probe, minlength=len(probes))
        column = torch.arange(len(probe)) - (count.cumsum(0) - count)[probe]
        bars = scores.new_full((len(probes), int(count.max())), math.inf)
        bars[probe, column] = scores
    bars, order = bars.sort(1)
    above = torch.zeros(len(sizes), *bars.shape, dtype=torch.long)
    parts = [slice(start, start + PROBES) for start in range(0, len(probes), PROBES)]
    if protocol == "gallery":
        for start in range(0, len(gallery), BLOCK):
            people = slice(start, start + BLOCK)
            for here in parts:
                scores = probes[here] @ gallery[people].T
                scores[probe_ids[here].unsqueeze(1) == gallery_ids[people]] = -math.inf
                above[:, here] += _reached(scores, bars[here])
    done = 0
    for i, size in enumerate(sizes):
        for part in distractors[done:size].split(BLOCK):
            unit = F.normalize(part)
            for here in parts:
                above[i:, here] += _reached(probes[here] @ unit.T, bars[here])
        done = size
    if protocol == "gallery":
        return 1 + above.squeeze(2)
    place = torch.empty_like(above).scatter_(2, order.expand_as(above), above)
    return 1 + place[:, probe, column]


def _reached(scores: Tensor, bars: Tensor) -> Tensor:
    """How many of scores (P, n) are at least bars (P, M), which rise along M."""
    count, levels = bars.shape
    if levels == 1:
        return (scores >= bars).sum(1, keepdim=True)
    passed = torch.searchsorted(bars, scores, right=True)  # bars reached by each score
    passed += (levels + 1) * torch.arange(count).unsqueeze(1)
    counts = torch.bincount(passed.flatten(), minlength=(levels + 1) * count)
    return counts.view(count, levels + 1).flip(1).cumsum(1).flip(1)[:, 1:]


def _faiss_ranks(
    probes: Tensor,
    gallery: Tensor,
    probe_ids: Tensor,
    gallery_ids: Tensor,
    distractors: Tensor,
    sizes: Sequence[int],
    longest: int,
) -> Tensor:
    """Ranks from sorted lists; whoever is not among the `longest` first gets longest + 1."""
    places = []
    for size in sizes:
        everyone = torch.cat([gallery, normalize(distractors[:size])])
        k = min(longest, len(everyone))
        rows = get_search("faiss")(probes, everyone, k)[1]
        known = rows < len(gallery)
        right = known & (gallery_ids[rows.clamp(max=len(gallery) - 1)] == probe_ids.unsqueeze(1))
        first = torch.where(right.any(1), right.int().argmax(1), longest)
        places.append(first + 1)
    return torch.stack(places)
