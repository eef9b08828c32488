"""Thresholds at a false-accept rate by enumeration, in exact arithmetic where it counts."""

from __future__ import annotations

import itertools
import math
from fractions import Fraction


def rate_of_search(table: list[list[float]], size: int, threshold: float) -> Fraction:
    """Share of (search, gallery of `size` people out of the columns) that end with a name."""
    named = total = 0
    for row in table:
        for chosen in itertools.combinations(row, size):
            named += max(chosen) >= threshold
            total += 1
    return Fraction(named, total)


def least_threshold(table: list[list[float]], size: int, far: float) -> float:
    """The highest score that has to be rejected for the rate to stay at or below `far`.

    A threshold just above it keeps the rate; a threshold at it does not.
    """
    width = len(table[0])
    if size > width:  # galleries of all columns, size / width of them, taken as independent
        far, size = 1 - (1 - far) ** (width / size), width
    scores = sorted({score for row in table for score in row}, reverse=True)
    for score in scores:
        if rate_of_search(table, size, score) > Fraction(far) + Fraction(1, 10**9):
            return score
    return -math.inf
