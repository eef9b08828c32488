"""Results of claims: what results/claims/*.json say, as tables for the terminal and the docs."""

from __future__ import annotations

import math
import statistics
import textwrap
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from .._reading import read_sealed

__all__ = ["claims_folder", "claims_section", "claims_table", "read_claims", "verdict_counts"]
__all__ += ["readable_claims", "terminal_claim", "terminal_table"]

VERDICTS = ("holds", "open", "reversed", "unfinished")
WIDTH = 80


def claims_folder() -> Path:
    """The results of the claims: in the installed package, or at the top of a checkout."""
    package = Path(__file__).resolve().parents[1]
    inside = package / "results" / "claims"
    return inside if inside.is_dir() else package.parents[1] / "results" / "claims"


def read_claims(folder: Path) -> list[dict[str, Any]]:
    """The records of a folder, in the order of the dissertation.

    Args:
        folder: with a NAME.json for each claim.

    Returns:
        The records.

    Raises:
        ValueError: if a file is no record of a claim.
    """
    records, problems = readable_claims(folder)
    if problems:
        raise ValueError(problems[0])
    return records


def readable_claims(folder: Path) -> tuple[list[dict[str, Any]], list[str]]:
    """The records of a folder that can be shown, and what is wrong with the others.

    Args:
        folder: with a NAME.json for each claim.

    Returns:
        The records in the order of the dissertation, and a sentence for each file that is none.
    """
    records, problems = [], []
    for path in sorted(folder.glob("*.json")):
        try:
            record = read_sealed(path)
            if problem := _problem(record):
                raise ValueError(f"{path} is no result of a claim: {problem}")
            records.append(record)
        except (OSError, ValueError) as error:
            problems.append(str(error))
    return sorted(records, key=lambda record: _place(record["source"])), problems


def _problem(record: Mapping[str, Any]) -> str:
    """What keeps a record from being shown; empty if nothing does."""
    lists = ("comparisons", "methods")
    for key in ("name", "claim", "source", "command", *lists):
        expected = list if key in lists else str
        if not isinstance(record.get(key), expected) or not record[key]:
            return f"expected {key} as a {expected.__name__}, got {str(record.get(key))[:40]!r}"
    for one in record["comparisons"]:
        if not isinstance(one, dict) or one.get("verdict") not in VERDICTS:
            return f"expected comparisons with a verdict, one of {', '.join(VERDICTS)}"
        numbers = [one.get(key, "none") for key in ("mean", "low", "high", "text")]
        if not all(n is None or type(n) in (int, float) for n in numbers):
            return f"expected numbers as mean, low, high and text, got {str(numbers)[:60]}"
        lost = one.get("not_converged")
        if not isinstance(one.get("values"), dict) or type(lost) is not int:
            return "expected comparisons with values by seed and a number not_converged"
    return ""


def _place(source: str) -> tuple[list[int], str]:
    """Where a source stands: chapters by number, what is ours at the end.

    >>> _place("Table 5.10") > _place("Table 5.2"), _place("ours") > _place("Table 7.3")
    (True, True)
    """
    for word in source.replace(",", " ").split():
        parts = word.strip("()").split(".")
        if len(parts) == 2 and all(part.isdigit() for part in parts):
            return [int(part) for part in parts], source
        if len(parts) == 2 and parts[1].isdigit():  # appendix A belongs to chapter 2, and so on
            return [ord(parts[0][-1]) - ord("A") + 2, 100 + int(parts[1])], source
    return [99], source


def verdict_counts(records: Sequence[Mapping[str, Any]]) -> dict[str, int]:
    """How many claims have each verdict, by their first comparison.

    Args:
        records: from `read_claims`.

    Returns:
        The numbers of "holds", "open", "reversed" and "unfinished".
    """
    counts = Counter(record["comparisons"][0]["verdict"] for record in records)
    return {verdict: counts[verdict] for verdict in VERDICTS}


