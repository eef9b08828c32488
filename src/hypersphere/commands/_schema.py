"""The JSON schema of configs, from the register: with it an editor completes and checks YAML."""

from __future__ import annotations

import types
import typing
from collections.abc import Mapping
from typing import Any, Literal, Union

from hypersphere import registry
from hypersphere.commands._config import FIXED
from hypersphere.commands._options import describe
from hypersphere.ranges import Range
from hypersphere.training.parts import (
    CHANGES,
    KIND_OF_SECTION,
    REQUIRED,
    Option,
    options,
    section_options,
)

__all__ = ["config_schema"]

_SIMPLE = {int: "integer", float: "number", str: "string", bool: "boolean", type(None): "null"}


def config_schema() -> dict[str, Any]:
    """The schema of a config file, with everything that is registered now.

    Returns:
        A JSON schema (draft 2020-12). Sections may be left out, and every part of one, too: files
        build on one another.
    """
    properties: dict[str, Any] = {name: _value(o) for name, o in section_options().items()}
    for section in FIXED:
        properties[section] = _section(section_options(section))
    for section in CHANGES:
        properties[section] = {"anyOf": [_section(options(section, "")), {"type": "null"}]}
    for section in ("model", "head"):
        properties[section] = _named(section)
    for section in ("regularizers", "hooks"):
        properties[section] = _parts(section)
    properties["base"] = {"type": "string", "description": "A file that this one builds on."}
    body = {"type": "object", "properties": properties, "additionalProperties": False}
    variants = {
        "type": "object",
        "description": "Named sets of changes, taken with FILE.yaml:NAME.",
        "additionalProperties": {"$ref": "#"},
    }
    properties["variants"] = variants
    return {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "title": "a config of hypersphere train",
        **body,
    }


def _section(known: Mapping[str, Option]) -> dict[str, Any]:
    properties = {name: _value(option) for name, option in known.items()}
    return {"type": "object", "properties": properties, "additionalProperties": False}


def _named(section: str) -> dict[str, Any]:
    """A section whose options depend on its name."""
    names = registry.names(KIND_OF_SECTION[section])
    cases = []
    for name in names:
        listed = {"name": {"const": name}, **_section(options(section, name))["properties"]}
        cases.append(
            {
                "if": {"properties": {"name": {"const": name}}, "required": ["name"]},
                "then": {"properties": listed, "additionalProperties": False},
            }
        )
    return {"type": "object", "properties": {"name": {"enum": names}}, "allOf": cases}


def _parts(section: str) -> dict[str, Any]:
    """A section of parts by name, each with its own options."""
    kind = KIND_OF_SECTION[section]
    taken = {
        name: {"anyOf": [_section(options(section, name)), {"type": "null"}]}
        for name in registry.names(kind)
    }
    return {"type": "object", "properties": taken, "additionalProperties": False}


def _value(option: Option) -> dict[str, Any]:
    schema = _type(option.type)
    if option.choices and schema.get("type") == "string":
        schema = {"enum": list(option.choices)}
    if isinstance(option.range, Range):
        schema = _limited(schema, option.range)
    schema["description"] = describe(option)
    if option.default is not REQUIRED and isinstance(
        option.default, (str, int, float, list, type(None))
    ):
        schema["default"] = option.default
    return schema


def _limited(schema: dict[str, Any], limits: Range) -> dict[str, Any]:
    words = {"ge": "minimum", "gt": "exclusiveMinimum", "le": "maximum", "lt": "exclusiveMaximum"}
    bounds = {
        word: getattr(limits, name)
        for name, word in words.items()
        if getattr(limits, name) is not None
    }
    if "anyOf" in schema:
        return {"anyOf": [_limited(member, limits) for member in schema["anyOf"]]}
    if schema.get("type") == "array":
        return {**schema, "items": _limited(schema["items"], limits)}
    return {**schema, **bounds} if schema.get("type") in ("integer", "number") else schema


def _type(hint: Any) -> dict[str, Any]:
    origin, arguments = typing.get_origin(hint), typing.get_args(hint)
    if hint in _SIMPLE:
        return {"type": _SIMPLE[hint]}
    if origin is Literal:
        return {"enum": list(arguments)}
    if origin in (Union, types.UnionType):
        return {"anyOf": [_type(member) for member in arguments]}
    if origin in (list, tuple):
        return {"type": "array", "items": _type(arguments[0])}
    if origin is dict or hint is dict:
        return {"type": "object"}
    return {}
