"""Fill the tables of README and docs from results/: `python docs/generate.py [--check]`.

A page marks the place:  <!-- table: benchmarks/layers -->  ...  <!-- end -->
and gets, between the marks, the tables of results/benchmarks/layers.json and the command that
made them; a file written by `hypersphere compare` becomes a table beside the dissertation's.
Numbers are never typed by hand.
"""

from __future__ import annotations

import json
import re
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
MARK = re.compile(r"(<!-- table: ([\w./-]+) -->\n).*?(<!-- end -->)", re.DOTALL)


def benchmark_tables(record: dict) -> str:
    """The tables of one benchmark, a row per piece of work, and what they were measured on."""
    parts = []
    for title, rows in record["tables"].items():
        lines = [
            f"**{title}**",
            "",
            "| | ratio | figure | peak MiB | bar | met |",
            "|---|---|---|---|---|---|",
        ]
        for row in rows:
            sign = "≥" if row["at_least"] else "≤"
            cells = [
                row["name"],
                f"{row['ratio']:.3g}" if row["ratio"] is not None else "",
                f"{row['value']:.4g} {row['unit']}".strip() if row["value"] is not None else "",
                f"{row['peak_mb']:.0f}" if row["peak_mb"] is not None else "",
                f"{sign} {row['limit']:g}" if row["limit"] is not None else "",
                {True: "yes", False: "**no**", None: ""}[row["met"]],
            ]
            lines.append("| " + " | ".join(cells) + " |")
        parts.append("\n".join(lines))
    seen = record["environment"]
    parts.append(
        f"`{record['command']}`; {seen['cores']} cores ({seen['cpu']}), torch "
        f"{seen['packages']['torch']}, Python {seen['python']}."
    )
    return "\n\n".join(parts)


def record_tables(rows: list[dict]) -> str:
    """Point configurations beside the published records, a table for each problem."""
    titles = {
        "kissing": ("Kissing configurations", "degrees", lambda n: True),
        "tammes": ("Tammes, largest smallest angle in R^3", "degrees", lambda n: True),
        "thomson": ("Thomson, lowest energy in R^3", "energy", lambda n: n % 10 == 0),
    }
    parts = []
    for problem, (title, unit, shown) in titles.items():
        chosen = sorted((r for r in rows if r["problem"] == problem), key=lambda r: r["n"])
        if not chosen:
            continue
        known = [r for r in chosen if r["gap"] is not None]
        reached = [r for r in known if r["gap"] <= 1.01 * r["precision"] + 1e-8]
        sources = "; ".join(dict.fromkeys(r["source"] for r in known))
        lines = [
            f"**{title}.** {len(reached)} of {len(known)} published values reached to all their "
            f"digits, {len(chosen) - len(known)} without one. Source: {sources}.",
            "",
            f"| n | dim | ours ({unit}) | published | gap | seconds |",
            "|---|---|---|---|---|---|",
        ]
        for r in chosen:
            if shown(r["n"]) or (r not in reached and r in known):
                published = "" if r["published"] is None else f"{r['published']:.10g}"
                gap = "" if r["gap"] is None else f"{r['gap']:.1e}"
                lines.append(
                    f"| {r['n']} | {r['dim']} | {r['ours']:.9f} | {published} | {gap} | "
                    f"{r['seconds']:.0f} |"
                )
        parts.append("\n".join(lines))
    parts.append("`python benchmarks/records.py`; all rows in results/records.json.")
    return "\n\n".join(parts)


def plain_table(record: dict) -> str:
    """Columns and rows of a file that says them itself."""
    columns = record["columns"]
    lines = ["| " + " | ".join(columns.values()) + " |", "|" + "---|" * len(columns)]
    for row in record["rows"]:
        lines.append("| " + " | ".join(str(row.get(key, "")) for key in columns) + " |")
    return "\n".join([*lines, "", f"`{record['command']}`. {record['note']}"])


def tables(record: dict | list) -> str:
    """A benchmark's tables, or a comparison's with the dissertation's numbers beside ours."""
    if isinstance(record, list):
        return record_tables(record)
    if "columns" in record:
        return plain_table(record)
    if "tables" in record:
        return benchmark_tables(record)
    from hypersphere.reports import markdown_table

    return markdown_table(record)


def fill(text: str) -> str:
    def replace(match: re.Match[str]) -> str:
        path = ROOT / "results" / f"{match[2]}.json"
        body = tables(json.loads(path.read_text())) if path.exists() else "*(not measured yet)*"
        return f"{match[1]}{body}\n{match[3]}"

    return MARK.sub(replace, text)


def main(arguments: list[str]) -> int:
    stale = []
    for page in [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]:
        text = page.read_text()
        filled = fill(text)
        if filled != text:
            stale.append(page.relative_to(ROOT))
            if "--check" not in arguments:
                page.write_text(filled)
    if stale and "--check" in arguments:
        print(f"out of date: {', '.join(map(str, stale))}; run python docs/generate.py")
        return 1
    print(f"tables up to date ({len(stale)} pages rewritten)" if stale else "tables up to date")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
