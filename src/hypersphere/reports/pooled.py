"""Several runs as methods over seeds: what they share is said once, seeds are pooled."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from statistics import fmean, stdev
from typing import Any

import numpy as np

from ..evaluation.paired import paired_difference
from .interactive import Plot, plot_layout, thin
from .markup import html_table, note, plot_box, section
from .run_data import RunData, flatten
from .style import color

__all__ = ["Group", "group_runs", "pooled_sections"]

# What may differ between runs of one method.
_APART: tuple[str, ...] = (
    *("seed", "run.", "train.threads", "train.quiet", "data.root", "fabric.", "parts."),
    *("dissertation.", "thesis."),
)
LONGEST_LABEL = 28


@dataclass
class Group:
    """The runs of one method.

    Args:
        label: what sets it apart from the others.
        runs: one per seed.
    """

    label: str
    runs: list[RunData]

    def values(self, kind: str, metric: str) -> dict[Any, float]:
        """One number per seed.

        Args:
            kind: "last", "best" or "verification".
            metric: the metric.

        Returns:
            Values by seed.
        """
        found = {}
        for index, run in enumerate(self.runs):
            value = (run.summary.get(kind) or {}).get(metric)
            if isinstance(value, (int, float)):
                found[run.record.get("seed", index)] = float(value)
        return found


def group_runs(runs: Sequence[RunData]) -> list[Group]:
    """Runs that differ in nothing but their seed, together.

    Args:
        runs: the runs.

    Returns:
        The groups, in the order of their first runs.
    """
    flat = [_settings(run) for run in runs]
    groups: list[tuple[dict[str, Any], Group]] = []
    for run, settings in zip(runs, flat, strict=True):
        for known, group in groups:
            if known == settings and settings and _new_seed(group, run):
                group.runs.append(run)
                break
        else:
            groups.append((settings, Group(run.name, [run])))
    keys = dict.fromkeys(key for settings, _ in groups for key in settings)
    apart = [k for k in keys if len({str(s.get(k)) for s, _ in groups}) > 1]
    for settings, group in groups:
        said = [str(settings[k]) for k in apart if settings.get(k) not in (None, {}, [])]
        label = ", ".join(said)
        if len(group.runs) > 1 and 0 < len(label) <= LONGEST_LABEL:
            group.label = label
    return _distinct([group for _, group in groups])


def _settings(run: RunData) -> dict[str, Any]:
    return {k: v for k, v in flatten(run.config).items() if not k.startswith(_APART)}


def _new_seed(group: Group, run: RunData) -> bool:
    return run.record.get("seed") not in [known.record.get("seed") for known in group.runs]


def _distinct(groups: list[Group]) -> list[Group]:
    seen: dict[str, int] = {}
    for group in groups:
        seen[group.label] = seen.get(group.label, 0) + 1
        if seen[group.label] > 1:
            group.label = f"{group.label} ({seen[group.label]})"
    return groups


def pooled_sections(groups: Sequence[Group], plots: dict[str, Any]) -> Iterable[str]:
    """The table of methods, paired differences, a dot per seed, and curves with bands.

    Args:
        groups: the methods; the first is the baseline of the differences.
        plots: takes the plots by name.

    Returns:
        HTML, section by section.
    """
    metrics = _metrics(groups)
    head = ["method", "seeds", *(f"{metric}{_of(kind)}" for kind, metric in metrics)]
    rows = [
        [g.label, len(g.runs), *(_spread(g.values(kind, metric)) for kind, metric in metrics)]
        for g in groups
    ]
    yield section("At a glance", html_table(head, rows))
    if metrics and any(len(group.runs) > 1 for group in groups):
        differences = _differences(groups, *metrics[0])
        if differences:
            name = f"{metrics[0][1]}{_of(metrics[0][0])}"
            text = note(
                f"{name}, seed by seed, less that of {groups[0].label}; a dot is a seed, the bar a "
                f"95 % interval (Student)."
            )
            columns = ["method", "difference", "95 % interval", "pairs"]
            plots["dots"] = _dots(groups, *metrics[0])
            dots = plot_box("dots", f"{name} of every seed")
            yield section("Paired differences", text + html_table(columns, differences) + dots)
    boxes = []
    for metric, plot in _curves(groups).items():
        plots[f"curve-{metric}"] = plot
        boxes.append(plot_box(f"curve-{metric}", f"{metric} over the iterations"))
    if boxes:
        text = note("Test values; lines are means over the seeds, bands reach from least to most.")
        yield section("Curves", text + f'<div class="grid">{"".join(boxes)}</div>')


def _of(kind: str) -> str:
    return {"verification": ", unseen classes", "best": " (best)"}.get(kind, "")


def _metrics(groups: Sequence[Group]) -> list[tuple[str, str]]:
    """(kind, metric), the most telling first."""
    order = [("verification", "accuracy"), ("verification", "eer"), ("last", "accuracy")]
    order += [("last", "error"), ("last", "loss"), ("best", "accuracy")]
    return [key for key in order if any(group.values(*key) for group in groups)]


def _spread(values: Mapping[Any, float]) -> str:
    numbers = list(values.values())
    if not numbers:
        return ""
    if len(numbers) == 1:
        return f"{numbers[0]:.4f}"
    return f"{fmean(numbers):.4f} ± {stdev(numbers):.4f}"


def _differences(groups: Sequence[Group], kind: str, metric: str) -> list[list[Any]]:
    base = groups[0].values(kind, metric)
    rows = []
    for group in groups[1:]:
        mine = group.values(kind, metric)
        shared = [seed for seed in mine if seed in base]
        if len(shared) > 1:
            found = paired_difference([mine[s] for s in shared], [base[s] for s in shared])
            interval = f"{found.low:+.4f} to {found.high:+.4f}"
            rows.append([group.label, f"{found.mean:+.4f}", interval, len(shared)])
    return rows


def _dots(groups: Sequence[Group], kind: str, metric: str) -> Plot:
    traces = []
    for index, group in enumerate(groups):
        values = list(group.values(kind, metric).values())
        spread = np.linspace(-0.12, 0.12, len(values)) if len(values) > 1 else np.zeros(len(values))
        traces.append(
            {"type": "scatter", "mode": "markers", "showlegend": False, "y": values,
             "x": [round(index + s, 3) for s in spread.tolist()], "hoverinfo": "y",
             "marker": {"color": color(index), "size": 9}}
        )  # fmt: skip
        if values:
            traces.append(
                {"type": "scatter", "mode": "lines", "showlegend": False, "hoverinfo": "skip",
                 "x": [index - 0.2, index + 0.2], "y": [fmean(values)] * 2,
                 "line": {"color": color(index), "width": 2}}
            )  # fmt: skip
    layout = plot_layout("", f"{metric}{_of(kind)}")
    layout["xaxis"] |= {
        "tickvals": list(range(len(groups))), "ticktext": [g.label for g in groups],
        "range": [-0.5, len(groups) - 0.5],
    }  # fmt: skip
    return {"data": traces, "layout": layout}


def _curves(groups: Sequence[Group]) -> dict[str, Plot]:
    plots: dict[str, Plot] = {}
    for metric in ("loss", "accuracy", "error"):
        traces: list[Plot] = []
        for index, group in enumerate(groups):
            traces += _band(group, metric, color(index))
        if traces:
            plots[metric] = {"data": traces, "layout": plot_layout("iteration", f"test {metric}")}
    return plots


def _band(group: Group, metric: str, tint: str) -> list[Plot]:
    """Mean and range over the seeds, at the steps that all of them have."""
    series = [dict(zip(*run.series("test", metric), strict=True)) for run in group.runs]
    series = [found for found in series if found]
    if not series:
        return []
    steps = sorted(set.intersection(*(set(found) for found in series)))
    values = np.array([[found[step] for step in steps] for found in series])
    if not steps:
        return []
    x, mean = thin(steps, values.mean(0).tolist())
    line: Plot = {"type": "scatter", "mode": "lines", "name": group.label, "x": x, "y": mean,
                  "line": {"color": tint, "width": 2}}  # fmt: skip
    if len(series) == 1:
        return [line]
    low, high = (thin(steps, bound.tolist())[1] for bound in (values.min(0), values.max(0)))
    rgb = ",".join(str(int(tint[i : i + 2], 16)) for i in (1, 3, 5))
    band: Plot = {"type": "scatter", "mode": "lines", "x": [*x, *x[::-1]], "y": [*high, *low[::-1]],
                  "fill": "toself", "fillcolor": f"rgba({rgb},0.15)", "line": {"width": 0},
                  "hoverinfo": "skip", "showlegend": False}  # fmt: skip
    return [band, line]
