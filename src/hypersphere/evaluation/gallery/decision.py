"""From which score a gallery says yes: given by hand, or fitted at a false-accept rate and kept."""

from __future__ import annotations

import math
import warnings
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from ..recognition.thresholds import Threshold, fit_threshold

if TYPE_CHECKING:
    from .scores import ImpostorScores

__all__ = ["Decision", "NoThreshold", "check_threshold", "outgrown"]

MOST_KEPT = 100_000  # best scores of unknown people that are kept, highest first
MOST_SEARCHES = 10_000_000  # that a file may claim
MOST_PAIRS = 1 << 22  # single scores that the threshold of pairs is fitted on
HOW = (
    "fit one with pictures of people who are not enrolled: Gallery.calibrate(samples, labels, "
    "far=0.01), or `hypersphere gallery calibrate GALLERY --run RUN --images DIR --far 0.01`"
)


class NoThreshold(UserWarning):
    """A gallery was asked for a decision without a threshold to decide by."""


def check_threshold(threshold: Any) -> float | Threshold | None:
    """Refuse what is no threshold.

    Args:
        threshold: a cosine, a `Threshold`, or None.

    Returns:
        The threshold.
    """
    if threshold is None or isinstance(threshold, Threshold):
        return threshold
    if isinstance(threshold, (str, bytes)) or not math.isfinite(threshold):
        raise ValueError(f"threshold: expected a finite number (a cosine); got {threshold!r}")
    return float(threshold)


def outgrown(threshold: float | Threshold | None, people: int) -> str:
    """What to say where a gallery has more people than its threshold was fitted for.

    Args:
        threshold: of a search.
        people: number of people in the gallery.

    Returns:
        The sentence; empty where the false-accept rate is about what was asked for.
    """
    if not isinstance(threshold, Threshold) or threshold.far_at(people) <= 1.1 * threshold.far:
        return ""
    return (
        f"the threshold was fitted for {threshold.gallery_size} people and the gallery has "
        f"{people}: expect a false-accept rate of {threshold.far_at(people):.2g} in place of "
        f"{threshold.far:g}; calibrate again"
    )


@dataclass
class Decision:
    """The thresholds of a gallery.

    Args:
        search: least score from which a search gives a name.
        pair: least score from which a claimed name is confirmed. Default: `search`.
        impostors: (P,) best scores of the searches by unknown people at the calibration, highest
            first; from these another rate can be fitted later.
        searches: how many searches there were.
        people: how many people each of them was compared with.
    """

    search: float | Threshold | None = None
    pair: Threshold | None = None
    impostors: Tensor = field(default_factory=lambda: torch.empty(0))
    searches: int = 0
    people: int = 0

    @classmethod
    def fit(
        cls, scores: ImpostorScores, labels: Sequence[str], people: int, far: float
    ) -> Decision:
        """Fit both thresholds.

        Args:
            scores: of people against others.
            labels: who each sample is.
            people: number of people in the gallery.
            far: the false-accept rate.

        Returns:
            The decision.
        """
        best, searched = scores.best, scores.searched
        search = fit_threshold(best, far, people, searched=searched, groups=labels)
        pair = fit_threshold(scores.single, far, groups=[labels[i] for i in scores.owner])
        kept = best.sort(descending=True).values[:MOST_KEPT]
        return cls(search, pair, kept, len(best), searched)

    def at(self, far: float, people: int) -> Threshold:
        """The threshold of a search at another rate, from the scores that were kept.

        Args:
            far: the false-accept rate.
            people: number of people in the gallery.

        Returns:
            The threshold.

        Raises:
            ValueError: if no scores were kept, or too few for this rate.
        """
        if self.searches == 0:
            raise ValueError(f"the gallery was never calibrated, so it knows no impostors: {HOW}")
        missing = self.searches - len(self.impostors)  # those that were not kept are lower
        scores = torch.cat([self.impostors, self.impostors[-1:].expand(missing)])
        return fit_threshold(scores, far, people, searched=self.people)

    def least(self, people: int, pair: bool = False) -> float | None:
        """The score to reach; warns where there is none, or where the gallery has outgrown it.

        Args:
            people: number of people in the gallery.
            pair: of a claimed name, not of a search.

        Returns:
            The score; None without a threshold.
        """
        found = self.pair if pair and self.pair is not None else self.search
        if found is None:
            warnings.warn(
                f"the gallery has no threshold, so it cannot tell an unknown person: {HOW}",
                NoThreshold,
                stacklevel=4,
            )
            return None
        grown = "" if pair else outgrown(found, people)
        if grown:
            warnings.warn(grown, stacklevel=4)
        return float(found)

    def record(self) -> dict[str, Any]:
        """The decision in types that JSON knows.

        Returns:
            "threshold" (a number or null), and "calibration" where there was one.
        """
        record: dict[str, Any] = {"threshold": None if self.search is None else float(self.search)}
        if isinstance(self.search, Threshold):
            record["calibration"] = {
                "search": self.search.to_dict(),
                "pair": self.pair.to_dict() if self.pair else None,
                "impostors": self.impostors.tolist(),
                "searches": self.searches,
                "people": self.people,
            }
        return record

    @classmethod
    def from_record(cls, threshold: float | None, calibration: Any) -> Decision:
        """Read back what `record` gave.

        Args:
            threshold: a number or None.
            calibration: the entry "calibration", or None.

        Returns:
            The decision.

        Raises:
            ValueError: if the entry is not what `record` writes.
        """
        if calibration is None:
            return cls(None if threshold is None else float(threshold))
        if not isinstance(calibration, dict):
            raise ValueError("calibration: expected an object")
        search = Threshold.from_dict(calibration.get("search"))
        pair = calibration.get("pair")
        impostors, counts = calibration.get("impostors"), []
        if not (
            isinstance(impostors, list)
            and len(impostors) <= MOST_KEPT
            and all(isinstance(v, (int, float)) and math.isfinite(v) for v in impostors)
        ):
            raise ValueError("calibration: impostors has to be a list of scores")
        for key in ("searches", "people"):
            value = calibration.get(key)
            if type(value) is not int or value < 0:
                raise ValueError(f"calibration: {key} has to be a number; got {value!r}")
            counts.append(value)
        short = len(impostors) < MOST_KEPT
        if (
            search.value != threshold
            or counts[0] < len(impostors)
            or counts[0] > MOST_SEARCHES
            or (short and counts[0] != len(impostors))
        ):
            raise ValueError("calibration: it does not belong to the threshold")
        return cls(
            search,
            None if pair is None else Threshold.from_dict(pair),
            torch.tensor(impostors, dtype=torch.float32),
            *counts,
        )
