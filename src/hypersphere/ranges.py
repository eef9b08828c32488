"""The range of a number, written beside its type and checked where the number enters.

>>> from typing import Annotated
>>> Rate = Annotated[float, Range(ge=0)]
>>> check("optimizer.lr", -1.0, Rate)
Traceback (most recent call last):
ValueError: optimizer.lr must be a number >= 0; got -1.0

Sections of a config and the constructors of registered parts write their ranges this way; reading a
config, building one in Python and ``--help`` take them from there. This module imports nothing of
the package but the register's error for unknown names.
"""

from __future__ import annotations

import math
import types
import typing
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import PurePath, PurePosixPath, PureWindowsPath
from typing import Annotated, Any, Literal, TypeAlias, Union

from .registry import unknown_name

__all__ = ["LARGEST_RATE", "Inside", "NonEmpty", "Processes", "Range", "Rate", "Workers", "check"]
__all__ += ["literal_choices", "range_of", "without_range"]

# Beyond this a whole number overflows the 64 bits that torch has for it.
_LARGEST = 2**63 - 1


@dataclass(frozen=True)
class Range:
    """An interval of numbers. Infinity and nan are in none; a list is checked item by item.

    Args:
        gt: the numbers are greater than this.
        ge: the numbers are at least this.
        lt: the numbers are less than this.
        le: the numbers are at most this.
    """

    gt: float | None = None
    ge: float | None = None
    lt: float | None = None
    le: float | None = None

    def __contains__(self, value: float) -> bool:
        finite = math.isfinite(value) if isinstance(value, float) else abs(value) <= _LARGEST
        return (
            finite
            and (self.gt is None or value > self.gt)
            and (self.ge is None or value >= self.ge)
            and (self.lt is None or value < self.lt)
            and (self.le is None or value <= self.le)
        )

    def __str__(self) -> str:
        low = self.gt if self.gt is not None else self.ge
        high = self.lt if self.lt is not None else self.le
        if low is not None and high is not None:
            opening, closing = "(["[self.gt is None], ")]"[self.lt is None]
            return f"in {opening}{_shown(low)}, {_shown(high)}{closing}"
        if low is not None:
            return f"{'>' if self.gt is not None else '>='} {_shown(low)}"
        if high is not None:
            return f"{'<' if self.lt is not None else '<='} {_shown(high)}"
        return "that is finite"


@dataclass(frozen=True)
class NonEmpty:
    """Marks text that may not be empty: ``folder: Annotated[str, NonEmpty()]``."""

    def __str__(self) -> str:
        return "not empty"


@dataclass(frozen=True)
class Inside(NonEmpty):
    """Marks the name of something in a folder, which may not lead out of it."""

    def __str__(self) -> str:
        return "a name inside its folder"


# Threads or processes at once. Far beyond the cores of a machine, OpenMP crashes and the system
# refuses or stalls.
Processes: TypeAlias = Annotated[int, Range(ge=1, le=1024)]
Workers: TypeAlias = Annotated[int, Range(ge=0, le=1024)]  # 0: no process of its own
# Adam divides a rate by 1 - beta before float32, which ends at 3e38, has to hold it.
LARGEST_RATE = 1e30
Rate: TypeAlias = Annotated[float, Range(ge=0, le=LARGEST_RATE)]


def range_of(hint: Any) -> Range | NonEmpty | None:
    """The range beside a type.

    Args:
        hint: a type, with or without ``Annotated``.

    Returns:
        Its `Range` or `NonEmpty`; None if it has neither.
    """
    return next(_notes(hint), None)


def _notes(hint: Any) -> Iterator[Range | NonEmpty]:
    """The ranges beside a type, or beside the members of a union."""
    for note in getattr(hint, "__metadata__", ()):
        if isinstance(note, (Range, NonEmpty)):
            yield note
    if typing.get_origin(hint) in (Union, types.UnionType):  # Annotated[float, ...] | None
        for member in typing.get_args(hint):
            yield from _notes(member)


def without_range(hint: Any) -> Any:
    """The type alone.

    Args:
        hint: a type, with or without ``Annotated``.

    >>> without_range(Annotated[int, Range(ge=1)] | None)
    int | None
    """
    if typing.get_origin(hint) is Annotated:
        return without_range(typing.get_args(hint)[0])
    if typing.get_origin(hint) in (Union, types.UnionType):
        members = tuple(without_range(member) for member in typing.get_args(hint))
        result = members[0]
        for member in members[1:]:
            result = result | member
        return result
    return hint


def literal_choices(hint: Any) -> tuple[str, ...]:
    """The names that a type allows.

    >>> literal_choices(Literal["a", "b"] | None)
    ('a', 'b')
    """
    members = typing.get_args(hint) if typing.get_origin(hint) is not Literal else (hint,)
    return tuple(
        str(choice)
        for member in members
        if typing.get_origin(member) is Literal
        for choice in typing.get_args(member)
    )


