"""Scores of samples against people: the best of each person's features."""

from __future__ import annotations

import warnings
from collections.abc import Container, Iterator, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor

from .decision import MOST_PAIRS

SCORES_AT_ONCE = 1 << 25


class ImpostorScores(NamedTuple):
    """Scores of samples against people who they are not.

    Args:
        best: (P,) best score of each sample.
        single: (S,) scores of sample and person, at most `MOST_PAIRS` of them, evenly drawn.
        owner: the row of `best` that each of them belongs to.
        searched: how many people each sample was compared with.
    """

    best: Tensor
    single: Tensor
    owner: list[int]
    searched: int


@dataclass(frozen=True)
class Match:
    """A person of the gallery who resembles a sample.

    Args:
        name: the person.
        score: cosine with the nearest of the person's features, in [-1, 1].
    """

    name: str
    score: float


def person_scores(queries: Tensor, features: Tensor, owner: Tensor, people: int) -> Tensor:
    """Best score of each person.

    Args:
        queries: (q, d) unit features.
        features: (n, d) unit features of the gallery.
        owner: (n,) the number of the person of each row.
        people: number of people.

    Returns:
        (q, people).
    """
    best = queries.new_full((len(queries), people), -2.0)
    whose = owner.expand(len(queries), -1)
    return best.scatter_reduce_(1, whose, queries @ features.T, "amax")


def parts(queries: Tensor, rows: int) -> Iterator[Tensor]:
    """Queries in parts whose scores fit in memory.

    Args:
        queries: (q, d).
        rows: number of rows that each is compared with.

    Returns:
        The parts.
    """
    yield from queries.split(max(1, SCORES_AT_ONCE // max(1, rows)))


def not_enrolled(labels: Sequence[str], people: Container[str]) -> list[int]:
    """The samples of people who are not in the gallery; warns where others are left out.

    Args:
        labels: who each sample is.
        people: who is in the gallery.

    Returns:
        Their places.

    Raises:
        ValueError: if there are none.
    """
    names = dict.fromkeys(labels)
    known = [name for name in names if name in people]
    said = f"{len(known)} of {len(names)} people to calibrate with are enrolled ({some(known)})"
    if known and len(known) == len(names):
        raise ValueError(f"{said}: their pictures are no impostors; take people who are not")
    if known:
        said += ": their pictures are no impostors, and are left out"
        warnings.warn(said, stacklevel=3)
    return [i for i, label in enumerate(labels) if label not in people]


def some(names: Sequence[str]) -> str:
    """The first of the names.

    Args:
        names: any number.

    Returns:
        At most three of them.
    """
    return ", ".join(names[:3]) + (", ..." if len(names) > 3 else "")


def impostor_scores(queries: Tensor, features: Tensor, owner: Tensor, count: int) -> ImpostorScores:
    """Scores of samples of people who are not in the gallery.

    Args:
        queries: (P, d) unit features.
        features: (n, d) unit features of the gallery.
        owner: (n,) the number of the person of each row.
        count: number of people in the gallery.

    Returns:
        The scores.
    """
    stride = -(-len(queries) * count // MOST_PAIRS)  # every so many scores are kept
    best, single, rows, done = [], [], [], 0
    for part in parts(queries, len(features)):
        scores = person_scores(part, features, owner, count)
        best.append(scores.amax(1))
        place = torch.arange(len(part) * count)[(-done * count) % stride :: stride]
        single.append(scores.flatten()[place])
        rows.append(place // count + done)
        done += len(part)
    return ImpostorScores(torch.cat(best), torch.cat(single), torch.cat(rows).tolist(), count)
