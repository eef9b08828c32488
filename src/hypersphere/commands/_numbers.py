"""Numbers and names on a command line that argparse reads, with their ranges."""

from __future__ import annotations

import argparse
from collections.abc import Callable
from typing import Annotated, Any

from hypersphere.ranges import NonEmpty, Range, check, without_range

__all__ = ["Cosine", "Count", "Name", "NotNegative", "Positive", "Seed", "read_as"]

Cosine = Annotated[float, Range(ge=-1, le=1)]
Count = Annotated[int, Range(ge=1)]
Name = Annotated[str, NonEmpty()]
NotNegative = Annotated[float, Range(ge=0)]
Positive = Annotated[float, Range(gt=0)]
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
    kind = without_range(hint)

    def read(text: str) -> Any:
        try:
            value = kind(text)
        except ValueError:
            value = text
        try:
            check("it", value, hint)
        except ValueError as error:
            said = str(error).removeprefix("it must be ").removeprefix("it must ")
            raise argparse.ArgumentTypeError(f"expected {said}") from None
        return value

    return read