def terminal_table(records: Sequence[Mapping[str, Any]]) -> str:
    """The claims at 80 columns: source, verdict, difference and interval, then the sentence.

    Args:
        records: from `read_claims`.

    Returns:
        The text.
    """
    lines = [_row("claim", "verdict", "difference [95 % interval]", "text", "seeds")]
    lines.append("-" * (WIDTH - 1))
    for record in records:
        first = record["comparisons"][0]
        lines.append(_row(record["name"], *_cells(record, first)))
        sentence = f"{record['claim']} ({record['source']})"
        lines += textwrap.wrap(sentence, WIDTH - 2, initial_indent="  ", subsequent_indent="  ")
    counts = ", ".join(f"{n} {name}" for name, n in verdict_counts(records).items() if n)
    told = (
        f"{len(records)} claims: {counts}. Differences are in percentage points where the metric "
        "is a share. `hypersphere claims NAME` shows one with all its comparisons, `hypersphere "
        "claims run NAME` repeats it; docs/results.md has all."
    )
    lines += ["", *textwrap.wrap(told, WIDTH)]
    return "\n".join(lines)


def terminal_claim(record: Mapping[str, Any]) -> str:
    """One claim at 80 columns: its sentence, all comparisons, what was found, the command.

    Args:
        record: one of `read_claims`.

    Returns:
        The text.
    """
    lines = [record["name"], *textwrap.wrap(f"{record['claim']} ({record['source']})", WIDTH), ""]
    lines.append(_row("compared", "verdict", "difference [95 % interval]", "text", "seeds"))
    lines.append("-" * (WIDTH - 1))
    for one in record["comparisons"]:
        *above, last = textwrap.wrap(f"{one['label']}, {one['metric'].replace('_', ' ')}", 26)
        lines += [*above, _row(last, *_cells(record, one))]
    for text in (record.get("protocol"), record.get("found")):
        lines += ["", *textwrap.wrap(text, WIDTH)] if text else []
    return "\n".join([*lines, "", record["command"]])


def _row(name: str, verdict: str, difference: str, text: str, seeds: str) -> str:
    return f"{name:<26} {verdict:<10} {difference:<26} {text:>6}  {seeds}"


def _cells(record: Mapping[str, Any], one: Mapping[str, Any]) -> tuple[str, str, str, str]:
    """Verdict, difference, the text's and the seeds of a comparison."""
    text = "" if one["text"] is None else f"{one['text']:+.4g}"
    return one["verdict"], interval(one), text, seeds_text(record, one)


def interval(comparison: Mapping[str, Any]) -> str:
    """'-1.20 [-1.90, -0.50]': mean difference and 95 % interval of a comparison.

    >>> interval({"mean": -1.2, "low": -1.9, "high": -0.5})
    '-1.20 [-1.90, -0.50]'
    """
    if comparison["mean"] is None:
        return "-"
    numbers = [comparison[key] for key in ("mean", "low", "high")]
    largest = max(abs(n) for n in numbers if n is not None)
    digits = 2 if largest >= 0.1 else 4
    mean, *ends = (None if n is None else f"{n:+.{digits}f}" for n in numbers)
    return f"{mean}" if None in ends else f"{mean} [{ends[0]}, {ends[1]}]"


def claims_table(records: Sequence[Mapping[str, Any]]) -> str:
    """All claims as a Markdown table, the first comparison of each.

    Args:
        records: from `read_claims`.

    Returns:
        The table and the count of verdicts.
    """
    lines = [
        "| claim | source | compared | ours | difference | text | verdict | of text's gain | seeds "
        "| minutes | `hypersphere claims run` |",
        "|---|---|---|---|---|---|---|---|---|---|---|",
    ]
    for record in records:
        first = record["comparisons"][0]
        share = first["share_of_text"]
        cells = [
            f"[{record['claim']}](#{record['name']})",
            record["source"],
            f"{first['label']}, {first['metric'].replace('_', ' ')}",
            _means(record, first),
            interval(first),
            "" if first["text"] is None else f"{first['text']:+.4g}",
            f"**{first['verdict']}**",
            "" if share is None else f"{100 * share:.0f} %",
            seeds_text(record, first),
            f"{record['minutes']:.0f}",
            f"`{record['name']}`",
        ]
        lines.append("| " + " | ".join(cells) + " |")
    counts = verdict_counts(records)
    told = ", ".join(f"{n} {name}" for name, n in counts.items() if n)
    return "\n".join([*lines, "", f"{len(records)} claims: {told}."])


