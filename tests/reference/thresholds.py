"""Thresholds at a false-accept rate by enumeration, in exact arithmetic where it counts."""

from __future__ import annotations

import itertools
import math
from fractions import Fraction
from random import Random


def rate_of_search(table: list[list[float]], size: int, threshold: float) -> Fraction:
    """Share of (search, gallery of `size` people out of the columns) that end with a name."""
    named = total = 0
    for row in table:
        for chosen in itertools.combinations(row, size):
            named += max(chosen) >= threshold
            total += 1
    return Fraction(named, total)


def least_threshold(table: list[list[float]], size: int, far: float) -> float:
    """The highest score that has to be rejected for the expected rate to stay at or below `far`.

    With one more search that always ends with a name, the rate of all of them is to be at most
    `far`. A threshold just above the score keeps that; a threshold at it does not.
    """
    width = len(table[0])
    if size > width:  # galleries of all columns, size / width of them, taken as independent
        far, size = 1 - (1 - far) ** (width / size), width
    scores = sorted({score for row in table for score in row}, reverse=True)
    for score in scores:
        named = rate_of_search(table, size, score) * len(table) + 1
        if named / (len(table) + 1) > Fraction(far) + Fraction(1, 10**9):
            return score
    return -math.inf


def thresholds_of_resampled_people(
    scores: list[list[float]], labels: list[int], far: float, draws: int, seed: int
) -> list[float]:
    """Thresholds of pairs at `far`, of people drawn with replacement, from all their pairs.

    Pairs of one person with herself, drawn twice or not, are no impostors.
    """
    random = Random(seed)
    people = sorted(set(labels))
    found = []
    for _ in range(draws):
        drawn = [random.choice(people) for _ in people]
        rows = [i for person in drawn for i in range(len(labels)) if labels[i] == person]
        pairs = sorted(
            (scores[a][b] for a, b in itertools.combinations(rows, 2) if labels[a] != labels[b]),
            reverse=True,
        )
        if pairs:
            found.append(pairs[max(0, math.floor(far * (len(pairs) + 1) + 1e-9) - 1)])
    return sorted(found)
