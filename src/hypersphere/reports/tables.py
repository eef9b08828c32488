"""Tables from results/: ours beside the dissertation's number, with the settings that differ.

A result file is what `hypersphere compare` writes for a recipe, or any JSON object with

    {"table": "Table 3.1", "unit": "accuracy (%)", "command": "...",
     "rows": [{"name": "SphereConv, sigmoid", "ours": [..seeds..], "dissertation": 91.31,
               "differs": "CNN-9 at half width, 20,000 training images"}]}
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any

__all__ = ["markdown_table", "read_result"]


def read_result(path: str | Path) -> dict[str, Any]:
    """Read and check a result file.

    Args:
        path: the JSON file.

    Returns:
        What it holds.

    Raises:
        ValueError: if something is missing; the message names the file and what it lacks.
    """
    file = Path(path)
    record = json.loads(file.read_text("utf-8"))
    for key in ("table", "unit", "command", "rows"):
        if key not in record:
            raise ValueError(f"{file} is no result file: it has no {key!r}")
    for row in record["rows"]:
        if "name" not in row or "ours" not in row:
            raise ValueError(f"{file}: each row needs 'name' and 'ours', got {sorted(row)}")
    return record


def markdown_table(record: Mapping[str, Any]) -> str:
    """A Markdown table with mean and deviation over seeds beside the dissertation's figure.

    Args:
        record: what `read_result` gives.

    Returns:
        The table, its title and its command.

    >>> print(markdown_table({"table": "Table 0", "unit": "error (%)", "command": "none",
    ...     "rows": [{"name": "a", "ours": [1.0, 3.0], "dissertation": 2.5, "differs": "width"}]}))
    **Table 0**, error (%)
    <BLANKLINE>
    | | ours | dissertation | settings that differ |
    |---|---|---|---|
    | a | 2.00 ± 1.41 (2 seeds) | 2.5 | width |
    <BLANKLINE>
    `none`
    """
    lines = [
        f"**{record['table']}**, {record['unit']}",
        "",
        "| | ours | dissertation | settings that differ |",
        "|---|---|---|---|",
    ]
    for row in record["rows"]:
        given = row["ours"] if isinstance(row["ours"], list) else [row["ours"]]
        theirs = row.get("dissertation")
        cells = [row["name"], mean_and_deviation(given), "" if theirs is None else f"{theirs:g}"]
        lines.append("| " + " | ".join([*cells, row.get("differs", "none")]) + " |")
    return "\n".join([*lines, "", f"`{record['command']}`"])


def mean_and_deviation(values: list[float]) -> str:
    """Mean and standard deviation as text.

    Args:
        values: one per seed that converged.

    Returns:
        "mean ± deviation (n seeds)", or the mean alone for one seed.
    """
    if not values:
        return "not converged"
    mean = sum(values) / len(values)
    if len(values) == 1:
        return f"{mean:.2f}"
    spread = math.sqrt(sum((v - mean) ** 2 for v in values) / (len(values) - 1))
    return f"{mean:.2f} ± {spread:.2f} ({len(values)} seeds)"
