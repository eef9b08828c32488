"""Retrieval: do the nearest neighbors have the right class? Recall@k, R-precision, MAP@R."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from ...functional.angles import normalize
from ..inputs import (
    check_features,
    check_row_labels,
    check_two_classes,
    number_names,
    to_common_type,
)
from ..results import Result, percent
from .search import get_search


@dataclass
class RetrievalResult(Result):
    """Result of `retrieval`: means over the queries that have something to find.

    Args:
        recall: k -> share of the queries with a relevant item among the first k.
        map_at_r: mean average precision at R.
        r_precision: precision among the first R.
        queries: number of queries.
        skipped: number of queries without any relevant item.
    """

    recall: dict[int, float]
    map_at_r: float
    r_precision: float
    queries: int
    skipped: int

    def rows(self) -> Iterator[Sequence[object]]:
        yield (
            "queries",
            f"{self.queries:,}" + (f" ({self.skipped:,} alone)" if self.skipped else ""),
        )
        for k, value in self.recall.items():
            yield f"recall@{k}", percent(value)
        yield "R-precision", percent(self.r_precision)
        yield "MAP@R", percent(self.map_at_r)


def retrieval(
    features: Tensor,
    labels: Any,
    ks: Sequence[int] = (1, 5, 10),
    *,
    gallery: Tensor | None = None,
    gallery_labels: Any = None,
    backend: str = "torch",
) -> RetrievalResult:
    """Recall@k, R-precision and MAP@R by cosine.

    Each query searches all other features (or the `gallery`). With R relevant items and
    rel(i) = 1 when the i-th neighbor is relevant: recall@k = [any rel(i), i <= k],
    R-precision = sum_{i<=R} rel(i) / R, MAP@R = (1/R) sum_{i<=R} rel(i) P(i), P(i) the precision
    among the first i. Queries without any relevant item are left out and counted as skipped.

    Args:
        features: (n, d), the queries.
        labels: (n,) numbers or names.
        ks: the k of recall@k.
        gallery: (N, d) items to search. Default: the other queries.
        gallery_labels: (N,).
        backend: "torch" or "faiss".

    Returns:
        The three figures.

    >>> x = torch.tensor([[1.0, 0.0], [0.9, 0.1], [0.0, 1.0], [0.1, 0.9]])
    >>> retrieval(x, torch.tensor([0, 0, 1, 1]), ks=(1,)).map_at_r
    1.0
    """
    features = normalize(check_features("features", features))
    if gallery is None or gallery_labels is None:
        (labels,) = number_names(labels)
    else:
        labels, gallery_labels = number_names(labels, gallery_labels)
    labels = check_two_classes("labels", check_row_labels("labels", labels, len(features)))
    alone = gallery is None
    if gallery is None:
        gallery, gallery_labels = features, labels
    else:
        gallery = normalize(check_features("gallery", gallery, features.shape[1]))
        if gallery_labels is None:
            raise ValueError("a gallery was given without gallery_labels")
        gallery_labels = check_row_labels("gallery_labels", gallery_labels, len(gallery))
        features, gallery = to_common_type(features, gallery)
    relevant = _count_of(labels, gallery_labels) - int(alone)
    keep = (relevant > 0).nonzero().flatten()
    if len(keep) == 0:
        raise ValueError("labels: no query has another item of its class to find")
    largest = len(gallery) - int(alone)
    if not ks or min(ks) < 1:
        raise ValueError(f"ks: expected whole numbers from 1 on; got {list(ks)}")
    depth = min(max(int(relevant.max()), max(ks)), largest)
    find = get_search(backend)
    totals = torch.zeros(len(ks) + 2, dtype=torch.float64)
    for rows in keep.split(512):  # keeps the (queries, depth) table of neighbors small
        nearest = find(features[rows], gallery, depth + int(alone))[1]
        if alone:
            nearest = _without_self(nearest, rows)
        right = gallery_labels[nearest] == labels[rows].unsqueeze(1)
        totals += _totals(right, relevant[rows], ks)
    means = (totals / len(keep)).tolist()
    recall = dict(zip(ks, means, strict=False))
    return RetrievalResult(recall, means[-1], means[-2], len(keep), len(features) - len(keep))


def _count_of(labels: Tensor, among: Tensor) -> Tensor:
    """How often each label occurs in `among`."""
    ordered = among.sort().values
    return torch.searchsorted(ordered, labels, right=True) - torch.searchsorted(ordered, labels)


def _without_self(nearest: Tensor, rows: Tensor) -> Tensor:
    """Neighbors less the query itself; less the last one where a double took its place."""
    own = nearest == rows.unsqueeze(1)
    own[:, -1] |= ~own.any(1)
    return nearest[~own].view(len(rows), -1)


def _totals(right: Tensor, relevant: Tensor, ks: Sequence[int]) -> Tensor:
    """Sums over queries: recall at each k, R-precision, MAP@R."""
    place = torch.arange(1, right.shape[1] + 1)
    inside = right & (place <= relevant.unsqueeze(1))
    precision = right.double().cumsum(1) / place
    recalls = [right[:, :k].any(1).double().sum() for k in ks]
    r_precision = (inside.double().sum(1) / relevant).sum()
    average = ((inside * precision).sum(1) / relevant).sum()
    return torch.stack([*recalls, r_precision, average])
