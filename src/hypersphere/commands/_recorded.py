"""Runs that the result file of a claim holds already: another machine goes on from there.

A run folder stays on the machine that trained it; results/claims/NAME.json travels. A run of the
file counts as ended if all settings that decide on its outcome are those of the claim now.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from hypersphere._reading import read_sealed
from hypersphere.commands._comparison import is_share
from hypersphere.training.campaign import Ended

__all__ = ["earlier_record", "recorded_trials", "recorded_values"]


def earlier_record(path: Path, tune: Mapping[str, Any]) -> dict[str, Any]:
    """The record in a file, if it was tuned over the same values; else an empty one.

    Args:
        path: NAME.json of a claim.
        tune: values of each tuned setting, as the claim has them now.

    Raises:
        ValueError: if the file is damaged; it is not overwritten.
    """
    if not path.exists():
        return {}
    record = read_sealed(path)
    return record if record.get("tune") == dict(tune) else {}


def recorded_trials(
    row: Mapping[str, Any], seconds: float
) -> Iterator[tuple[dict[str, Any], Ended]]:
    """What was tried in tuning a method, and how it ended; `seconds` of each on average."""
    for trial in row["tuning"]:
        yield trial["values"], _ended({trial["metric"]: trial["value"]}, seconds)


def recorded_values(row: Mapping[str, Any], metrics: Sequence[str]) -> Iterator[tuple[int, Ended]]:
    """The seeds of a method that have all of these metrics, and how each ended."""
    of_metric = row["values"]
    if not set(metrics) <= of_metric.keys():
        return  # a comparison was added that asks for another one
    for seed in of_metric[metrics[0]]:
        if all(seed in of_metric[name] for name in metrics):
            found = {name: of_metric[name][seed] for name in metrics}
            shares = {
                name: number if number is None or not is_share(name) else number / 100
                for name, number in found.items()
            }
            yield int(seed), _ended(shares, row["seconds"][seed])


def _ended(values: Mapping[str, float | None], seconds: float) -> Ended:
    if None in values.values():
        return Ended({}, "it is recorded as not converged", seconds)
    # A record has one value of each metric, chosen among last and best as the claim does.
    return Ended({"last": dict(values), "best": dict(values)}, None, seconds)
