"""Searches and pairs of different people, made from labeled features of unseen people."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from ...functional.angles import normalize
from ..inputs import check_features, check_row_labels, number_names
from ..results import Result, round_up
from .templates import templates
from .thresholds import Threshold, check_rate, fit_threshold

MOST_PEOPLE = 4096  # of a gallery that impostors are searched in
MOST_PAIRS = 1 << 20  # scores of pairs that a threshold is fitted on, evenly drawn
PAIRS_AT_ONCE = 1 << 16
ROWS_AT_ONCE = 1 << 10
FARS = (1e-1, 1e-2, 1e-3, 1e-4)


def impostor_searches(features: Any, labels: Any, seed: int = 0) -> Tensor:
    """Scores of every sample against the templates of all other people.

    Args:
        features: (P, d), of people who were not trained on.
        labels: (P,) who they are: numbers or names.
        seed: seed of the choice where there are very many people.

    Returns:
        (P, G): a row per sample, a column per other person; `fit_threshold` takes it as it is.

    >>> impostor_searches(torch.eye(3), torch.arange(3)).tolist()
    [[0.0, 0.0], [0.0, 0.0], [0.0, 0.0]]
    """
    features = normalize(check_features("features", features))
    labels = check_row_labels("labels", number_names(labels)[0], len(features))
    people, index = labels.unique(return_inverse=True)
    if len(people) < 2:
        raise ValueError(f"labels: all are of {len(people)} person; impostors need several")
    gallery = normalize(templates(features, index))
    if len(people) > MOST_PEOPLE:
        generator = torch.Generator().manual_seed(seed)
        chosen = torch.randperm(len(people), generator=generator)[:MOST_PEOPLE]
    else:
        chosen = torch.arange(len(people))
    gallery = gallery[chosen]
    found = features.new_empty(len(features), len(chosen) - 1)
    for start in range(0, len(features), ROWS_AT_ONCE):  # the result alone may fill the memory
        rows = slice(start, start + ROWS_AT_ONCE)
        # Leave the own column out; a sample whose person is not among them loses the last one.
        others = chosen != index[rows].unsqueeze(1)
        others[:, -1] &= ~others.all(1)
        scores = features[rows] @ gallery.T
        found[rows] = scores[others].view(len(scores), -1)
    return found


def impostor_pairs(features: Any, labels: Any, seed: int = 0) -> tuple[Tensor, Tensor]:
    """Scores of the pairs of samples of different people.

    Args:
        features: (P, d), of people who were not trained on.
        labels: (P,) who they are: numbers or names.
        seed: seed of the choice where there are more than `MOST_PAIRS` pairs.

    Returns:
        (n,) scores, and (n, 2) the two people of each, for `fit_threshold(groups=...)`.

    >>> scores, people = impostor_pairs(torch.eye(3), torch.tensor([4, 4, 7]))
    >>> scores.tolist(), people.tolist()
    ([0.0, 0.0], [[4, 7], [4, 7]])
    """
    features = normalize(check_features("features", features))
    labels = check_row_labels("labels", number_names(labels)[0], len(features))
    n = len(features)
    if n * (n - 1) // 2 <= 2 * MOST_PAIRS:
        first, second = torch.triu_indices(n, n, 1)
    else:
        generator = torch.Generator().manual_seed(seed)
        first = torch.randint(n, (2 * MOST_PAIRS,), generator=generator)
        second = torch.randint(n - 1, (2 * MOST_PAIRS,), generator=generator)
        second += second >= first
    different = labels[first] != labels[second]
    first, second = first[different], second[different]
    if len(first) == 0:
        raise ValueError("labels: all are of 1 person; impostors need several")
    step = -(-len(first) // MOST_PAIRS)
    first, second = first[::step], second[::step]
    scores = torch.cat(
        [
            (features[i] * features[j]).sum(1)
            for i, j in zip(first.split(PAIRS_AT_ONCE), second.split(PAIRS_AT_ONCE), strict=True)
        ]
    )
    return scores, torch.stack([labels[first], labels[second]], 1)


@dataclass
class ThresholdsResult(Result):
    """Thresholds at several false-accept rates.

    Args:
        thresholds: one per rate, from loose to strict.
        refused: rates with too few impostors -> why.
        flips: "unused", or "concatenate" if features of mirror images were compared too.
    """

    thresholds: list[Threshold]
    refused: dict[str, str] = field(default_factory=dict)
    flips: str = "unused"

    def header(self) -> Sequence[str]:
        return "decision", "false-accept rate", "threshold", "95 %", "impostors"

    def rows(self) -> Iterator[Sequence[object]]:
        for found in self.thresholds:
            many = found.gallery_size > 1
            what = f"search among {found.gallery_size:,}" if many else "pair (1:1)"
            whose = f" of {found.people:,} people" if found.people is not None else ""
            rate = f"{100 * found.far:g} %"
            yield what, rate, round_up(found.value), found.interval(), f"{found.negatives:,}{whose}"
        for far, reason in self.refused.items():
            yield (f"refused at {100 * float(far):g} %: {reason}",)


def fit_thresholds(
    features: Any,
    labels: Any,
    fars: Sequence[float] = FARS,
    gallery_size: int = 1,
    flips: str = "unused",
) -> ThresholdsResult:
    """Thresholds from labeled features of people who were not trained on.

    Args:
        features: (P, d).
        labels: (P,) who they are: numbers or names.
        fars: false-accept rates; those with too few impostors are refused.
        gallery_size: number of people that are searched; 1 is verification.
        flips: what the features are made of, for the record.

    Returns:
        The thresholds, and what was refused.
    """
    (labels,) = number_names(labels)
    for far in fars:  # what is no rate is a mistake, and no rate that is refused
        check_rate(far)
    if gallery_size == 1:
        scores, groups = impostor_pairs(features, labels)
    else:
        scores, groups = impostor_searches(features, labels), torch.as_tensor(labels)
    found, refused = [], {}
    for far in sorted(fars, reverse=True):
        try:
            found.append(fit_threshold(scores, far, gallery_size, groups=groups))
        except ValueError as error:
            refused[f"{far:g}"] = str(error)
    return ThresholdsResult(found, refused, flips)
