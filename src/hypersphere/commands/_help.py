"""``hypersphere train --help``: every option of the parts that a config names."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

from hypersphere import registry
from hypersphere.commands._config import FIXED, all_options, chosen_parts, read_settings
from hypersphere.commands._files import DEFAULT_NAMES
from hypersphere.commands._options import format_options
from hypersphere.commands._overrides import NAMED, parsed_value
from hypersphere.commands._yaml import ConfigError
from hypersphere.registry import unknown_name
from hypersphere.training.parts import CHANGES, KIND_OF_SECTION, Option, options

__all__ = ["help_text"]


def help_text(
    spec: str | None, arguments: Sequence[str], defaults: Any = None, topic: str = ""
) -> str:
    """Every option with text, type, range, choices and default.

    Args:
        spec: a config file; the parts that it names are shown.
        arguments: options of the command line, which may name others.
        defaults: sections to start from, if there is no file.
        topic: a part such as "head.arcface", a section such as "optimizer" or an option such as
            "train.steps", to see that alone.

    Returns:
        The text.
    """
    settings, overrides = read_settings(spec, arguments, defaults)
    chosen = chosen_parts(settings, overrides)
    section, _, name = topic.partition(".")
    try:
        if (
            topic
            and section in KIND_OF_SECTION
            and name in registry.names(KIND_OF_SECTION[section])
        ):
            if name != chosen.get(section):  # another part: what is set is not set for it
                settings = {**settings, section: {}}
            named = {section: name if section in DEFAULT_NAMES else [name]}
            chosen = {**chosen, **named}
            topic = section if section in DEFAULT_NAMES else topic
            if section == "data":
                overrides, topic = {**overrides, "data.name": name}, "data.options"
        elif section in CHANGES:
            chosen[section] = True
        groups = _grouped(_help_options(chosen, settings, overrides), topic)
    except ValueError as error:
        raise ConfigError(str(error)) from None
    if not groups:
        known = [*FIXED, *CHANGES, *DEFAULT_NAMES, *NAMED]
        raise ConfigError(str(unknown_name("section or option", topic, known)))
    return "\n\n".join(
        f"{title}:\n{format_options(listed)}" for title, listed in groups.items() if listed
    )


def _grouped(pairs: Iterable[tuple[str, Option]], topic: str) -> dict[str, list[Option]]:
    """Options under the heading of their section, each under its whole key."""
    groups: dict[str, list[Option]] = {}
    for key, option in pairs:
        if not topic or key == topic or key.startswith(f"{topic}."):
            title = key.rpartition(".")[0] or "run"
            groups.setdefault(title, []).append(dataclasses.replace(option, name=key))
    return groups


def _help_options(
    chosen: Mapping[str, Any], settings: Mapping[str, Any], overrides: Mapping[str, Any]
) -> Iterator[tuple[str, Option]]:
    """`_options`, and what may stand in the sections that their readers check."""
    pairs = list(all_options(chosen))
    data = overrides.get("data.name", (settings.get("data") or {}).get("name", "digits"))
    inner = {"data.options": ("data", data), "head.annealing": ("annealing", "")}
    for key, option in pairs:
        yield key, _with_value(key, option, settings, overrides)
        if key in inner:
            for item in options(*inner[key]).values():
                place = f"{key}.{item.name}"
                yield place, _with_value(place, item, settings, overrides)


def _with_value(
    key: str, option: Option, settings: Mapping[str, Any], overrides: Mapping[str, Any]
) -> Option:
    """The option, with what file or command line set it to."""
    if key in overrides:
        return dataclasses.replace(option, given=parsed_value(overrides[key]))
    value: Any = settings
    for name in key.split("."):
        if not isinstance(value, Mapping) or name not in value:
            return option
        value = value[name]
    return dataclasses.replace(option, given=value)
