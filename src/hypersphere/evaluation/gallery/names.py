"""Names of people, as text."""

from __future__ import annotations

import numbers
from typing import Any

import numpy as np
from torch import Tensor


def text_names(what: str, names: Any) -> list[str]:
    """A text per sample; refuse what is neither a text nor a whole number.

    Args:
        what: what a message calls them.
        names: a list, an array or a tensor of texts or whole numbers.

    Returns:
        The names.

    Raises:
        TypeError: if one is of another kind: a number with a fraction or none at all is no name.

    >>> text_names("names", ["ada", 7])
    ['ada', '7']
    >>> text_names("names", [float("nan")])
    Traceback (most recent call last):
    TypeError: names: expected texts or whole numbers; got nan (float) at place 0
    """
    items = names.tolist() if hasattr(names, "tolist") else names
    if isinstance(items, (str, bytes)):
        raise ValueError(f"{what}: expected a name per sample; got one text, {names!r}")
    return [_text(what, place, item) for place, item in enumerate(items)]


def _text(what: str, place: int, item: Any) -> str:
    value = item.item() if isinstance(item, (Tensor, np.generic)) and item.ndim == 0 else item
    if isinstance(value, str):
        return str(value)
    if isinstance(value, numbers.Integral) and not isinstance(value, bool):
        return str(int(value))
    raise TypeError(
        f"{what}: expected texts or whole numbers; got {value!r} ({type(value).__name__}) at "
        f"place {place}"
    )
