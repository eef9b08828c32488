"""Numbers and names on a command line that argparse reads, with their ranges."""

from __future__ import annotations

import argparse
import contextlib
from collections.abc import Callable
from typing import Annotated, Any

from hypersphere.ranges import NonEmpty, Processes, Range, check, without_range

__all__ = ["Cosine", "Count", "Name", "NotNegative", "Positive", "Processes", "Seed", "Share"]
__all__ += ["read_as", "read_value"]

Cosine = Annotated[float, Range(ge=-1, le=1)]
Count = Annotated[int, Range(ge=1)]
Name = Annotated[str, NonEmpty()]
NotNegative = Annotated[float, Range(ge=0)]
Positive = Annotated[float, Range(gt=0)]
Share = Annotated[float, Range(ge=0, le=1)]
Seed = Annotated[int, Range(ge=0, lt=2**32)]


def read_as(hint: Any) -> Callable[[str], Any]:
    """What argparse calls with a word, for the type and range of a number, or for a text.

    Args:
        hint: a type with its range, such as `Count`.

    Returns:
        A function from text to a value of that type, which refuses one out of the range.

    >>> read_as(Count)("3")
    3
    >>> read_as(Count)("0")
    Traceback (most recent call last):
    argparse.ArgumentTypeError: expected a whole number >= 1; got 0
    """

    def read(text: str) -> Any:
        try:
            return read_value("it", text, hint)
        except ValueError as error:
            said = str(error).removeprefix("it must be ").removeprefix("it must ")
            raise argparse.ArgumentTypeError(f"expected {said}") from None

    return read


def read_value(name: str, text: str, hint: Any) -> Any:
    """A word of the command line as a value of a type and range.

    Args:
        name: the option, for the message.
        text: the word.
        hint: a type with its range, such as `Count`.

    Returns:
        The value.

    Raises:
        ValueError: if it is of another type or out of the range.

    >>> read_value("--jobs", "4", Count)
    4
    """
    value: Any = text
    with contextlib.suppress(ValueError):
        value = without_range(hint)(text)
    check(name, value, hint)
    return value
