"""Fill the tables of README and docs from results/: `python docs/generate.py [--check]`.

A page marks the place:  <!-- table: benchmarks/layers -->  ...  <!-- end -->
and gets, between the marks, the tables of results/benchmarks/layers.json and the command that
made them; a file written by `hypersphere compare` becomes a table beside the dissertation's.
Numbers are never typed by hand.
"""

from __future__ import annotations

import json
import re
import statistics
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


def open_set_table(record: dict) -> str:
    """Unknown people named and known people found, mean and deviation over seeds, by head."""
    lines = [
        "| head | seeds | unknown people named | largest | known people found | found and nearest "
        "without a threshold |",
        "|---|---|---|---|---|---|",
    ]
    by_head: dict[str, list[dict]] = {}
    for row in record["rows"]:
        by_head.setdefault(row["head"], []).append(row)
    for head, rows in by_head.items():
        cells = [head, str(len(rows))]
        for key in ("named", "found", "rank_1"):
            values = [100 * row[key] for row in rows]
            spread = f" ± {statistics.stdev(values):.2f}" if len(values) > 1 else ""
            cells.append(f"{statistics.mean(values):.2f}{spread} %")
            if key == "named":
                cells.append(f"{max(values):.2f} %")
        lines.append("| " + " | ".join(cells) + " |")
    how, seen, row = record["settings"], record["environment"], record["rows"][0]
    lines += [
        "",
        f"{how['gallery_people']} people with {how['enrolled']} pictures each in the gallery, "
        f"threshold at a false-accept rate of {100 * how['far']:g} % of a search, fitted on "
        f"{row['threshold']['negatives']:,} pictures of {row['threshold']['people']:,} people; "
        f"counted on {row['unknown_pictures']:,} pictures of {row['unknown_people']:,} others and "
        f"{row['known_pictures']:,} pictures of the known. `{record['command']}`, "
        f"{how['steps']} steps of {how['batch_size']}; {seen['cpu']}, torch "
        f"{seen['packages']['torch']}.",
    ]
    return "\n".join(lines)


def tables(record: dict) -> str:
    """A benchmark's tables, or a comparison's with the dissertation's numbers beside ours."""
    if record.get("study") == "open_set":
        return open_set_table(record)
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
