"""Scores of a calibration that a gallery keeps, so that another rate can be fitted later."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from ..recognition.thresholds import Threshold, fit_threshold

MOST_KEPT = 100_000  # the highest scores that are kept
MOST_SCORES = 10_000_000  # that a file may claim


@dataclass(frozen=True)
class KeptScores:
    """The highest scores of unknown people.

    Args:
        scores: (k,) highest first.
        owners: (k,) the number of the person that each is of; None in files that do not say.
        total: how many scores there were; those that were not kept are lower.
        people: how many people they are of.
    """

    scores: Tensor
    owners: Tensor | None
    total: int
    people: int

    @classmethod
    def keep(cls, scores: Tensor, owners: Tensor) -> KeptScores:
        """Choose what is kept.

        Args:
            scores: (P,) all scores.
            owners: (P,) the number of the person that each is of, from 0.

        Returns:
            The highest of them.
        """
        highest = scores.sort(descending=True)
        order = highest.indices[:MOST_KEPT]
        people = int(owners.max()) + 1
        return cls(highest.values[:MOST_KEPT], owners[order], len(scores), people)

    def fit(self, far: float, gallery_size: int = 1, searched: int = 1) -> Threshold:
        """The threshold at a rate, as `fit_threshold` gives it of all scores.

        Args:
            far: the false-accept rate.
            gallery_size: number of people that are searched.
            searched: each score is the best among this many people.

        Returns:
            The threshold.

        Raises:
            ValueError: if there are too few scores for this rate, or too few of them were kept.
        """
        missing = self.total - len(self.scores)
        if missing and far * self.total >= len(self.scores):
            raise ValueError(
                f"only the {len(self.scores):,} highest of {self.total:,} scores were kept, which "
                f"is too few for a false-accept rate of {far:g}: calibrate again at this rate"
            )
        scores = torch.cat([self.scores, self.scores[-1:].expand(missing)])
        owners = self.owners
        if owners is not None:  # whose the missing ones are hardly matters: spread evenly
            owners = torch.cat([owners, torch.arange(missing) % self.people])
        return fit_threshold(scores, far, gallery_size, searched=searched, groups=owners)

    def record(self) -> dict[str, Any]:
        """The scores in types that JSON knows.

        Returns:
            What `from_record` reads.
        """
        owners = None if self.owners is None else self.owners.tolist()
        return {"scores": self.scores.tolist(), "owners": owners, "total": self.total}

    @classmethod
    def from_record(cls, record: Any, people: int | None) -> KeptScores:
        """Read back what `record` gave.

        Args:
            record: the entry.
            people: how many people the scores are of, if known.

        Returns:
            The scores.

        Raises:
            ValueError: if the entry is not what `record` writes.
        """
        if not isinstance(record, dict):
            raise ValueError("calibration: kept scores have to be an object")
        scores, owners, total = (record.get(key) for key in ("scores", "owners", "total"))
        if not (
            isinstance(scores, list)
            and len(scores) <= MOST_KEPT
            and all(isinstance(v, (int, float)) and math.isfinite(v) for v in scores)
        ):
            raise ValueError("calibration: kept scores have to be a list of numbers")
        if type(total) is not int or not len(scores) <= total <= MOST_SCORES:
            raise ValueError(f"calibration: {total!r} is not the number of scores")
        if len(scores) < min(total, MOST_KEPT):
            raise ValueError("calibration: scores are missing")
        if owners is not None and not (
            isinstance(owners, list)
            and len(owners) == len(scores)
            and all(type(v) is int and 0 <= v < (people or 0) for v in owners)
        ):
            raise ValueError("calibration: the kept scores are of people it does not have")
        numbers = None if owners is None else torch.tensor(owners, dtype=torch.long)
        return cls(torch.tensor(scores, dtype=torch.float32), numbers, total, people or 0)
