"""Rates on a command line."""

from __future__ import annotations

import argparse
from typing import Annotated

from ..ranges import Range
from ._numbers import read_as

__all__ = ["rate"]

Rate = Annotated[float, Range(gt=0, lt=1)]


def rate(text: str) -> float:
    """A rate as argparse reads it, with a hint for those who write 1%.

    Args:
        text: a word of the command line.

    Returns:
        The number, between 0 and 1.

    >>> rate("0.01")
    0.01
    """
    try:
        float(text)
    except ValueError:
        hint = "give a share, such as 0.01"
        if text.rstrip("% ").replace(".", "", 1).isdigit():
            hint = f"give a share, {float(text.rstrip('% ')) / 100:g}"
        raise argparse.ArgumentTypeError(f"{text!r} is no number: {hint}") from None
    return float(read_as(Rate)(text))
