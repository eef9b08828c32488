"""Values that were read as something else than they say: text as a number, a list as a name."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Mapping
from typing import Any

from hypersphere.commands._yaml import ConfigError

__all__ = ["check_minutes", "check_text"]

MINUTES = re.compile(r"(?<![\w.])[-+]?[0-9][0-9_]*(?::[0-9.]+)+")


def check_text(given: Mapping[str, Any], parsed: Mapping[str, Any]) -> None:
    """Refuse lists, mappings, NaN and infinity where text is expected: none of them is a name."""
    for key, value in given.items():
        is_number = isinstance(value, float) and math.isfinite(value)
        if is_number or not isinstance(value, (list, dict, float)):
            continue
        if isinstance(_value_at(key, parsed), str):
            kinds = {"list": "a list: ", "dict": "a mapping: "}
            raise ConfigError(
                f"{key}: expected text, got {kinds.get(type(value).__name__, '')}{value}"
            )


def check_minutes(given: Mapping[str, Any], parsed: Mapping[str, Any]) -> None:
    """Refuse text such as 1:30 that was read as a number: minutes in YAML 1.1."""
    for key, value in given.items():
        for text in MINUTES.findall(value if isinstance(value, str) else json.dumps(value)):
            if text not in repr(_value_at(key, parsed)):
                raise ConfigError(f"{key}: {text} is no number (minutes are not read)")


def _value_at(key: str, values: Mapping[str, Any]) -> Any:
    """What stands at "section.key" in nested dictionaries; None if nothing does."""
    found: Any = values
    for part in key.split("."):
        found = found.get(part) if isinstance(found, Mapping) else None
    return found
