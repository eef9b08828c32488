"""Rates on a command line."""

from __future__ import annotations

import argparse

__all__ = ["rate"]


def rate(text: str) -> float:
    """A rate as argparse reads it, with a hint for those who write 1%.

    Args:
        text: a word of the command line.

    Returns:
        The number; whether it is one between 0 and 1 is looked at where it is used.

    >>> rate("0.01")
    0.01
    """
    try:
        return float(text)
    except ValueError:
        hint = "give a share, such as 0.01"
        if text.rstrip("% ").replace(".", "", 1).isdigit():
            hint = f"give a share, {float(text.rstrip('% ')) / 100:g}"
        raise argparse.ArgumentTypeError(f"{text!r} is no number: {hint}") from None
