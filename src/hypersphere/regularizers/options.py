"""Options of regularizers are checked when one is made, not when training calls it."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from typing import Any

from ..registry import nearest

__all__ = ["energy_options", "number", "one_of", "sequence_of_names", "suggestion"]


def suggestion(value: Any, known: Iterable[str]) -> str:
    """The nearest of the known names as the end of a message, or nothing.

    >>> suggestion("geo", ["euclidean", "geodesic"])
    "; did you mean 'geodesic'?"
    """
    near = nearest(str(value).lower(), known)
    return f"; did you mean {near!r}?" if near else ""


def one_of(name: str, value: str, known: Sequence[str]) -> None:
    """Refuse a value that is not one of the known names."""
    if value not in known:
        raise ValueError(
            f"{name} must be one of {', '.join(known)}; got {value!r}{suggestion(value, known)}"
        )


def number(name: str, value: Any, at_least: float = 0.0) -> None:
    """Refuse what is not a finite number, or is below a bound."""
    try:
        figure = math.nan if isinstance(value, str) else float(value)
    except (TypeError, ValueError, RuntimeError):
        raise TypeError(f"{name} must be a number, got {value!r}") from None
    if not at_least <= figure < math.inf:
        raise ValueError(f"{name} must be a finite number >= {at_least:g}, got {value!r}")


def energy_options(s: float, distance: str, prefix: str = "") -> None:
    """Refuse a power or a distance for which the energy is not defined (Eq. 5.1, 5.5)."""
    number(f"{prefix}s", s)
    one_of(f"{prefix}distance", distance, ("euclidean", "geodesic"))


def sequence_of_names(argument: str, value: Sequence[str] | None) -> None:
    """Refuse a single string where a sequence is meant: it would be taken letter by letter."""
    if isinstance(value, str):
        raise TypeError(f"{argument} expects a sequence of names, got the string {value!r}")
