"""Fill the tables of README and docs from results/: `python docs/generate.py [--check]`.

A page marks the place:  <!-- table: benchmarks/layers -->  ...  <!-- end -->
and gets, between the marks, the tables of results/benchmarks/layers.MAKER.json, the processors of
all makers side by side, and the command that made them; a file written by `hypersphere compare`
becomes a table beside the dissertation's. `claims` is the table and the sections of results/claims,
`claims-count` its count of verdicts; docs/figures/make_claims.py draws the pictures. `reliability`
is the counts of faults and damaged inputs. `<!-- printed: train -->` is what that command printed,
as docs/figures/make_letters.py kept it. Numbers are never typed by hand.
"""

from __future__ import annotations

import json
import re
import statistics
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
MARK = re.compile(r"(<!-- table: ([\w./-]+) -->\n).*?(<!-- end -->)", re.DOTALL)
PRINTED = re.compile(r"(<!-- printed: (\w+) -->\n).*?(<!-- end -->)", re.DOTALL)


MAKERS = {"amd": "AMD", "intel": "Intel", "apple": "Apple", "arm": "ARM", "other": "another"}


def records(path: Path) -> dict[str, dict]:
    """Runs of a benchmark by the maker of the processor; counts have no maker: ''."""
    found = {}
    for place in sorted(path.parent.glob(f"{path.stem}*.json")):
        name, _, maker = place.stem.partition(".")
        if name == path.stem:
            found[maker] = json.loads(place.read_text())
    return found


def benchmark_tables(runs: dict[str, dict]) -> str:
    """The tables of one benchmark: a row per piece of work, a column per processor.

    A figure is the ratio to the baseline, or else what the row counts; bold if it misses its bar.
    """
    titles = list(dict.fromkeys(title for record in runs.values() for title in record["tables"]))
    parts = [_table(title, runs) for title in titles]
    for record in runs.values():
        seen = record["environment"]
        parts.append(
            f"`{record['command']}`; {seen['cores']} cores ({seen['cpu']}), torch "
            f"{seen['packages']['torch']}, Python {seen['python']}."
        )
    return "\n\n".join(parts)


def open_set_table(record: dict) -> str:
    """Unknown people named and known people found, mean and deviation over seeds, by head."""
    lines = [
        "| head | seeds | unknown people named | largest | known people found | nearest without a "
        "threshold | training pictures told apart |",
        "|---|---|---|---|---|---|---|",
    ]
    by_head: dict[str, list[dict]] = {}
    for row in record["rows"]:
        by_head.setdefault(row["head"], []).append(row)
    for head, rows in by_head.items():
        cells = [head, str(len(rows))]
        for key in ("named", "found", "rank_1", "train_accuracy"):
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


def _table(title: str, runs: dict[str, dict]) -> str:
    columns = {m: {r["name"]: r for r in d["tables"].get(title, ())} for m, d in runs.items()}
    columns = {maker: rows for maker, rows in columns.items() if rows}
    names = list(dict.fromkeys(name for rows in columns.values() for name in rows))
    some = [row for rows in columns.values() for row in rows.values()]
    peaks = any(row["peak_mb"] is not None for row in some)
    header = [MAKERS.get(maker, "figure") for maker in columns]
    header += ["peak MiB"] if peaks else []
    lines = [
        f"**{title}**",
        "",
        f"| | {' | '.join(header)} | bar |",
        "|---" * (len(header) + 2) + "|",
    ]
    for name in names:
        rows = [own.get(name) for own in columns.values()]
        first = next(row for row in rows if row)
        sign = "≥" if first["at_least"] else "≤"
        peak = next((r["peak_mb"] for r in rows if r and r["peak_mb"] is not None), None)
        cells = [name, *(_figure(row, first) for row in rows)]
        cells += ["" if peak is None else f"{peak:.0f}"] if peaks else []
        cells.append(f"{sign} {first['limit']:g}" if first["limit"] is not None else "")
        lines.append("| " + " | ".join(cells) + " |")
    return "\n".join(lines)


def _figure(row: dict | None, newest: dict) -> str:
    """A figure, bold if it misses its bar, or that of a newer run on another processor."""
    if row is None:
        return ""
    missed = row["met"] is False
    if row["met"] is None and newest["limit"] is not None:
        reached = row["ratio"] if row["value"] is None else row["value"]
        missed = (reached < newest["limit"]) if newest["at_least"] else (reached > newest["limit"])
    ratio = f"{row['ratio']:.3g}" if row["ratio"] is not None else ""
    value = f"{row['value']:.4g} {row['unit']}".strip() if row["value"] is not None else ""
    figure = f"{value} ({ratio})" if ratio and value else ratio or value
    return f"**{figure}**" if missed else figure


def plain_table(record: dict) -> str:
    """Columns and rows as the record has them, and what they were measured on."""
    lines = ["| " + " | ".join(record["columns"]) + " |", "|---" * len(record["columns"]) + "|"]
    lines += ["| " + " | ".join(row) + " |" for row in record["rows"]]
    seen = record["environment"]
    return "\n".join(lines) + (
        f"\n\n{record['caption']}. `{record['command']}`; {seen['cores']} cores ({seen['cpu']}), "
        f"torch {seen['packages']['torch']}, Python {seen['python']}."
    )


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


