"""What was set in a run: first what differs from the defaults, the rest folded away."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from typing import Any

from ..training.parts import CHANGES, options, section_options
from .markup import folded, html_table, section, short

__all__ = ["settings_section"]

_PARTS = ("model", "head", *CHANGES)
_NAMED = ("regularizers", "hooks")
_FIXED = ("data", "optimizer", "schedule", "train", "few_shot", "gan", "fabric")
Row = tuple[str, str, dict[str, Any], dict[str, Any]]  # section, name, values, defaults


def settings_section(config: Mapping[str, Any]) -> Iterator[str]:
    """The section of a page that tells the settings of a run.

    Data set, network, head, length and seed are always told; a default is told where it was
    changed, and all others can be opened.

    Args:
        config: the resolved config; whatever of it cannot be read is left out.

    Returns:
        HTML; nothing without a config.
    """
    changed, usual = [], []
    for place, name, values, defaults in _rows(config):
        different = {k: v for k, v in values.items() if k not in defaults or defaults[k] != v}
        same = {k: v for k, v in values.items() if k not in different}
        if name or different:
            changed.append((place, name, _words(different)))
        if same:
            usual.append((place, name, _words(same)))
    if not changed:
        return
    if "seed" in config:
        changed.append(("seed", short(config["seed"]), ""))
    rest = folded("what was left as it is by default", _table(usual)) if usual else ""
    yield section("What was set", _table(changed) + rest)


def _rows(config: Mapping[str, Any]) -> Iterator[Row]:
    for place in ("data", *_PARTS):
        values = config.get(place)
        if place == "data":
            yield from _fixed(place, values)
        elif isinstance(values, Mapping) and values:
            own = {k: v for k, v in values.items() if k != "name"}
            yield place, _name(values), own, _defaults(place, values.get("name", ""))
    for place in _NAMED:
        parts = config.get(place)
        for name, values in parts.items() if isinstance(parts, Mapping) else ():
            if isinstance(values, Mapping):
                yield place, str(name), dict(values), _defaults(place, name)
    for place in _FIXED[1:]:
        yield from _fixed(place, config.get(place))


def _fixed(place: str, values: Any) -> Iterator[Row]:
    """A section that every config has; its name, or the length of the run, stands before it."""
    if not isinstance(values, Mapping):
        return
    usual = {key: _plain(option.default) for key, option in section_options(place).items()}
    own = {k: v for k, v in values.items() if k != "name"}
    name = _name(values)
    if place == "train" and own.get("epochs") is not None:
        name = f"{short(own.pop('epochs'))} epochs"
        own.pop("steps", None)
    elif place == "train" and isinstance(own.get("steps"), int):
        name = f"{own.pop('steps'):,} steps"
    yield place, name, own, usual


def _defaults(place: str, name: Any) -> dict[str, Any]:
    """The defaults of a part; none for a part that this installation does not know."""
    try:
        found = options(place, "" if place in CHANGES else str(name))
    except ValueError:
        return {}
    return {key: _plain(option.default) for key, option in found.items()}


def _name(values: Mapping[str, Any]) -> str:
    found = values.get("name", values.get("object", ""))
    return str(found)


def _plain(value: Any) -> Any:
    """As JSON keeps it: a tuple is a list."""
    try:
        return json.loads(json.dumps(value))
    except TypeError:
        return value


def _words(values: Mapping[str, Any]) -> str:
    return ", ".join(f"{key} {_shown(value)}" for key, value in values.items())


def _shown(value: Any) -> str:
    if isinstance(value, Mapping):
        return f"({_words(value)})"
    words = {None: "none", True: "true", False: "false"}
    return words[value] if value is None or isinstance(value, bool) else short(value)


def _table(rows: list[tuple[str, str, str]]) -> str:
    return html_table(["", "", "options"], rows)
