"""Text for a terminal: within its width, and safe to print if it comes from files."""

from __future__ import annotations

import logging
import os
import re
import shutil
import sys
import textwrap
import unicodedata
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
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
    # In `... --help | less` the terminal is behind stderr.
    stream = next((s for s in (sys.stdout, sys.stderr) if s.isatty()), None)
    given = shutil.get_terminal_size((LONGEST_LINE + 1, 0)).columns
    columns = given if stream is None else columns_of(stream)
    width = max(40, min(LONGEST_LINE, columns - 1))
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


def duration(seconds: float) -> str:
    """A time one can read.

    Args:
        seconds: the time.

    >>> duration(5.2), duration(95), duration(7322)
    ('5s', '1m35s', '2h02m')
    """
    whole = int(seconds)
    if whole < 60:
        return f"{whole}s"
    if whole < 3600:
        return f"{whole // 60}m{whole % 60:02d}s"
    return f"{whole // 3600}h{whole % 3600 // 60:02d}m"


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


def begin(text: str, everywhere: bool = False) -> bool:
    """Say on stderr what a command begins with, if it has torch to import, which takes seconds.

    Args:
        text: what is said.
        everywhere: also where stderr is no terminal.

    Returns:
        Whether it was said.
    """
    said = "torch" not in sys.modules and (everywhere or sys.stderr.isatty())
    if said:
        print(printable(text), file=sys.stderr, flush=True)
    return said


def complain(command: str, error: object) -> None:
    """Say on stderr why a command cannot do what it was asked.

    Args:
        command: the command, such as "train"; empty for `hypersphere` itself.
        error: the reason; control characters in it are escaped, and the middle of very long words
            and texts is left out.
    """
    print(_message(command, error), file=sys.stderr, flush=True)


def _message(command: str, what: object) -> str:
    text = printable(what, newlines=True)
    text = re.sub(rf"\S{{{LONGEST_WORD},}}", lambda word: _shortened(word[0], LONGEST_WORD), text)
    text = f"hypersphere {command}".rstrip() + f": {_shortened(text, LONGEST)}"
    if sys.stderr.isatty():  # a file or another program gets each message in one piece
        text = wrapped(text, columns_of(sys.stderr) - 1)
    return text


@contextmanager
def plain_warnings(command: str) -> Iterator[None]:
    """Warnings as sentences of a command: the line of code that they come from helps its user not.

    Only how they are printed changes, not which ones are, nor who records them.

    Args:
        command: the command, such as "train".
    """
    before = warnings.formatwarning

    def sentence(
        message: Warning | str,
        category: type[Warning],
        filename: str,
        lineno: int,
        line: str | None = None,
    ) -> str:
        if category is UserWarning:
            return _message(command, message) + "\n"
        return before(message, category, filename, lineno, line)

    warnings.formatwarning = sentence
    try:
        yield
    finally:
        warnings.formatwarning = before


@contextmanager
def plain_log(command: str) -> Iterator[None]:
    """What the library logs as sentences of a command: warnings, and on a terminal what takes long.

    Args:
        command: the command, such as "train".
    """

    class Sentences(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            complain(command, record.getMessage())

    logger = logging.getLogger("hypersphere")
    handler, level = Sentences(), logger.level
    logger.addHandler(handler)
    logger.setLevel(logging.INFO if sys.stderr.isatty() else logging.WARNING)
    try:
        yield
    finally:
        logger.removeHandler(handler)
        logger.setLevel(level)


def columns_of(stream: TextIO) -> int:
    """Columns of the terminal behind a stream.

    Args:
        stream: a terminal.

    Returns:
        COLUMNS, if it is set; else what the terminal says, or 80.
    """
    try:
        given = int(os.environ.get("COLUMNS", "0"))
        return given or os.get_terminal_size(stream.fileno()).columns
    except (ValueError, OSError):
        return 80


# What is copied from a message in one piece: what is quoted, and a command up to its end.
_WHOLE = re.compile(r"`[^`]+`|(?<!\w)'[^']+'|(?<=: )hypersphere .*$|(?<=: )torchrun .*$")
_JOINT = "\0"  # in place of a space that is no place to break


def wrapped(text: str, width: int) -> str:
    """Break the lines of a message between words.

    Args:
        text: the message; lines that are indented (tables, commands) stay as they are.
        width: the longest line. Commands and what is quoted stay in one piece, however long.

    Returns:
        The message.

    >>> print(wrapped("m must be at least 1; see `hypersphere heads a_softmax`", 30))
    m must be at least 1; see
    `hypersphere heads a_softmax`
    """
    lines = []
    for line in text.split("\n"):
        if len(line) <= width or line.startswith((" ", "\t")):
            lines.append(line)
            continue
        joined = _WHOLE.sub(lambda found: found[0].replace(" ", _JOINT), line)
        parts = textwrap.wrap(joined, width, break_long_words=False, break_on_hyphens=False)
        lines += [part.replace(_JOINT, " ") for part in parts]
    return "\n".join(lines)


def _shortened(text: str, longest: int) -> str:
    half = longest // 2
    return text if len(text) <= longest else f"{text[:half]} ... {text[-half:]}"
