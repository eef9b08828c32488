"""The text of each argument, read from Google-style docstrings."""

from __future__ import annotations

import inspect
import re
from typing import Any

__all__ = ["argument_texts", "read_arguments"]

_SECTION = re.compile(r"^(Args|Arguments|Attributes|Parameters):\s*$")
_ENTRY = re.compile(r"^(\*{0,2}\w+(?:\s*,\s*\*{0,2}\w+)*)(?:\s*\([^)]*\))?:\s*(.*)$")


def argument_texts(target: Any) -> dict[str, str]:
    """The text of each argument of a class or function.

    A class is read with its base classes, whose arguments it may pass on, and with its
    ``__init__``; what stands closest to the class wins.

    Args:
        target: a class or function with an ``Args:`` section.

    Returns:
        One line of text for each argument that the docstrings name.
    """
    if not inspect.isclass(target):
        return read_arguments(inspect.getdoc(target) or "")
    found: dict[str, str] = {}
    for cls in reversed(target.__mro__[:-1]):
        for holder in (cls, cls.__dict__.get("__init__")):
            text = holder.__doc__ if holder is not None else None
            found.update(read_arguments(inspect.cleandoc(text) if text else ""))
    return found


def read_arguments(text: str) -> dict[str, str]:
    """The entries of the ``Args:`` section of a docstring.

    Args:
        text: the docstring, without its indentation.

    Returns:
        The text of each argument, its lines joined.

    >>> read_arguments("A sum.\\n\\nArgs:\\n    a: the first\\n        number.\\n    b, c: others.")
    {'a': 'the first number.', 'b': 'others.', 'c': 'others.'}
    """
    found: dict[str, str] = {}
    names: list[str] = []
    inside, indent = False, None
    for line in text.splitlines():
        stripped = line.strip()
        depth = len(line) - len(line.lstrip())
        if not inside or (stripped and depth == 0):
            inside, indent, names = _SECTION.match(line) is not None, None, []
            continue
        if not stripped:
            continue
        indent = depth if indent is None else indent
        entry = _ENTRY.match(stripped) if depth == indent else None
        if entry is not None:
            names = [name.strip().lstrip("*") for name in entry[1].split(",")]
            found.update(dict.fromkeys(names, entry[2]))
        else:
            for name in names:
                found[name] = f"{found[name]} {stripped}".strip()
    return found
