"""Scores of samples against people: the best of each person's features."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
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
        searched: how many people each sample was compared with at least.
    """

    best: Tensor
    single: Tensor
    owner: list[int]
    searched: int


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


def impostor_scores(
    queries: Tensor,
    labels: Sequence[str],
    features: Tensor,
    owner: Tensor,
    people: Mapping[str, int],
) -> ImpostorScores:
    """Scores of labeled samples against everybody but themselves.

    Args:
        queries: (P, d) unit features.
        labels: who each of them is; a person of the gallery is not compared with herself.
        features: (n, d) unit features of the gallery.
        owner: (n,) the number of the person of each row.
        people: name -> number.

    Returns:
        The scores.
    """
    own = torch.tensor([people.get(label, -1) for label in labels])
    count = len(people)
    known = bool((own >= 0).any())
    if known and count == 1:  # nobody else to be compared with
        raise ValueError(
            f"calibration: the only person of the gallery, {next(iter(people))!r}, is among the "
            "samples; take samples of people who are not enrolled"
        )
    stride = -(-len(queries) * count // MOST_PAIRS)  # every so many scores are kept
    best, single, rows, done = [], [], [], 0
    for part in parts(queries, len(features)):
        scores = person_scores(part, features, owner, count)
        mine = own[done : done + len(part)]
        scores[torch.arange(len(part))[mine >= 0], mine[mine >= 0]] = -2.0
        best.append(scores.amax(1))
        place = torch.arange(len(part) * count)[(-done * count) % stride :: stride]
        place = place[scores.flatten()[place] > -1.5]
        single.append(scores.flatten()[place])
        rows.append(place // count + done)
        done += len(part)
    return ImpostorScores(
        torch.cat(best), torch.cat(single), torch.cat(rows).tolist(), count - int(known)
    )
