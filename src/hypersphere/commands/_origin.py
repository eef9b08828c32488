"""Where runs come from: commits, versions and hardware of all that contributed to a record."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from hypersphere.training.run.checkpoint import RunError
from hypersphere.training.run.records import read_record

__all__ = ["merged", "origin", "run_origin"]

AND = " and "


def origin(details: Mapping[str, Any]) -> dict[str, Any]:
    """The entries of a record, or of run.json, that say where runs come from."""
    versions, hardware = details.get("versions") or {}, details.get("hardware") or {}
    return {"versions": versions, "commit": details.get("commit"), "hardware": hardware}


def run_origin(folder: Path) -> dict[str, Any] | None:
    """What run.json in a folder says about it; None if it cannot be read."""
    try:
        return origin(read_record(folder / "run.json"))
    except (OSError, RunError):
        return None


def merged(first: Any, second: Any) -> Any:
    """Both of two entries: one of what is equal or missing, "A and B" of what differs.

    >>> merged({"commit": "a", "cores": 2}, {"commit": "b", "cores": 2})
    {'commit': 'a and b', 'cores': 2}
    >>> merged("a and b", "a")
    'a and b'
    """
    if first == second or second is None or second == "":
        return first
    if first is None or first == "":
        return second
    if isinstance(first, Mapping) and isinstance(second, Mapping):
        keys = dict.fromkeys([*first, *second])
        return {key: merged(first.get(key), second.get(key)) for key in keys}
    if isinstance(first, list) and isinstance(second, list):
        return list(dict.fromkeys([*first, *second]))
    parts = [*str(first).split(AND), *str(second).split(AND)]
    return AND.join(dict.fromkeys(parts))