def check(name: str, value: Any, hint: Any, rule: Range | NonEmpty | None = None) -> None:
    """Refuse a value that its type or its range does not allow.

    Args:
        name: what a message calls the value, such as "train.clip".
        value: the value.
        hint: its type, with the range beside it.
        rule: the range, where the type does not carry it.

    Raises:
        ValueError: with the expected type, range or choices, and the value.
    """
    if rule is None:  # of Annotated[int, Range(...)] | Annotated[str, NonEmpty()], the one for it
        fitting = NonEmpty if isinstance(value, str) else Range
        own = (note for note in _notes(hint) if isinstance(note, fitting))
        rule = next(own, None) or range_of(hint)
    kinds = _members(without_range(hint))
    _check_kind(name, value, kinds)
    numeric = [kind for kind in kinds if kind in (int, float)]
    if isinstance(value, (list, tuple)):
        if _count_text(kinds) and not any(len(_items(kind)) == len(value) for kind in kinds):
            raise ValueError(f"{name} must be a list{_count_text(kinds)}; got {_short(value)}")
        for item in value:
            kind = _item_type(kinds)
            named = isinstance(item, str) and typing.get_origin(kind) is Literal
            if named or isinstance(item, (int, float)):
                check(name, item, kind, rule)
        return
    if isinstance(value, str):
        choices = literal_choices(without_range(hint))
        if choices and str not in kinds and value not in choices:
            raise unknown_name(name, value, choices)
        if isinstance(rule, NonEmpty) and not value.strip():
            raise ValueError(f"{name} must not be empty; got {value!r}")
        if isinstance(rule, Inside) and _leads_out(value):
            raise ValueError(
                f"{name} must be a name inside its folder, with no '..' and no '/' in front; got "
                f"{value!r}"
            )
        if choices or str in kinds or not numeric:
            return
    elif (
        not numeric
        or isinstance(value, dict)
        or ((value is None or isinstance(value, bool)) and type(value) in kinds)
    ):
        return
    allowed = rule if isinstance(rule, Range) else Range()
    whole = float not in kinds
    number = isinstance(value, (int, float)) and not isinstance(value, bool)
    if number and (isinstance(value, int) or not whole) and value in allowed:
        return
    expected = "a whole number" if whole else "a number"
    bounds = f" {allowed}" if number or allowed != Range() else ""
    empty = " or null" if type(None) in kinds else ""
    raise ValueError(f"{name} must be {expected}{bounds}{empty}; got {_short(value)}")


def _leads_out(name: str) -> bool:
    """Whether a path leaves the folder that it is appended to, on this system or another's \\."""
    paths = (PurePosixPath(name), PureWindowsPath(name))
    anchored = PurePath(name).anchor or any(path.root for path in paths)
    return bool(anchored) or any(".." in path.parts for path in paths)


# What a config file can hold, in words; an object given in Python is none of these.
_WORDS: dict[Any, str] = {
    dict: "a section",
    list: "a list",
    str: "text",
    bool: "true or false",
    None: "null",
}
_WORDS |= {int: "a whole number", float: "a number"}


def _check_kind(name: str, value: Any, kinds: tuple[Any, ...]) -> None:
    """Refuse a plain value if the type consists of plain types, and it is of none of them."""
    allowed = {_plain_kind(kind) for kind in kinds}
    given = None if value is None else next((k for k in _WORDS if k and type(value) is k), Any)
    given = list if isinstance(value, tuple) else given
    if Any in allowed or given is Any or given in allowed or (given is int and float in allowed):
        return
    if isinstance(value, (int, float, str)) and allowed & {int, float}:
        return  # said with the range
    words = {**_WORDS, list: f"a list{_count_text(kinds)}"}
    expected = " or ".join(word for kind, word in words.items() if kind in allowed)
    raise ValueError(f"{name} must be {expected}; got {_short(value)}")


def _count_text(kinds: tuple[Any, ...]) -> str:
    """ " of 2 numbers", where the type says how many items a list has."""
    count = next((len(_items(kind)) for kind in kinds if _items(kind)), 0)
    return f" of {count} numbers" if count else ""


def _items(kind: Any) -> tuple[Any, ...]:
    """The types of the items of a tuple of fixed length; empty for anything else."""
    items = typing.get_args(kind) if typing.get_origin(kind) is tuple else ()
    return () if Ellipsis in items else items


def _plain_kind(kind: Any) -> Any:
    """The plain type behind a hint; Any for everything else."""
    origin = typing.get_origin(kind)
    if kind is type(None):
        return None
    if origin is Literal:
        return type(typing.get_args(kind)[0])
    if origin in (list, tuple, Sequence):
        return list
    if origin in (dict, Mapping):
        return dict
    return kind if kind in _WORDS else Any


def _short(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= 80 else text[:80] + "..."


def _shown(bound: float) -> str:
    return str(bound) if isinstance(bound, int) else f"{bound:g}"


def _members(hint: Any) -> tuple[Any, ...]:
    """The types of a union; the type itself otherwise."""
    if typing.get_origin(hint) in (Union, types.UnionType):
        return tuple(typing.get_args(hint))
    return (hint,)


def _item_type(kinds: tuple[Any, ...]) -> Any:
    """The type of the numbers in a list or tuple."""
    for kind in kinds:
        if typing.get_origin(kind) in (list, tuple):
            return typing.get_args(kind)[0]
    return float
