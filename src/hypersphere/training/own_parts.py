"""Parts that are not of this package: registered by a plugin, or given as objects in a Config.

A run records them with their source, and a config read from a run folder imports nothing: it asks
for the plugin, or for the object.
"""

from __future__ import annotations

import shlex
import sysconfig
import traceback
import warnings
from collections.abc import Mapping
from dataclasses import fields
from pathlib import Path
from typing import Any

from torch import nn

from hypersphere.registry import KINDS, entries, origin
from hypersphere.training.sections import Section

__all__ = ["NAMED_BY_OPTION", "OBJECT", "as_section", "object_of", "plain_values", "require_parts"]
__all__ += ["place_of", "plugins_of", "used_parts", "without_places"]

# The key under which a section holds an object that was given in Python.
OBJECT = "object"
# The kind of part that an option of this name names.
NAMED_BY_OPTION = {
    "angular": "angular",
    "magnitude": "magnitude",
    "operator": "magnitude",
    "margin": "margin",
}


_WARNED: dict[str | tuple[str, type[Warning], int], int] = {}
_PACKAGE = str(Path(__file__).resolve().parents[1])
_LIBRARIES = tuple({sysconfig.get_path(name) for name in ("stdlib", "purelib", "platlib")})


def place_of(error: BaseException) -> str:
    """Where a part that is not of this package raised an error.

    Args:
        error: what was raised.

    Returns:
        " (FILE, line N)", the last line of the user's own that this package called; empty if there
        is none.
    """
    place, called = "", False
    for frame in traceback.extract_tb(error.__traceback__):
        if frame.filename.startswith(_PACKAGE):
            called = True
        elif called and not frame.filename.startswith((*_LIBRARIES, "<")):
            place = f" ({frame.filename}, line {frame.lineno})"
    return place


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


def plugins_of(config: Any) -> list[str]:
    """The plugins that a config needs.

    Args:
        config: a config.

    Returns:
        The file of each, or its module where there is no file.
    """
    parts = used_parts(config).values()
    return list(dict.fromkeys(str(part["file"] or part["module"]) for part in parts))


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
        where = shlex.quote(str(record.get("file") or record.get("module")))
        if name not in known:
            raise ValueError(
                f"this run uses the {KINDS[kind]} {name!r} of the plugin {where}, which is not "
                f"loaded: give it with --plugin {where}, or import it first in Python"
            )
        now = origin(known[name].target)
        if record.get("sha256") and now["sha256"] != record["sha256"]:
            # A register of warnings of its own: once, however often the record is read.
            warnings.warn_explicit(
                f"{now['file']}, which has the {KINDS[kind]} {name!r}, has changed since this run "
                f"was made",
                UserWarning,
                str(now["file"]),
                1,
                registry=_WARNED,
            )


def _is_plain(value: Any) -> bool:
    return value is None or isinstance(value, (str, int, float, bool, list, tuple, Mapping))


def as_section(key: str, part: Any) -> Any:
    """The section of a part, from what stands in its place.

    Args:
        key: the section, such as "model" or "hooks.mine".
        part: the section itself, the name of a model or a head, or an object.

    Returns:
        The section as it is, {"name": part} or {"object": part}.

    Raises:
        ValueError: if it is none of these.
    """
    named_by_key = "." in key
    if isinstance(part, str) and not named_by_key:
        return {"name": part}
    if _is_plain(part) and not isinstance(part, Mapping):
        usual = (
            "a section of options" if named_by_key else "a name, a section with name and options"
        )
        raise ValueError(f"{key} is {usual}, or an object; got {part!r}")
    if isinstance(part, type):
        raise ValueError(f"{key} is the class {part.__name__}: give an object, {part.__name__}()")
    if key in ("model", "head") and not isinstance(part, (Mapping, nn.Module)):
        raise ValueError(
            f"{key} has to be an nn.Module, so that its parameters are trained and saved; got "
            f"{type(part).__name__}"
        )
    return part if isinstance(part, Mapping) else {OBJECT: part}


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
