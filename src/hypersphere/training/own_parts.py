"""Parts that are not of this package: registered by a plugin, or given as objects in a Config.

A run records them with their source, and a config read from a run folder imports nothing: it asks
for the plugin, or for the object.
"""

from __future__ import annotations

import warnings
from collections.abc import Mapping
from dataclasses import fields
from typing import Any

from hypersphere.registry import KINDS, entries, origin
from hypersphere.training.sections import Section

__all__ = ["NAMED_BY_OPTION", "OBJECT", "as_section", "object_of", "plain_values", "require_parts"]
__all__ += ["used_parts", "without_places"]

# The key under which a section holds an object that was given in Python.
OBJECT = "object"
# The kind of part that an option of this name names.
NAMED_BY_OPTION = {
    "angular": "angular",
    "magnitude": "magnitude",
    "operator": "magnitude",
    "margin": "margin",
}


def without_places(values: Mapping[str, Any]) -> dict[str, Any]:
    """The settings that two runs have to share in order to be the same run.

    Args:
        values: what `Config.to_dict` gave.

    Returns:
        The same without modules and files of parts, which may lie elsewhere; their SHA-256 stays.
    """
    parts = {k: part.get("sha256") for k, part in (values.get("parts") or {}).items()}
    return {**values, "parts": parts} if parts else dict(values)


def object_of(section: Any) -> Any:
    """The object that a section holds instead of a name.

    Args:
        section: a section such as ``config.model``.

    Returns:
        The object; None if the section names a registered part.

    Raises:
        ValueError: if only the record of an object is left, as in a config read from a run folder.
    """
    if not isinstance(section, Mapping) or OBJECT not in section:
        return None
    found = section[OBJECT]
    if isinstance(found, str):
        raise ValueError(
            f"this run was made with an object of {found}, which a run folder cannot bring back: "
            f"give it again, in the Config to resume, or as load_net(folder, net=...) to evaluate"
        )
    return found


def used_parts(config: Any) -> dict[str, dict[str, Any]]:
    """The parts of a config that do not come from this package, and where they come from.

    Args:
        config: a config.

    Returns:
        Module, file and SHA-256 by "kind.name" or, for an object, "kind object.class".
    """
    found: dict[str, dict[str, Any]] = {}
    sections: list[tuple[str, Any]] = [("model", config.model), ("head", config.head)]
    sections += [("regularizer", part) for part in config.regularizers.values()]
    sections += [("hook", part) for part in config.hooks.values()]
    sections += [("data", {"name": config.data.name})]
    for kind, section in sections:
        for option, value in section.items():
            if not _is_plain(value):
                named = NAMED_BY_OPTION.get(option, kind)
                found[f"{named} {OBJECT}.{_class_name(value)}"] = dict(origin(value))
    for kind, name in _names(config):
        for part in entries(kind):
            if part.name == name and part.own:
                found[f"{kind}.{name}"] = dict(origin(part.target))
    return found


def _names(config: Any) -> list[tuple[str, str]]:
    """(kind, name) of every part that the config names, each once."""
    found: dict[tuple[str, str], None] = {("task", config.task): None}
    if isinstance(config.data.name, str):
        found["data", config.data.name] = None
    sections = [("model", config.model), ("head", config.head), ("model", config.gan.generator)]
    for kind, parts in (("regularizer", config.regularizers), ("hook", config.hooks)):
        sections += [(kind, {**part, "name": name}) for name, part in parts.items()]
    for kind, section in sections:
        if isinstance(section.get("name"), str) and OBJECT not in section:
            found[kind, section["name"]] = None
        for option, named in NAMED_BY_OPTION.items():
            value = section.get(option)
            value = value.get("name") if isinstance(value, Mapping) else value
            if isinstance(value, str):
                found[named, value] = None
    return list(found)


def require_parts(records: Any) -> None:
    """Refuse a config whose parts are not registered, and say which plugin has them.

    Args:
        records: "parts" of `Config.to_dict`.

    Raises:
        ValueError: if a part is not registered.
    """
    for key, record in (records or {}).items():
        kind, _, name = key.partition(".")
        if kind not in KINDS:  # an object, which is asked for when it is needed
            continue
        known = {part.name: part for part in entries(kind)}
        where = record.get("file") or record.get("module")
        if name not in known:
            raise ValueError(
                f"this run uses the {KINDS[kind]} {name!r} of the plugin {where}, which is not "
                f"loaded: give it with --plugin {where}, or import it first in Python"
            )
        now = origin(known[name].target)
        if record.get("sha256") and now["sha256"] != record["sha256"]:
            warnings.warn(
                f"{now['file']}, which has the {KINDS[kind]} {name!r}, has changed since this run "
                f"was made",
                stacklevel=3,
            )


def _is_plain(value: Any) -> bool:
    return value is None or isinstance(value, (str, int, float, bool, list, tuple, Mapping))


def as_section(part: Any) -> Any:
    """A section that holds an object.

    Args:
        part: a section, or the object that stands in its place.

    Returns:
        The section as it is, or {"object": part}.
    """
    return part if _is_plain(part) else {OBJECT: part}


def _class_name(value: Any) -> str:
    kind = value if isinstance(value, type) or hasattr(value, "__qualname__") else type(value)
    return f"{kind.__module__}.{kind.__qualname__}"


def plain_values(value: Any) -> Any:
    """A copy in plain values.

    Args:
        value: a section, a dictionary, a list or a value.

    Returns:
        Nested dictionaries and lists; an object is recorded as {"object": "module.Class"}.
    """
    if isinstance(value, Section):
        names = [item.name for item in fields(value)]  # type: ignore[arg-type]
        return {name: plain_values(getattr(value, name)) for name in names}
    if isinstance(value, Mapping):
        given = value.get(OBJECT)
        if not _is_plain(given):
            return {OBJECT: _class_name(given)}
        return {key: plain_values(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return type(value)(plain_values(item) for item in value)
    return value if _is_plain(value) else {OBJECT: _class_name(value)}
