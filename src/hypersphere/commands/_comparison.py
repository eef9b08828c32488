"""Several methods over the same seeds: their values, paired differences, and the table."""

from __future__ import annotations

import math
import statistics
import textwrap
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

from hypersphere.evaluation.paired import paired_difference, verdict
from hypersphere.evaluation.results import format_table
from hypersphere.training.progress import is_share

__all__ = ["Method", "better", "metric_value", "printed", "result_record"]
__all__ += ["spread", "table"]


@dataclass
class Method:
    """One row of a comparison.

    Args:
        name: its short name.
        spec: the config and its variants, as they were given.
        recipe: the section ``dissertation`` of the config.
        last: value of the last test by seed; None where the run did not converge.
        best: value of the best test by seed, where it is known.
        seconds: training time by seed.
        tuning: what was tried, with the values on the held-out samples.
        chosen: the settings that tuning has chosen.
        failed: whether no run of tuning converged, so that no seed is trained.
    """

    name: str
    spec: str
    recipe: Mapping[str, Any]
    last: dict[int, float | None] = field(default_factory=dict)
    best: dict[int, float | None] = field(default_factory=dict)
    seconds: dict[int, float] = field(default_factory=dict)
    tuning: list[dict[str, Any]] = field(default_factory=list)
    chosen: dict[str, Any] = field(default_factory=dict)
    failed: bool = False


def better(metric: str) -> Literal["lower", "higher"]:
    """The side on which a metric is better.

    >>> better("top5_error"), better("accuracy")
    ('lower', 'higher')
    """
    words = ("error", "loss", "eer", "distance", "frechet")
    return "lower" if any(word in metric for word in words) else "higher"


def metric_value(summary: Mapping[str, Any], kind: str, metric: str, name: str) -> float:
    """One value of a summary.

    Args:
        summary: what summary.json says.
        kind: "last" or "best".
        metric: of the test, of what hooks measured at the end ("energy_change", "fgsm_accuracy"),
            or "verification_accuracy", "verification_eer", "verification_auc", or of few-shot
            methods "baseline_accuracy", "baseline++_accuracy".
        name: of the method, for the message.

    Raises:
        ValueError: if the run has no such metric.
    """
    found, pairs = summary.get(kind, {}), summary.get("verification") or {}
    few, measured = summary.get("few_shot") or {}, summary.get("measured") or {}
    if not all(isinstance(part, Mapping) for part in (found, pairs, few, measured)):
        raise ValueError(f"summary.json of {name} is damaged: {kind!r} has to be an object")
    values = {**found, **{f"verification_{key}": value for key, value in pairs.items()}}
    for method, result in few.items():
        values[f"{method}_accuracy"] = result.get("accuracy") if isinstance(result, dict) else None
    values.update(measured)
    if metric not in values:
        known = ", ".join(k for k in values if k != "step")
        raise ValueError(f"the test of {name} has no {metric!r}; it has: {known}")
    value = values[metric]
    if isinstance(value, bool) or not isinstance(value, (int, float)) or not math.isfinite(value):
        raise ValueError(
            f"summary.json of {name} is damaged: {kind}.{metric} has to be a finite number; got "
            f"{value!r}"
        )
    return float(value)


def printed(recipe: Mapping[str, Any], metric: str) -> float | None:
    """The number that the dissertation prints for a metric of a recipe, or None.

    Args:
        recipe: the section ``dissertation`` of the recipe.
        metric: name of the metric.
    """
    if recipe["metric"] == metric:
        value: float | None = recipe["value"]
        return value
    return (recipe.get("also") or {}).get(metric)


def difference(method: Method, baseline: Method, metric: str) -> dict[str, Any] | None:
    """Mean paired difference to the baseline, its interval and the verdict, over common seeds."""
    pairs = [
        (value, baseline.last[seed])
        for seed, value in method.last.items()
        if value is not None and baseline.last.get(seed) is not None
    ]
    if method is baseline or not pairs:
        return None
    found = paired_difference([p[0] for p in pairs], [p[1] for p in pairs])  # type: ignore[misc]
    low, high = (None if math.isinf(v) else v for v in (found.low, found.high))
    judged = verdict(found, better(metric))
    return {"mean": found.mean, "low": low, "high": high, "pairs": found.pairs, "verdict": judged}


def table(
    methods: Sequence[Method], metric: str, baseline: Method | None = None, width: int | None = None
) -> str:
    """Name, last and best value, the dissertation's number if it has one, difference to the
    baseline, and the tuned settings.

    Args:
        methods: the rows.
        metric: of the columns.
        baseline: the row that the others are compared with. Default: none.
        width: columns of the terminal. A table that is wider gets short heads above a line that
            says what they mean, then one decimal less, then no column of best values.

    Returns:
        The lines.
    """
    digits = 2 if is_share(metric) else 4
    unit = f"{metric}{' (%)' if is_share(metric) else ''}"
    shown = _columns(methods, metric, baseline, digits, (f"last {unit}", f"best {unit}"))
    title = f"{unit}, mean +- deviation"
    title += "" if baseline is None else f"; differences: to {baseline.name}, 95 % interval"
    if width is None or _width(shown) <= width:
        return shown
    for fewer, heads in ((0, ("last", "best")), (1, ("last", "best")), (1, ("last",))):
        shown = _columns(methods, metric, baseline, digits - fewer, heads)
        if _width(shown) <= width:
            break
    return "\n".join([*textwrap.wrap(title, width, break_on_hyphens=False), shown])


