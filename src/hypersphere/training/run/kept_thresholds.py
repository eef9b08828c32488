"""The thresholds that a run folder keeps: side by side, each with the weights it was fitted with.

`threshold.json` has those of the last weights, which training writes, and `threshold-best.json`
those of the best. A threshold is added to the others of the same weights and replaces only the one
of the same gallery size and rate: a try at another rate changes nothing that was there.
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

from ..._reading import Unreadable, read_json
from ...evaluation.recognition.impostors import ThresholdsResult
from ...evaluation.recognition.thresholds import Threshold

__all__ = ["keep_thresholds", "kept_thresholds", "threshold_file"]


def threshold_file(folder: Path, weights: str) -> Path:
    """Where the thresholds of these weights are kept.

    Args:
        folder: the run folder.
        weights: "last" or "best".

    Returns:
        The file.
    """
    return folder / ("threshold.json" if weights == "last" else f"threshold-{weights}.json")


def keep_thresholds(
    folder: Path,
    found: ThresholdsResult,
    weights: str,
    step: int | None,
    part: str = "calibration",
) -> tuple[Path, ThresholdsResult]:
    """Add thresholds to those that the run folder has of the same weights.

    Args:
        folder: the run folder.
        found: the new thresholds.
        weights: "last" or "best", that they were fitted with.
        step: the training step of these weights, if known.
        part: the part of the data that they were fitted on, for the record.

    Returns:
        The file, and all that it holds now.
    """
    path = threshold_file(folder, weights)
    try:
        record = _read(path)
        old = _entries(record) if _same(record, weights, step) else []
        if record.get("flips", "unused") != found.flips:
            old = []  # scores of other features
    except (FileNotFoundError, ValueError):  # none yet, or damaged: it is written anew
        old = []
    new = {(entry.gallery_size, entry.far) for entry in found.thresholds}
    added = [replace(entry, part=part) for entry in found.thresholds]
    entries = [e for e in old if (e.gallery_size, e.far) not in new] + added
    entries.sort(key=lambda entry: (entry.gallery_size, -entry.far))
    together = ThresholdsResult(entries, found.refused, found.flips)
    return together.to_json(path, weights=weights, step=step), together


def kept_thresholds(folder: Path, weights: str, step: int | None) -> tuple[str, list[Threshold]]:
    """The thresholds of these weights.

    Args:
        folder: the run folder.
        weights: "last" or "best".
        step: the training step of these weights, if known.

    Returns:
        Flips of the features they belong to, and the thresholds; none where nothing was kept.

    Raises:
        ValueError: if a file is damaged, or there are thresholds of other weights only.
    """
    other = ""
    # Older versions kept those of either weights in threshold.json.
    for path in dict.fromkeys([threshold_file(folder, weights), threshold_file(folder, "last")]):
        try:
            record = _read(path)
        except FileNotFoundError:
            continue
        if _same(record, weights, step):
            return str(record.get("flips", "unused")), _entries(record)
        other = other or f"{record.get('weights', 'last')} weights (step {record.get('step')})"
    if other:
        raise ValueError(
            f"{folder} has thresholds of the {other}, none of the {weights} weights (step {step}): "
            f"`hypersphere evaluate threshold {folder} --weights {weights}` fits them"
        )
    return "unused", []


def _read(path: Path) -> dict[str, Any]:
    try:
        record = read_json(path)
    except Unreadable as error:
        raise ValueError(str(error)) from None
    if not isinstance(record, dict) or not isinstance(record.get("thresholds"), list):
        raise ValueError(f"{path} is damaged: it holds no thresholds")
    return record


def _same(record: dict[str, Any], weights: str, step: int | None) -> bool:
    """Whether a file's thresholds are of these weights: the best may also be the last."""
    if step is not None and record.get("step") is not None:
        return bool(record["step"] == step)
    return bool(record.get("weights", "last") == weights)


def _entries(record: dict[str, Any]) -> list[Threshold]:
    return [Threshold.from_dict(entry) for entry in record["thresholds"]]