def keyed_table(record: dict) -> str:
    """Columns and rows of a file that names the columns by key."""
    columns = record["columns"]
    lines = ["| " + " | ".join(columns.values()) + " |", "|" + "---|" * len(columns)]
    for row in record["rows"]:
        lines.append("| " + " | ".join(str(row.get(key, "")) for key in columns) + " |")
    return "\n".join([*lines, "", f"`{record['command']}`. {record['note']}"])


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
        "## Faults: survived of tried",
    ]
    rows = []
    for name, row in sorted(faults.items()):
        counts = [row["kinds"].get(kind, {"survived": 0, "tried": 0}) for kind in kinds]
        cells = [f"{c['survived']} of {c['tried']}" for c in counts]
        rows.append([name, *cells, f"`{row['test'].partition('::')[2]}`"])
    parts.append(markdown(["running", *kinds, "test"], rows))
    parts.append("## Inputs, by kind of damage")
    by_kind: dict[str, dict[str, int]] = {}
    for row in inputs.values():
        for kind, counts in row["kinds"].items():
            total = by_kind.setdefault(kind, dict.fromkeys(verdicts, 0))
            for key in verdicts:
                total[key] += counts[key]
    rows = [[kind, *(by_kind[kind][key] for key in verdicts)] for kind in sorted(by_kind)]
    titles = ["tried", "refused with a sentence", "accepted rightly", "wrong"]
    parts.append(markdown(["kind", *titles], rows))
    parts.append("## Inputs, by file")
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


def tables(record: dict | list) -> str:
    """The table of a results file, by its form; a comparison's stands beside the dissertation's."""
    if isinstance(record, list):
        return record_tables(record)
    if isinstance(record.get("columns"), dict):
        return keyed_table(record)
    if record.get("study") == "open_set":
        return open_set_table(record)
    if "columns" in record:
        return plain_table(record)
    if "faults" in record:
        return reliability_tables(record)
    from hypersphere.reports import markdown_table

    return markdown_table(record)


def claims(kind: str) -> str:
    """All claims with their sections, or the sentence that counts the verdicts."""
    from hypersphere.reports.claims import claims_section, claims_table, read_claims, verdict_counts

    records = read_claims(ROOT / "results" / "claims")
    if kind == "claims":
        return "\n\n".join([claims_table(records), *map(claims_section, records)])
    counts = verdict_counts(records)
    told = sum(counts[name] for name in ("holds", "open", "reversed"))
    return (
        f"Of {told} claims of the dissertation tested so far, with equal tuning and paired seeds, "
        f"{_verb(counts['holds'], 'holds', 'hold')}, {_verb(counts['open'], 'is', 'are')} open and "
        f"{_verb(counts['reversed'], 'is', 'are')} reversed at the scale of two cores: "
        "[docs/results.md](docs/results.md), `hypersphere claims`."
    )


def _verb(count: int, one: str, several: str) -> str:
    return f"{count} {one if count == 1 else several}"


FIGURE = re.compile(r'(<!-- figure: (\S+) "([^"]+)" "([^"]+)" -->).*?(<!-- /figure -->)')


def one_figure(match: re.Match[str]) -> str:
    """One number of a results file, for a sentence or a cell."""
    name, part, row = match[2], match[3], match[4]
    if name.startswith("claims/"):
        found = claim_figure(name, part, row)
    elif name.startswith("benchmarks/"):
        found = benchmark_figure(name, part, row)
    elif name == "open-set":
        values = [100 * float(r[part]) for r in _content(name)["rows"] if r["head"] == row]
        found = f"{statistics.mean(values):.1f} %"
    else:  # a table: the column, and the first cell of the row
        record = _content(name)
        cells = {r[0]: r for r in record["rows"]}
        found = cells[row][record["columns"].index(part)]
    return f"{match[1]}{found}{match[5]}"


def _content(name: str) -> dict:
    return json.loads((ROOT / "results" / f"{name}.json").read_text())


def benchmark_figure(name: str, table: str, row: str) -> str:
    """A ratio or a count, over the makers of processors: "1.02 to 1.24"."""
    runs = records(ROOT / "results" / f"{name}.json")
    rows = [r for run in runs.values() for r in run["tables"].get(table, ()) if r["name"] == row]
    if not rows:
        raise SystemExit(f"no row {row!r} in {name}")
    values = sorted(r["ratio"] or r["value"] for r in rows)
    ends = dict.fromkeys(f"{value:.2f}" for value in (values[0], values[-1]))
    unit = "" if rows[0]["ratio"] else f" {rows[0]['unit']}"
    return " to ".join(ends) + unit


def claim_figure(name: str, label: str, unit: str) -> str:
    """A comparison with its interval and verdict: "-0.48 points (-0.69 to -0.27): holds"."""
    if not (ROOT / "results" / f"{name}.json").exists():
        return "not measured yet"
    for found in _content(name)["comparisons"]:
        if found["label"] == label:
            ends = f"{found['low']:+.2f} to {found['high']:+.2f}"
            return f"{found['mean']:+.2f} {unit} ({ends}): {found['verdict']}"
    raise SystemExit(f"no comparison {label!r} in {name}")


def fill(text: str) -> str:
    def replace(match: re.Match[str]) -> str:
        if match[2] in ("claims", "claims-count"):
            return f"{match[1]}{claims(match[2])}\n{match[3]}"
        path = ROOT / "results" / f"{match[2]}.json"
        if path.parent.name == "benchmarks":
            runs = records(path)
            body = benchmark_tables(runs) if runs else "*(not measured yet)*"
        else:
            body = tables(json.loads(path.read_text())) if path.exists() else "*(not measured yet)*"
        return f"{match[1]}{body}\n{match[3]}"

    def quote(match: re.Match[str]) -> str:
        return f"{match[1]}```text\n{_content('first-run')['printed'][match[2]]}\n```\n{match[3]}"

    return FIGURE.sub(one_figure, PRINTED.sub(quote, MARK.sub(replace, text)))


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