def _width(text: str) -> int:
    return max(map(len, text.splitlines()))


def _columns(
    methods: Sequence[Method],
    metric: str,
    baseline: Method | None,
    digits: int,
    heads: tuple[str, ...],
) -> str:
    """The table with so many decimals and these heads of the last and best values."""
    columns: dict[str, list[str]] = {
        "config": [method.name for method in methods],
        heads[0]: [_last_text(method, metric, digits) for method in methods],
    }
    if len(heads) > 1:
        columns[heads[1]] = [
            spread([v for v in method.best.values() if v is not None], metric, digits)
            for method in methods
        ]
    numbers = [printed(method.recipe, metric) for method in methods]
    if any(number is not None for number in numbers):  # an empty column would only take room
        head = "dissertation" if " " in heads[0] else "text"
        columns[head] = ["" if number is None else f"{number:g}" for number in numbers]
    if baseline is not None:
        head = f"against {baseline.name}" if " " in heads[0] else "difference"
        columns[head] = [_against(method, baseline, metric, digits) for method in methods]
    keys = dict.fromkeys(key for m in methods for t in m.tuning for key in t["values"])
    keys |= dict.fromkeys(key for method in methods for key in method.chosen)
    names = [key.rpartition(".")[2] for key in keys]
    for key, name in zip(keys, names, strict=True):
        values = [_short(method.chosen.get(key, "-")) for method in methods]
        columns[name if names.count(name) == 1 else key] = values
    return format_table(list(zip(*columns.values(), strict=True)), header=list(columns))


def spread(values: Sequence[float | None], metric: str, digits: int | None = None) -> str:
    """'97.31 +- 0.12': mean and sample deviation of what converged, in percent for shares.

    >>> spread([0.9731, 0.9743, None], "accuracy")
    '97.37 +- 0.08, 1 not converged'
    """
    scale, usual = (100.0, 2) if is_share(metric) else (1.0, 4)
    digits = usual if digits is None else digits
    found = [scale * v for v in values if v is not None]
    lost = len(values) - len(found)
    if not found:
        return f"not converged ({lost})" if lost else "-"
    deviation = statistics.stdev(found) if len(found) > 1 else 0.0
    text = f"{statistics.fmean(found):.{digits}f} +- {deviation:.{digits}f}"
    return f"{text}, {lost} not converged" if lost else text


def _last_text(method: Method, metric: str, digits: int) -> str:
    if method.failed:
        return "not converged (tuning)"
    return spread(list(method.last.values()), metric, digits)


def _against(method: Method, baseline: Method, metric: str, digits: int) -> str:
    """The difference of a row to the baseline; why there is none, if runs diverged."""
    if method is baseline:
        return ""
    found = difference(method, baseline, metric)
    if found is None:
        lost = any(m.failed or None in m.last.values() for m in (method, baseline))
        return "not converged" if lost else "-"
    scale = 100.0 if is_share(metric) else 1.0
    mean = f"{scale * found['mean']:+.{digits}f}"
    if found["low"] is None:
        return mean
    low, high = (f"{scale * found[k]:+.{digits}f}" for k in ("low", "high"))
    return f"{mean} [{low}, {high}] {found['verdict']}"


def _short(value: Any) -> str:
    return f"{value:g}" if isinstance(value, float) else str(value)


def result_record(
    methods: Sequence[Method], metric: str, command: str, baseline: Method | None = None
) -> dict[str, Any]:
    """The comparison as a result file: `reports.markdown_table` sets it beside the dissertation.

    "ours" is the last test value of each seed, in percent for shares.
    """
    scale = 100.0 if is_share(metric) else 1.0
    sources = dict.fromkeys(m.recipe["source"] for m in methods if m.recipe["source"])
    rows = []
    for method in methods:
        seeds = sorted(method.last)  # not in the order in which the runs ended
        last = [method.last[seed] for seed in seeds]
        ours = [round(scale * v, 6) for v in last if v is not None]
        row: dict[str, Any] = {
            "name": method.recipe["row"] or method.name,
            "label": method.name,
            "spec": method.spec,
            "metric": metric,
            "seeds": seeds,
            "last": last,
            "best": [method.best.get(seed) for seed in seeds],
            "seconds": [round(method.seconds[seed], 2) for seed in seeds],
            "recipe": dict(method.recipe),
            "ours": ours,
            "not_converged": sum(v is None for v in method.last.values()),
            "dissertation": printed(method.recipe, metric),
            "differs": method.recipe["note"] or "none",
        }
        if method.tuning:
            row.update(tuning=method.tuning, chosen=method.chosen)
            row["tuning_failed"] = method.failed
        if baseline is not None:
            row["difference"] = difference(method, baseline, metric)
        rows.append(row)
    return {
        "table": ", ".join(sources) or "comparison",
        "unit": f"{metric} (%)" if is_share(metric) else metric,
        "baseline": None if baseline is None else baseline.name,
        "command": command,
        "rows": rows,
    }