def _means(record: Mapping[str, Any], comparison: Mapping[str, Any]) -> str:
    """Means of the two methods that are compared; empty where there are more."""
    if sorted(comparison["terms"].values()) != [-1.0, 1.0]:
        return ""
    means = {}
    for term, sign in comparison["terms"].items():
        method, _, metric = term.partition("/")
        (row,) = (row for row in record["methods"] if row["name"] == method)
        values = row["values"].get(metric or comparison["metric"], {})
        shared = [values[seed] for seed in comparison["values"] if seed in values]
        if not shared:
            return ""
        means[sign] = sum(shared) / len(shared)
    digits = 2 if max(map(abs, means.values())) >= 1 else 4
    return f"{means[1.0]:.{digits}f} against {means[-1.0]:.{digits}f}"


def seeds_text(record: Mapping[str, Any], comparison: Mapping[str, Any]) -> str:
    """'10', or '6 of 10' where seeds are missing.

    >>> seeds_text({"seeds": 10}, {"values": {"0": 1.0, "1": 2.0}, "not_converged": 0})
    '2 of 10'
    """
    there = len(comparison["values"]) + comparison["not_converged"]
    return f"{there}" if there == record["seeds"] else f"{there} of {record['seeds']}"


def claims_section(record: Mapping[str, Any]) -> str:
    """What the page says about one claim: protocol, values, all comparisons, the command.

    Args:
        record: one of `read_claims`.

    Returns:
        Markdown, with a heading that `claims_table` links to.
    """
    parts = [f'<a id="{record["name"]}"></a>', f"## {record['claim']}"]
    parts.append(f"{record['source']}. {record['protocol']}")
    if record.get("tune"):
        grid = "; ".join(f"{k} of {', '.join(map(str, v))}" for k, v in record["tune"].items())
        parts.append(f"Chosen for each method on held-out training samples: {grid}.")
    parts.append(f"![{record['name']}](figures/claims/{record['name']}.svg)")
    if record.get("found"):
        parts.append(record["found"])
    parts.append(_comparison_lines(record))
    parts.append(_method_lines(record))
    seen = record["hardware"]
    parts.append(
        f"`{record['command']}`; {record['minutes']:.0f} minutes of one thread "
        f"({seen['processor']}), torch {record['versions'].get('torch', '?')}."
    )
    return "\n\n".join(parts)


def _comparison_lines(record: Mapping[str, Any]) -> str:
    lines = ["| compared | metric | text | ours | verdict | seeds |", "|---|---|---|---|---|---|"]
    for one in record["comparisons"]:
        text = "" if one["text"] is None else f"{one['text']:+.4g}"
        name = one["metric"].replace("_", " ")
        cells = (one["label"], name, text, interval(one), one["verdict"], seeds_text(record, one))
        lines.append("| " + " | ".join(cells) + " |")
    return "\n".join(lines)


def _method_lines(record: Mapping[str, Any]) -> str:
    lines = ["| method | metric | ours | chosen |", "|---|---|---|---|"]
    for row in record["methods"]:
        chosen = ", ".join(f"{key} {_setting(value)}" for key, value in row["chosen"].items())
        for metric, values in row["values"].items():
            found = [v for v in values.values() if v is not None]
            lost = len(values) - len(found)
            mean = mean_text(found) if found else "-"
            mean += f", {lost} not converged" if lost else ""
            lines.append(f"| {row['name']} | {metric.replace('_', ' ')} | {mean} | {chosen} |")
    return "\n".join(lines)


def _setting(value: Any) -> str:
    return f"{value:g}" if isinstance(value, float) else str(value)


def mean_text(values: Sequence[float]) -> str:
    """Mean and deviation: two decimals, or more for two digits of the deviation.

    >>> mean_text([91.2, 92.9]), mean_text([0.0411, 0.0431]), mean_text([0.5])
    ('92.05 ± 1.20', '0.0421 ± 0.0014', '0.50')
    """
    mean = statistics.fmean(values)
    deviation = statistics.stdev(values) if len(values) > 1 else 0.0
    size = deviation or abs(mean)
    digits = min(8, max(2, 1 - math.floor(math.log10(size)))) if size else 2
    return f"{mean:.{digits}f}" + (f" ± {deviation:.{digits}f}" if len(values) > 1 else "")
