"""Arguments of regularizers are looked at when one is made, not when training calls it."""

from __future__ import annotations

import difflib
import math
from collections.abc import Iterable, Sequence
from typing import Any

__all__ = ["did_you_mean", "energy_options", "names", "number", "one_of"]


def did_you_mean(value: Any, known: Iterable[str]) -> str:
    """A hint at the nearest name, or nothing.

    >>> did_you_mean("geo", ["euclidean", "geodesic"])
    "; did you mean 'geodesic'?"
    """
    text, choices = str(value).lower(), list(known)
    longer = [name for name in choices if text and name.startswith(text)]
    near = longer or difflib.get_close_matches(text, choices, n=1)
    return f"; did you mean {near[0]!r}?" if near else ""


def one_of(name: str, value: str, known: Sequence[str]) -> None:
    if value not in known:
        raise ValueError(
            f"{name} must be one of {', '.join(known)}; got {value!r}{did_you_mean(value, known)}"
        )


def number(name: str, value: Any, at_least: float = 0.0) -> None:
    """A finite number not below a bound."""
    try:
        figure = math.nan if isinstance(value, str) else float(value)
    except (TypeError, ValueError, RuntimeError):
        raise TypeError(f"{name} must be a number, got {value!r}") from None
    if not at_least <= figure < math.inf:
        raise ValueError(f"{name} must be a finite number >= {at_least:g}, got {value!r}")


def energy_options(s: float, distance: str, prefix: str = "") -> None:
    """Power and distance of the energy (Eq. 5.1, 5.5)."""
    number(f"{prefix}s", s)
    one_of(f"{prefix}distance", distance, ("euclidean", "geodesic"))


def names(argument: str, value: Sequence[str] | None) -> None:
    """Names of layers come as a sequence: a string would be taken letter by letter."""
    if isinstance(value, str):
        raise TypeError(f"{argument} expects a sequence of names, got the string {value!r}")
