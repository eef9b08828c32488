"""Text from files and other people, made safe to print on a terminal."""

from __future__ import annotations

import sys
import unicodedata

# Letters written from the right are text; these marks turn around what stands beside them.
DIRECTION_MARKS = frozenset("\u202a\u202b\u202c\u202d\u202e\u2066\u2067\u2068\u2069")
LONGEST = 1200  # characters of a message: files may hold names without end
UNSAFE = ("Cc", "Cs", "Zl", "Zp")  # control characters, lone surrogates, line separators


def printable(text: object, newlines: bool = False) -> str:
    r"""Escape what a terminal would obey instead of showing.

    Args:
        text: a name, a path or a message with such parts.
        newlines: keep line breaks and tabs, for messages and tables of several lines.

    Returns:
        The text with control characters as `\x1b` and the like.

    >>> print(printable("eve\x1b[2J"))
    eve\x1b[2J
    """
    kept = "\n\t" if newlines else ""
    return "".join(
        c if c in kept or not _is_unsafe(c) else c.encode("unicode_escape").decode()
        for c in str(text)
    )


def _is_unsafe(character: str) -> bool:
    return character in DIRECTION_MARKS or unicodedata.category(character) in UNSAFE


def complain(command: str, error: object) -> None:
    """Say on stderr why a command cannot do what it was asked.

    Args:
        command: the command, such as "train"; empty for `hypersphere` itself.
        error: the reason; control characters in it are escaped, and its middle is left out if it is
            very long.
    """
    text = printable(error, newlines=True)
    if len(text) > LONGEST:
        half = LONGEST // 2
        text = f"{text[:half]} ... {text[-half:]}"
    print(f"hypersphere {command}".rstrip() + f": {text}", file=sys.stderr, flush=True)
