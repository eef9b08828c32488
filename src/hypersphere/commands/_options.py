"""Options as text: what ``--help`` and the listings print."""

from __future__ import annotations

import re
import types
import typing
from collections.abc import Iterable, Mapping
from typing import Any, Literal, Union

from hypersphere._terminal import hanging
from hypersphere.ranges import Range
from hypersphere.training.parts import REQUIRED, Option

__all__ = ["describe", "format_options", "type_text"]

# A default that the docstring gives as a Python value; the signature has it, too.
_PLAIN_DEFAULT = re.compile(r"\s*Default: (True|False|None|[-+.\de]+)\.?$")
_ROLE = re.compile(r":\w+:`~?([^`]+)`")  # :func:`~package.name` of Sphinx
SYMBOLS = ("alpha", "beta", "gamma", "eps", "kappa", "lambda", "phi", "psi", "rho", "theta")


def format_options(options: Iterable[Option], prefix: str = "--") -> str:
    """Each option with its type, text, range, choices and default.

    Args:
        options: the options.
        prefix: what stands before each name, such as "--head.".

    Returns:
        The lines, wrapped; empty without options.
    """
    lines = []
    for option in options:
        lines.append(f"  {prefix}{option.name} {type_text(option.type).upper()}")
        lines.append(hanging(" " * 6, describe(option)))
    return "\n".join(lines)


def describe(option: Option) -> str:
    """Text, range, choices and default of an option in one line.

    Args:
        option: the option.

    Returns:
        The text of its docstring, with a sentence for each that it does not have yet.
    """
    text = _ROLE.sub(r"`\1`", _PLAIN_DEFAULT.sub("", option.help.strip())).replace("``", "`")
    first = text.partition(" ")[0].rstrip(".,:;")
    if first == "a" or (first.isalpha() and len(first) > 1 and first not in SYMBOLS):
        text = text[:1].upper() + text[1:]
    parts = [text if text.endswith((".", "?", "!")) or not text else f"{text}."]
    if option.choices:
        parts.append(f"One of: {', '.join(option.choices)}.")
    if isinstance(option.range, Range):
        parts.append(f"Range: {option.range}.")
    if option.default is REQUIRED:
        parts.append("Required.")
    elif "Default:" not in text:
        parts.append(f"Default: {_shown(option.default)}.")
    if option.given is not REQUIRED and option.given != option.default:
        parts.append(f"In this run: {_shown(option.given)}.")
    return " ".join(part for part in parts if part)


def type_text(hint: Any) -> str:
    """A type in a word or two.

    Args:
        hint: the type of an option.

    >>> type_text(int | None), type_text(list[int]), type_text(Literal["a", "b"])
    ('int or null', 'list of int', 'name')
    """
    origin, arguments = typing.get_origin(hint), typing.get_args(hint)
    if hint is Any:
        return "value"
    if origin is Literal:
        return "name"
    if origin in (Union, types.UnionType):
        return " or ".join(dict.fromkeys(type_text(member) for member in arguments))
    if origin in (list, tuple):
        return f"list of {type_text(arguments[0])}" if arguments else "list"
    if origin is dict or hint is dict:
        return "section"
    words = {type(None): "null", str: "text", bool: "true|false"}
    return words.get(hint, getattr(hint, "__name__", str(hint)))


def _shown(value: Any) -> str:
    if value is None:
        return "null"
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, float):
        return f"{value:g}"
    if isinstance(value, Mapping):
        return ", ".join(f"{key} {_shown(item)}" for key, item in value.items())
    return str(value) if value != "" else "empty"
