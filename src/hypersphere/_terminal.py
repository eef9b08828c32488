"""Text for a terminal: within its width, and safe to print if it comes from files."""

from __future__ import annotations

import os
import re
import shutil
import sys
import textwrap
import unicodedata
from typing import TextIO

LONGEST_LINE = 96  # longer ones are tiring to read, however wide the terminal

# Letters written from the right are text; these marks turn around what stands beside them.
DIRECTION_MARKS = frozenset("\u202a\u202b\u202c\u202d\u202e\u2066\u2067\u2068\u2069")
LONGEST = 1200  # characters of a message: files may hold names without end
LONGEST_WORD = 240
UNSAFE = ("Cc", "Cs", "Zl", "Zp")  # control characters, lone surrogates, line separators


def hanging(start: str, text: str) -> str:
    """A paragraph whose further lines begin below its text.

    Args:
        start: what stands before the text, such as a name in a table.
        text: the text.

    Returns:
        Lines that fit the terminal.

    >>> print(hanging("  train  ", "train a model"))
      train  train a model
    """
    columns = shutil.get_terminal_size((LONGEST_LINE + 1, 0)).columns - 1
    width = max(40, min(LONGEST_LINE, columns))
    if len(start) > width // 2:
        return f"{start.rstrip()}\n" + hanging(" " * 8, text)
    return textwrap.fill(
        text,
        width,
        initial_indent=start,
        subsequent_indent=" " * len(start),
        break_on_hyphens=False,
        break_long_words=False,  # an address stays whole
    )


COLORS = {"bold": "1", "dim": "2", "red": "31", "green": "32", "yellow": "33"}


def paint(text: str, color: str, stream: TextIO) -> str:
    """Text in a color or weight, if the stream is a terminal and NO_COLOR is not set.

    Args:
        text: what is printed.
        color: "bold", "dim", "red", "green" or "yellow".
        stream: where it will be printed.

    Returns:
        The text, with escapes around it only where they are welcome.
    """
    if os.environ.get("NO_COLOR") or os.environ.get("TERM") == "dumb" or not stream.isatty():
        return text
    return f"\033[{COLORS[color]}m{text}\033[0m"


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
        error: the reason; control characters in it are escaped, and the middle of very long words
            and texts is left out.
    """
    text = printable(error, newlines=True)
    text = re.sub(rf"\S{{{LONGEST_WORD},}}", lambda word: _shortened(word[0], LONGEST_WORD), text)
    text = _shortened(text, LONGEST)
    print(f"hypersphere {command}".rstrip() + f": {text}", file=sys.stderr, flush=True)


def _shortened(text: str, longest: int) -> str:
    half = longest // 2
    return text if len(text) <= longest else f"{text[:half]} ... {text[-half:]}"
