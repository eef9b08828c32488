"""From which score a gallery says yes: given by hand, or fitted at a false-accept rate and kept."""

from __future__ import annotations

import math
import warnings
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import torch

from ..recognition.thresholds import Threshold, check_threshold, fit_threshold
from .kept_scores import KeptScores

if TYPE_CHECKING:
    from .scores import ImpostorScores

__all__ = ["Decision", "NoThreshold", "optional_threshold"]

ALLOWED_GROWTH = 1.1  # of the false-accept rate, before anybody is warned
MOST_PAIRS = 1 << 22  # single scores that the threshold of pairs is fitted on
HOW = (
    "fit one with pictures of people who are not enrolled: Gallery.calibrate(samples, labels, "
    "far=0.01), or `hypersphere gallery calibrate GALLERY --run RUN --images DIR --far 0.01`"
)


class NoThreshold(UserWarning):
    """A gallery was asked for a decision without a threshold to decide by."""


def optional_threshold(threshold: Any) -> float | Threshold | None:
    """Refuse what is neither a threshold nor None.

    Args:
        threshold: a cosine, a `Threshold`, or None.

    Returns:
        The threshold.
    """
    return None if threshold is None else check_threshold(threshold)


@dataclass
class Decision:
    """The thresholds of a gallery.

    Args:
        search: least score from which a search gives a name.
        pair: least score from which a claimed name is confirmed. Default: `search`.
        impostors: best scores of the searches by unknown people at the calibration.
        people: how many people each of them was compared with.
        rows: how many features the gallery had; 0 in files that do not say.
        impostor_pairs: single scores of unknown people and people of the gallery.
    """

    search: float | Threshold | None = None
    pair: Threshold | None = None
    impostors: KeptScores | None = None
    people: int = 0
    rows: int = 0
    impostor_pairs: KeptScores | None = None

    @classmethod
    def fit(
        cls, scores: ImpostorScores, labels: Sequence[str], people: int, rows: int, far: float
    ) -> Decision:
        """Fit both thresholds.

        Args:
            scores: of people against others.
            labels: who each sample is.
            people: number of people in the gallery.
            rows: number of features in the gallery.
            far: the false-accept rate.

        Returns:
            The decision.
        """
        number = {label: i for i, label in enumerate(dict.fromkeys(labels))}
        whose = torch.tensor([number[label] for label in labels])
        of_pairs = whose[scores.owner]
        return cls(
            fit_threshold(scores.best, far, people, searched=scores.searched, groups=whose),
            fit_threshold(scores.single, far, groups=of_pairs),
            KeptScores.keep(scores.best, whose),
            scores.searched,
            rows,
            KeptScores.keep(scores.single, of_pairs),
        )

    def at(self, far: float, people: int, rows: int) -> Threshold:
        """The threshold of a search at another rate, from the scores that were kept.

        Args:
            far: the false-accept rate.
            people: number of people in the gallery now.
            rows: number of features in the gallery now.

        Returns:
            The threshold; higher where the gallery has grown since the calibration.

        Raises:
            ValueError: if no scores were kept, or too few for this rate.
        """
        if self.impostors is None:
            raise ValueError(f"the gallery was never calibrated, so it knows no impostors: {HOW}")
        # Twice the features are twice the comparisons, as twice the people are.
        compared = math.ceil(self.people * rows / self.rows) if self.rows else 0
        found = self.impostors.fit(far, max(people, compared), self.people)
        return replace(found, gallery_size=people)

    def pair_at(self, far: float) -> Threshold | None:
        """The threshold of a single comparison at another rate.

        Args:
            far: the false-accept rate.

        Returns:
            The threshold; None where no scores of pairs were kept.
        """
        if self.pair is not None and self.pair.far == far:
            return self.pair
        return self.impostor_pairs.fit(far) if self.impostor_pairs is not None else None

    def outgrown(self, people: int, rows: int, pair: bool = False) -> str:
        """What to say where a gallery has grown since its threshold was fitted.

        Args:
            people: number of people in the gallery now.
            rows: number of features in the gallery now.
            pair: of a claimed name, which is compared with the features of one person.

        Returns:
            The sentence; empty where the false-accept rate is about what was asked for.
        """
        found = self.pair if pair else self.search
        if not isinstance(found, Threshold) or not isinstance(self.search, Threshold):
            return ""
        fitted, before = self.search.gallery_size, self.rows
        more_rows = rows / before if before else 0.0
        growth = more_rows * fitted / max(people, 1) if pair else max(people / fitted, more_rows)
        far = found.far_at(growth * found.gallery_size)
        if far <= ALLOWED_GROWTH * found.far:
            return ""
        was, now = f"{fitted} people", f"{people}"
        if before:
            was, now = f"{before} features of {was}", f"{rows} of {now}"
        return (
            f"the threshold was fitted for {was} and the gallery has {now}: expect a false-accept "
            f"rate of {far:.2g} in place of {found.far:g}; calibrate again"
        )

    def least(self, people: int, rows: int, pair: bool = False) -> float | None:
        """The score to reach; warns where there is none, or where the gallery has outgrown it.

        Args:
            people: number of people in the gallery.
            rows: number of features in the gallery.
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
        if grown := self.outgrown(people, rows, pair):
            warnings.warn(grown, stacklevel=4)
        return float(found)

    def record(self) -> dict[str, Any]:
        """The decision in types that JSON knows.

        Returns:
            "threshold" (a number or null), and "calibration" where there was one.
        """
        record: dict[str, Any] = {"threshold": None if self.search is None else float(self.search)}
        if isinstance(self.search, Threshold):
            kept = self.impostors.record() if self.impostors else {"scores": [], "total": 0}
            record["calibration"] = {
                "search": self.search.to_dict(),
                "pair": self.pair.to_dict() if self.pair else None,
                "impostors": kept["scores"],
                "owners": kept.get("owners"),
                "searches": kept["total"],
                "people": self.people,
                "rows": self.rows,
                "pairs": self.impostor_pairs.record() if self.impostor_pairs else None,
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
        pair, pairs = (calibration.get(key) for key in ("pair", "pairs"))
        if search.value != threshold:
            raise ValueError("calibration: it does not belong to the threshold")
        # Older files have neither "rows" nor whose the scores are.
        people, rows = calibration.get("people"), calibration.get("rows", 0)
        for key, value in (("people", people), ("rows", rows)):
            if type(value) is not int or value < 0:
                raise ValueError(f"calibration: {key} has to be a number; got {value!r}")
        names = {"scores": "impostors", "owners": "owners", "total": "searches"}
        kept = KeptScores.from_record(
            {key: calibration.get(name) for key, name in names.items()}, search.people
        )
        return cls(
            search,
            None if pair is None else Threshold.from_dict(pair),
            kept if kept.total else None,
            people,  # type: ignore[arg-type]
            rows,
            None if pairs is None else KeptScores.from_record(pairs, search.people),
        )
