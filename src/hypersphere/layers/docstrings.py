"""Docstrings of layers that differ from another layer in one respect only."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import TypeVar

__all__ = ["with_arguments_of"]

_Class = TypeVar("_Class", bound=type)


def with_arguments_of(source: type) -> Callable[[_Class], _Class]:
    """Append the section `Args:` of another class to the docstring of a class.

    Args:
        source: the class whose arguments are the same.

    Returns:
        A decorator that returns its class.
    """
    text = inspect.getdoc(source) or ""
    section = text[text.index("Args:") :].split("\n\n")[0]

    def decorate(target: _Class) -> _Class:
        target.__doc__ = f"{inspect.cleandoc(target.__doc__ or '')}\n\n{section}\n"
        return target

    return decorate
