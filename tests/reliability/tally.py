"""Counts what the harness tried: `HYPERSPHERE_TALLY=results/reliability.json` names the file.

Each test replaces its own row there, so that the file can be filled by several calls of pytest.
`docs/generate.py` makes the tables of docs/reliability.md from it.
"""

from __future__ import annotations

import fcntl
import json
import os
import re
from collections import Counter
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

from reliability.judging import ACCEPTED, REFUSED, WRONG, Case

from harness import environment

ROOT = Path(__file__).resolve().parents[2]
VARIABLE = "HYPERSPHERE_TALLY"
FILE = ROOT / "results" / "reliability.json"
COMMAND = f"{VARIABLE}=results/reliability.json python3 dev.py test tests/reliability"


def slug(name: str) -> str:
    """A name as a part of a test's name, which `pytest -k` finds.

    >>> slug("features of a run (.npz)")
    'features-of-a-run-.npz'
    """
    return re.sub(r"[^\w.]+", "-", name).strip("-")


def note_cases(name: str, cases: Sequence[Case], test: str) -> None:
    """A row of inputs: how many were tried, and what became of them.

    Args:
        name: of the file format or the kind of config.
        cases: what was tried.
        test: that repeats it.
    """
    kinds = {kind: counts(c for c in cases if c.kind == kind) for kind in {c.kind for c in cases}}
    row = {
        **counts(cases),
        "ways": len({(c.kind, c.damage) for c in cases}),
        "commands": sorted({c.reader for c in cases}),
        "kinds": kinds,
        "test": test,
    }
    _replace("inputs", name, row)


def note_faults(name: str, faults: Sequence[dict[str, Any]], test: str) -> None:
    """A row of faults.

    Args:
        name: of what was running.
        faults: the entries `kind`, `tried` and `survived` of each kind.
        test: that repeats it.
    """
    kinds = {f["kind"]: {"tried": f["tried"], "survived": f["survived"]} for f in faults}
    _replace("faults", name, {"kinds": kinds, "test": test})


def counts(cases: Iterable[Case]) -> dict[str, int]:
    """Cases by verdict."""
    found = Counter(case.verdict for case in cases)
    return {"tried": sum(found.values()), **{v: found[v] for v in (REFUSED, ACCEPTED, WRONG)}}


def _replace(section: str, name: str, row: dict[str, Any]) -> None:
    if VARIABLE not in os.environ:
        return
    path = ROOT / os.environ[VARIABLE]
    folder = os.open(path.parent, os.O_RDONLY)
    try:
        fcntl.flock(folder, fcntl.LOCK_EX)  # several workers of pytest
        record = json.loads(path.read_text()) if path.exists() else {}
        record = {"command": COMMAND, "inputs": {}, "faults": {}, **record}
        record["environment"] = environment()
        record[section][name] = {**row, "commit": record["environment"]["commit"]}
        path.write_text(json.dumps(record, indent=1, sort_keys=True) + "\n")
    finally:
        os.close(folder)
