"""Runs that the result file of a claim holds already: another machine goes on from there.

A run folder stays on the machine that trained it; results/claims/NAME.json travels. A run of the
file counts as ended if all settings that decide on its outcome are those of the claim now.

# Note [Digits of a record]
Values are rounded to twelve digits once, when a run has ended (`stored`). The file has those, in
percent for shares, and reading gives the same numbers back: a comparison of runs from the file is
that of the runs themselves. Files of before have four decimals (`kept_numbers`).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from hypersphere._reading import read_sealed, read_text
from hypersphere.commands._comparison import is_share
from hypersphere.training.campaign import Ended
from hypersphere.training.run.checkpoint import write_atomically

__all__ = ["ADVICE", "as_recorded", "earlier_record", "has_own", "is_recorded", "keep_aside"]
__all__ += ["kept_numbers", "recorded_trials", "recorded_values", "stored"]

ADVICE = "delete it or name another folder (--results); `claims run` then repeats its runs"
NOT_CONVERGED = "it is recorded as not converged"


def stored(value: float) -> float:
    """A value with the digits that a record keeps. Note [Digits of a record].

    >>> stored(2 / 3)
    0.666666666667
    """
    return float(f"{value:.12g}")


def as_recorded(value: float | None, metric: str) -> float | None:
    """A value as the file has it: shares in percent."""
    return value if value is None else stored(value * (100 if is_share(metric) else 1))


def _read(value: float | None, metric: str) -> float | None:
    return value if value is None else stored(value / (100 if is_share(metric) else 1))


def is_recorded(how: Ended) -> bool:
    """Whether a run is known from a record alone."""
    return "recorded" in how.summary


def has_own(how: Ended, kind: str) -> bool:
    """Whether the last or best test of a run is known, and not only the value that counts."""
    return kind in how.summary and how.summary[kind] is not how.summary.get("recorded")


def earlier_record(path: Path) -> dict[str, Any]:
    """The record in a file; an empty one if there is no file.

    Args:
        path: NAME.json of a claim.

    Raises:
        ValueError: if the file is damaged; it is not overwritten.
    """
    try:
        return read_sealed(path) if path.exists() else {}
    except ValueError as error:
        raise ValueError(f"{error}; {ADVICE}") from None


def recorded_trials(
    row: Mapping[str, Any], metric: str, seconds: float
) -> Iterator[tuple[dict[str, Any], Ended]]:
    """What was tried in tuning a method, and how it ended.

    Args:
        row: of the method.
        metric: the one that chooses. Trials that another one has judged are left out.
        seconds: of each trial, on average.

    Returns:
        The values that were tried, and how that run ended.
    """
    for trial in row["tuning"]:
        found = {metric: trial["value"]}
        summary = {"recorded": found, "last": found, "best": found}
        if trial["value"] is None:
            yield trial["values"], Ended(summary, NOT_CONVERGED, seconds)
        elif trial["metric"] == metric:
            yield trial["values"], Ended(summary, None, seconds)


def recorded_values(row: Mapping[str, Any], metrics: Sequence[str]) -> Iterator[tuple[int, Ended]]:
    """The seeds of a method that have all of these metrics, and how each ended.

    Args:
        row: of the method.
        metrics: what is asked for, the claim's own metric first.

    Returns:
        A seed, and how its run ended. "recorded" of the summary has the values that count, chosen
        among last and best as the claim does; "last" and "best" are of the claim's own metric.
    """
    values, own = row["values"], metrics[0]
    if not set(metrics) <= values.keys():
        return  # a comparison was added that asks for another one
    for seed in values[own]:
        if not all(seed in values[name] for name in metrics):
            continue
        found = {name: _read(values[name][seed], name) for name in metrics}
        summary: dict[str, Any] = {"recorded": found}
        for kind in ("last", "best"):
            if seed in row.get(kind, {}):
                summary[kind] = {own: _read(row[kind][seed], own)}
        summary.setdefault("last", found)  # of files of before, which have no other value
        # Those have no mark of divergence, and no value where the claim gave it none.
        lost = NOT_CONVERGED if None in found.values() else None
        reason = row.get("diverged", {}).get(seed, lost)
        yield int(seed), Ended(summary, reason, row["seconds"][seed])


def kept_numbers(new: dict[str, Any], old: Mapping[str, Any] | None) -> dict[str, Any]:
    """A comparison of recorded runs with the numbers that the file has for it.

    They were computed before values were rounded to four decimals, as the file has them.

    Args:
        new: the comparison, computed from the values in the file.
        old: the same comparison in the file, if it is there.

    Returns:
        `new`, with the numbers of `old` if no more than that rounding lies between them.
    """
    if old is None or old["values"].keys() != new["values"].keys():
        return new
    same = all(old[key] == new[key] for key in ("terms", "metric", "claimed", "not_converged"))
    rounding = 5.1e-5 * (1 + sum(map(abs, new["terms"].values())))
    gaps = [abs(value - old["values"][seed]) for seed, value in new["values"].items()]
    if not same or not all(gap <= rounding for gap in gaps):
        return new
    keys = ["values", "mean", "low", "high"]
    keys += ["verdict"] if "unfinished" not in (old["verdict"], new["verdict"]) else []
    keys += ["share_of_text"] if old["text"] == new["text"] else []
    return {**new, **{key: old[key] for key in keys}}


def keep_aside(path: Path) -> Path:
    """Copy a record that is about to be replaced into the folder `before` beside it.

    Args:
        path: the record.

    Returns:
        The copy; under a name with a number if another record has been kept before.
    """
    text, number = read_text(path), 1
    while True:
        name = path.name if number == 1 else f"{path.stem}-{number}{path.suffix}"
        kept = path.parent / "before" / name
        if not kept.exists():
            kept.parent.mkdir(exist_ok=True)
            write_atomically(kept, text)
            return kept
        if read_text(kept) == text:
            return kept
        number += 1
