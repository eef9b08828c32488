"""Functions that users give for g and h: each value depends on one input."""

from __future__ import annotations

from collections.abc import Callable

from torch import Tensor

from .plain_sizes import plain_sizes

__all__ = ["apply_elementwise"]


def apply_elementwise(function: Callable[[Tensor], Tensor], x: Tensor) -> Tensor:
    """function(x), which must have the shape of x: another would be broadcast without a word.

    Args:
        function: maps a tensor to one of the same shape.
        x: cosines or norms, any shape.

    Returns:
        The values, shaped like x.

    Raises:
        ValueError: if the shape differs.
    """
    value = function(x)
    if plain_sizes(value) != plain_sizes(x):
        name = getattr(function, "__qualname__", function)
        raise ValueError(
            f"{name} has to give a value for each of its inputs {tuple(plain_sizes(x))}; got "
            f"{tuple(plain_sizes(value))}"
        )
    return value
