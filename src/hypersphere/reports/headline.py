"""The top of a run's page: what was trained, the number that matters, and against what."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from .markup import escape, folded, html_table, note, section, short
from .run_data import RunData, flatten
from .settings import settings_section

__all__ = ["headline", "result_tables"]

_PARTS = ("data", "model", "head", "rotate", "regularizers", "optimizer")


def headline(run: RunData) -> Iterable[str]:
    """The first section, and under it what was set.

    Args:
        run: the run.

    Returns:
        HTML, section by section.
    """
    body = f"<p>{escape(_sentence(run))}</p>"
    number, what = _number(run)
    if number:
        body += f'<p class="headline"><strong>{escape(number)}</strong> {escape(what)}</p>'
    beside = run.results.get("baseline")
    if isinstance(beside, Mapping) and isinstance(beside.get("rows"), list):
        body += _beside(beside)
    body += folded("all numbers, versions and hardware", _cards(run))
    yield section("In short", body)
    yield from settings_section(run.config)


def _sentence(run: RunData) -> str:
    """What was trained on what, how long."""
    data, model = (_part_name(run.config.get(k)) for k in ("data", "model"))
    head = _part_name(run.config.get("head"))
    text = f"{model or 'A network'}" + (f" with the head {head}" if head else "")
    text += f", trained on {data}" if data else ""
    step = (run.summary.get("last") or {}).get("step")
    text += f" for {step:,} steps" if isinstance(step, int) else ""
    seconds = run.summary.get("seconds")
    return text + (f" in {seconds:.0f} s." if isinstance(seconds, (int, float)) else ".")


def _number(run: RunData) -> tuple[str, str]:
    """The number that matters, and what it is a number of."""
    found = run.results.get("verification")
    if isinstance(found, Mapping) and isinstance(found.get("accuracy"), float):
        pairs = sum(n for k in ("positives", "negatives") if isinstance(n := found.get(k), int))
        interval = _interval(found.get("interval"))
        what = f"of {pairs:,} pairs of classes never seen in training are told right{interval}"
        return f"{found['accuracy']:.2%}", what
    last = run.summary.get("last") or {}
    for metric in ("accuracy", "error", "loss"):
        if isinstance(last.get(metric), float):
            shown = f"{last[metric]:.4f}" if metric == "loss" else f"{last[metric]:.2%}"
            return shown, f"{metric} on the test part, at the last step"
    return "", ""


def _interval(bounds: Any) -> str:
    if not (isinstance(bounds, (list, tuple)) and len(bounds) == 2):
        return ""
    return f" (95 %: {100 * bounds[0]:.2f} to {100 * bounds[1]:.2f})"


def _beside(record: Mapping[str, Any]) -> str:
    """The run, its plain twin and the bare inputs: bars over the range that matters."""
    rows = [r for r in record["rows"] if isinstance(r, Mapping) and "accuracy" in r]
    low = min((r["accuracy"] for r in rows), default=0.0)
    floor = max(0.0, low - 0.1)  # the bars begin below the worst
    lines = []
    for row in rows:
        width = 100 * (row["accuracy"] - floor) / max(1 - floor, 1e-9)
        text = f"{row['accuracy']:.2%}"
        lines.append(
            f'<tr><th scope="row">{escape(row.get("name", ""))}</th><td class="number">{text}</td>'
            f'<td class="bar"><i style="width:{width:.1f}%"></i></td>'
            f'<td class="number">EER {row.get("eer", float("nan")):.2%}</td></tr>'
        )
    gain, ends = record.get("difference", 0.0), (record.get("low", 0.0), record.get("high", 0.0))
    told = (
        f"Against the plain network: {100 * gain:+.2f} points "
        f"(95 %: {100 * ends[0]:+.2f} to {100 * ends[1]:+.2f}, paired over "
        f"{record.get('folds', 0)} folds of {record.get('pairs', 0):,} pairs of unseen classes)."
    )
    bars = (
        f'<p class="note wide">The bars begin at {floor:.0%}.</p>'  # a phone has no room for them
    )
    return f'<table class="beside">{"".join(lines)}</table>' + note(told) + bars


def _cards(run: RunData) -> str:
    cards = [(key, name) for key in _PARTS if (name := _part_name(run.config.get(key)))]
    for kind in ("last", "best"):
        values = run.summary.get(kind)
        if isinstance(values, Mapping):
            cards += [(f"{kind} {k}", v) for k, v in values.items() if k not in ("time", "split")]
    unseen = run.summary.get("verification")
    if isinstance(unseen, Mapping):
        cards += [(f"{k}, classes never seen", v) for k, v in unseen.items()]
    if "seconds" in run.summary:
        cards.append(("trained for", f"{run.summary['seconds']:.0f} s"))
    versions = run.record.get("versions")
    if isinstance(versions, Mapping):
        shown = ("hypersphere", "torch", "python")
        cards.append(("versions", ", ".join(f"{k} {versions[k]}" for k in shown if k in versions)))
    hardware = run.record.get("hardware")
    if isinstance(hardware, Mapping):
        cards.append(("hardware", f"{hardware.get('cores')} cores, {hardware.get('processor')}"))
    for key in ("seed", "started", "commit"):
        if run.record.get(key) is not None:
            cards.append((key, run.record[key]))
    items = "".join(
        f"<div><span>{escape(k)}</span><strong>{escape(short(v))}</strong></div>" for k, v in cards
    )
    return f'<div class="glance">{items}</div>' if items else note("Nothing known.")


def _part_name(part: Any) -> str:
    """The name of a section of the config: its name or method, else the names of its entries."""
    if not isinstance(part, Mapping):
        return str(part) if part else ""
    named = part.get("name") or part.get("method")
    return str(named) if named else ", ".join(str(key) for key, value in part.items() if value)


# What result files call things, as a reader says it.
_RESULT_WORDS = {
    "std_error": "standard error",
    "auc": "area under the ROC curve",
    "eer": "equal error rate",
    "positives": "pairs of the same class",
    "negatives": "pairs of different classes",
    "weights": "weights of the run",
}


def result_tables(run: RunData) -> Iterable[str]:
    """A table for every evaluation that lies in the folder.

    Args:
        run: the run.

    Returns:
        HTML, section by section.
    """
    for name, result in run.results.items():
        if name == "baseline" and "rows" in result:
            continue  # it stands at the top
        skipped = ("kind", "interval")
        rows: list[tuple[Any, ...]] = [
            (k, v)
            for k, v in flatten(result).items()
            if isinstance(v, (int, float, str, bool)) and k not in skipped
        ]
        if isinstance(result.get("accuracy"), float) and result.get("interval"):
            rows = [(k, f"{v:.2%}{_interval(result['interval'])}" if k == "accuracy" else v)
                    for k, v in rows]  # fmt: skip
        cuts = result.get("thresholds")
        rows += _threshold_rows(cuts if isinstance(cuts, list) else [])
        points = result.get("tar_at_far")
        for point in points if isinstance(points, list) else ():
            if isinstance(point, Mapping) and point.get("far") is not None:
                tar, cut = point.get("tar"), point.get("threshold")
                at = f" at threshold {cut:.4f}" if isinstance(cut, float) else ""
                shown = f"{tar:.2%}{at}" if tar is not None else "too few negatives to say"
                rows.append((f"TAR at FAR {point['far']:g}", shown))
        if rows:
            title = name.replace("_", " ").replace("-", " ")
            unseen = name == "verification" and "step" in result  # written at the end of training
            title += " of classes never seen in training" if unseen else ""
            named = [(_RESULT_WORDS.get(k, k), *values) for k, *values in rows]
            yield section(title, html_table(["", ""], named))


def _threshold_rows(cuts: Sequence[Any]) -> Iterable[tuple[str, Any]]:
    """Thresholds of folds as their mean; those of false-accept rates one by one."""
    if cuts and all(isinstance(cut, float) for cut in cuts):
        yield "threshold on the cosine (mean of the folds)", sum(cuts) / len(cuts)
    for cut in cuts:
        if isinstance(cut, Mapping) and all(
            isinstance(cut.get(key), (int, float)) for key in ("value", "far", "low", "high")
        ):
            size = cut.get("gallery_size", 1)
            of = "of a pair" if size == 1 else f"of a search among {size:,}"
            interval = f"(95 %: {cut['low']:.4f} to {cut['high']:.4f})"
            yield f"at a false-accept rate {of} of {cut['far']:g}", f"{cut['value']:.4f} {interval}"
