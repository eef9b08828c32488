"""Fill the tables of README and docs from results/: `python docs/generate.py [--check]`.

A page marks the place:  <!-- table: benchmarks/layers -->  ...  <!-- end -->
and gets, between the marks, the tables of results/benchmarks/layers.json and the command that
made them; a file written by `hypersphere compare` becomes a table beside the dissertation's, and
results/reliability.json the counts of faults and damaged inputs. Numbers are never typed by hand.
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


def markdown(header: list[str], rows: list[list[object]]) -> str:
    """A table; its first column is text, the others are numbers."""
    lines = [header, ["---", *["---:"] * (len(header) - 1)], *rows]
    return "\n".join("| " + " | ".join(map(str, line)) + " |" for line in lines)


def reliability_tables(record: dict) -> str:
    """Faults and damaged inputs: how many were tried, and what became of them."""
    faults, inputs = record["faults"], record["inputs"]
    kinds = sorted({kind for row in faults.values() for kind in row["kinds"]})
    seen = [entry for row in faults.values() for entry in row["kinds"].values()]
    verdicts = ("tried", "refused", "accepted", "wrong")
    all_inputs = {key: sum(row[key] for row in inputs.values()) for key in verdicts}
    survived, tried = (sum(entry[key] for entry in seen) for key in ("survived", "tried"))
    parts = [
        f"**{survived:,} of {tried:,} faults survived; {all_inputs['tried']:,} inputs tried: "
        f"{all_inputs['refused']:,} refused with a sentence, {all_inputs['accepted']:,} accepted "
        f"rightly, {all_inputs['wrong']:,} wrong.**",
        "### Faults: survived of tried",
    ]
    rows = []
    for name, row in sorted(faults.items()):
        counts = [row["kinds"].get(kind, {"survived": 0, "tried": 0}) for kind in kinds]
        cells = [f"{c['survived']} of {c['tried']}" for c in counts]
        rows.append([name, *cells, f"`{row['test'].partition('::')[2]}`"])
    parts.append(markdown(["running", *kinds, "test"], rows))
    parts.append("### Inputs, by kind of damage")
    by_kind: dict[str, dict[str, int]] = {}
    for row in inputs.values():
        for kind, counts in row["kinds"].items():
            total = by_kind.setdefault(kind, dict.fromkeys(verdicts, 0))
            for key in verdicts:
                total[key] += counts[key]
    rows = [[kind, *(by_kind[kind][key] for key in verdicts)] for kind in sorted(by_kind)]
    titles = ["tried", "refused with a sentence", "accepted rightly", "wrong"]
    parts.append(markdown(["kind", *titles], rows))
    parts.append("### Inputs, by file")
    rows = [
        [name, ", ".join(f"`{c}`" for c in row["commands"]), row["ways"]]
        + [row[key] for key in verdicts]
        + [f"`{row['test'].partition('::')[2]}`"]
        for name, row in sorted(inputs.items())
    ]
    parts.append(markdown(["file", "read by", "ways", *titles, "test"], rows))
    used = record["environment"]
    parts.append(
        f"All of it: `{record['command']}`; one row: the same with `-k` and the name of its test. "
        f"torch {used['packages']['torch']}, Python {used['python']}."
    )
    return "\n\n".join(parts)


def tables(record: dict) -> str:
    """A benchmark's tables, or a comparison's with the dissertation's numbers beside ours."""
    if "tables" in record:
        return benchmark_tables(record)
    if "faults" in record:
        return reliability_tables(record)
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
