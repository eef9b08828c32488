"""Options of the command line: read, and laid over the sections of a config."""

from __future__ import annotations

import json
from collections.abc import Container, Mapping, Sequence
from typing import Any

from hypersphere.commands._files import FORMER_NAMES, merge
from hypersphere.commands._yaml import ConfigError
from hypersphere.training.own_parts import NAMED_BY_OPTION
from hypersphere.training.parts import CHANGES

__all__ = ["NAMED", "choose_parts", "join_part_options", "parsed_value", "read_overrides"]

# Sections of parts by name.
NAMED = ("regularizers", "hooks")


def read_overrides(arguments: Sequence[str]) -> dict[str, Any]:
    """--a.b value, --a.b=value and bare --a.b (true) -> {"a.b": value}."""
    found: dict[str, Any] = {}
    rest = list(arguments)
    while rest:
        token = rest.pop(0)
        if not token.startswith("--"):
            raise ConfigError(f"expected --section.key value; got {token!r}")
        key, equals, value = token[2:].partition("=")
        if not equals:
            value = "true" if not rest or rest[0].startswith("--") else rest.pop(0)
        section, dot, rest_of_key = key.partition(".")
        found[FORMER_NAMES.get(section, section) + dot + rest_of_key] = value
    return found


def join_part_options(
    flat: Mapping[str, Any], overrides: Mapping[str, Any], known: Container[str]
) -> dict[str, Any]:
    """--model.angular.k 0.3 -> {"model.angular": {"name": ..., "k": 0.3}}, over the file's.

    Args:
        flat: {"section.key": value} of the file.
        overrides: the same of the command line.
        known: all keys that are options.

    Returns:
        The overrides, in which an option that names a part holds all that is said of the part.

    >>> given = {"model.angular.k": "0.3"}
    >>> join_part_options({"model.angular": "sigmoid"}, given, ["model.angular"])
    {'model.angular': {'name': 'sigmoid', 'k': 0.3}}
    """
    found = dict(overrides)
    for key, value in overrides.items():
        option, _, name = key.rpartition(".")
        if key in known or option not in known or option.split(".")[-1] not in NAMED_BY_OPTION:
            continue
        part = found.get(option, flat.get(option))
        if isinstance(part, str):
            read = parsed_value(part)
            part = read if isinstance(read, Mapping) else {"name": part}
        if isinstance(part, Mapping):  # else there is no part whose option it could be
            del found[key]
            found[option] = {**part, name: parsed_value(value)}
    return found


def parsed_value(value: Any) -> Any:
    """A value of the command line as JSON reads it; other text as it is."""
    try:
        return json.loads(value) if isinstance(value, str) else value
    except ValueError:
        return value


def choose_parts(settings: Mapping[str, Any], overrides: dict[str, Any]) -> dict[str, Any]:
    """The parts that the command line takes in or out as a whole.

    Args:
        settings: the sections of a config.
        overrides: options of the command line; those that name a whole part are taken out.

    Returns:
        The sections with these parts, and without what is null.

    >>> choose_parts({"hooks": {"a": {"b": 1}}, "init": {}}, {"hooks.c": "true", "init": "null"})
    {'hooks': {'a': {'b': 1}, 'c': {}}}
    """
    return _without_nulls(_added(_removed(settings, overrides), overrides))


def _removed(settings: Mapping[str, Any], overrides: dict[str, Any]) -> dict[str, Any]:
    """`--regularizers.mhe null`, `--rotate null`: take the thing out of both."""
    kept = dict(settings)
    for key in [k for k, v in overrides.items() if v in ("null", "None")]:
        section, _, name = key.partition(".")
        if section in NAMED and name and "." not in name:
            kept[section] = {k: v for k, v in (kept.get(section) or {}).items() if k != name}
            del overrides[key]
        elif key in (*CHANGES, *NAMED):
            kept.pop(key, None)
            del overrides[key]
    return kept


def _added(settings: Mapping[str, Any], overrides: dict[str, Any]) -> dict[str, Any]:
    """`--hooks.monitor`, `--rotate '{"method": "cayley"}'`: a part with its defaults, or with the
    options that stand there.
    """
    chosen = dict(settings)
    for key, value in list(overrides.items()):
        section, _, name = key.partition(".")
        if key in NAMED:
            raise ConfigError(
                f"{key} is a section of names: --{key}.NAME takes one with its defaults, "
                f"--{key}.NAME.OPTION value sets an option, --{key} null takes out all"
            )
        if key not in CHANGES and (section not in NAMED or "." in name):
            continue
        try:
            given = {} if value == "true" else json.loads(value)
        except ValueError:
            given = None
        if not isinstance(given, dict):
            raise ConfigError(
                f"{key} is a section of options: --{key} takes its defaults, --{key}.OPTION value "
                f"sets an option, --{key} null takes it out; got {value!r}"
            )
        del overrides[key]
        chosen = merge(chosen, {key: {}} if key in CHANGES else {section: {name: {}}})
        for option, item in given.items():
            overrides.setdefault(f"{key}.{option}", item)
    return chosen


def _without_nulls(settings: Mapping[str, Any]) -> dict[str, Any]:
    """Drop sections and named things set to null; the null of an option is a value."""
    kept = {k: v for k, v in settings.items() if v is not None}
    for section in NAMED:
        if isinstance(kept.get(section), Mapping):
            kept[section] = {k: v or {} for k, v in kept[section].items() if v is not None}
    return kept
