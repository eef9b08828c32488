"""The register of things by name: what configs, ``--help``, listings and error hints know.

Each kind of part has one table. The library's own parts enter it where they are defined, with the
same call that users make for theirs:

>>> @register("angular", "doctest_identity")
... def identity(cos):
...     '''g = cos(theta).'''
...     return cos
>>> entry("angular", "doctest_identity").summary
'g = cos(theta).'

This module imports nothing of the package. Whoever looks something up has imported the package
that defines it (``hypersphere.heads`` for heads, and so on), or the plugin that brings it.
"""

from __future__ import annotations

import difflib
import hashlib
import inspect
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeVar

__all__ = ["KINDS", "Entry", "entries", "entry", "names", "nearest", "origin", "register"]
__all__ += ["revision", "unknown_name"]

# Each kind, and what a message calls one of them.
KINDS: dict[str, str] = {
    "angular": "angular activation",
    "magnitude": "magnitude",
    "margin": "margin",
    "head": "head",
    "regularizer": "regularizer",
    "model": "model",
    "data": "data set",
    "hook": "hook",
    "task": "task",
}

_T = TypeVar("_T")


@dataclass(frozen=True)
class Entry:
    """One registered part.

    Args:
        kind: one of :data:`KINDS`.
        name: the name that configs use.
        target: the class or function behind it.
        source: equation, table or paper it comes from; may be empty.
        details: further values that the kind needs, for example the table defaults of a model.
    """

    kind: str
    name: str
    target: Any
    source: str = ""
    details: Mapping[str, Any] = field(default_factory=dict)

    @property
    def summary(self) -> str:
        """The first line of the part's docstring."""
        return (inspect.getdoc(self.target) or "").strip().split("\n")[0]

    @property
    def own(self) -> bool:
        """Whether a user brought it, rather than this package."""
        return self.module.split(".")[0] != "hypersphere"

    @property
    def module(self) -> str:
        """The module that defines it."""
        return str(getattr(self.target, "__module__", type(self.target).__module__))


_ENTRIES: dict[str, dict[str, Entry]] = {kind: {} for kind in KINDS}
_registrations = 0


def register(kind: str, name: str, *, source: str = "", **details: Any) -> Callable[[_T], _T]:
    """Give a class or function a name that configs and the command line can use.

    Args:
        kind: "angular", "magnitude", "margin", "head", "regularizer", "model", "data", "hook" or
            "task".
        name: the name, unique within its kind.
        source: equation, table or paper it comes from.
        details: what else the kind needs; see docs/extending.md.

    Returns:
        A decorator that returns its argument unchanged.

    Raises:
        ValueError: if the kind is unknown, or the name is taken by another part.
    """
    if kind not in KINDS:
        raise unknown_name("kind of part", kind, KINDS)
    if not isinstance(name, str) or not name:
        raise ValueError(f"a part needs a non-empty name (str), got {name!r}")

    def add(target: _T) -> _T:
        new = Entry(kind, name, target, source, details)
        old = _ENTRIES[kind].get(name)
        if old is not None and _identity(old.target) != _identity(target):
            raise ValueError(
                f"the {KINDS[kind]} {name!r} is already registered by {old.module}; choose "
                f"another name"
            )
        _ENTRIES[kind][name] = new
        global _registrations
        _registrations += 1
        return target

    return add


def entry(kind: str, name: str) -> Entry:
    """The part of that name.

    Args:
        kind: one of :data:`KINDS`.
        name: its registered name.

    Raises:
        ValueError: if there is none, with the nearest name.
    """
    if name not in _ENTRIES[kind]:
        raise unknown_name(KINDS[kind], name, _ENTRIES[kind])
    return _ENTRIES[kind][name]


def entries(kind: str) -> list[Entry]:
    """All parts of a kind, in the order of their registration."""
    return list(_ENTRIES[kind].values())


def names(kind: str) -> list[str]:
    """The names of all parts of a kind, in the order of their registration."""
    return list(_ENTRIES[kind])


def revision() -> int:
    """A number that grows with each registration: what was derived from the register before it
    changed is out of date.
    """
    return _registrations


def origin(target: Any) -> dict[str, str | None]:
    """Where a part comes from, as run.json records it.

    Args:
        target: a class, a function or an object.

    Returns:
        Its module, the file of that module, and the SHA-256 of the file; None where there is no
        file, as for what is typed into a console.
    """
    if not (inspect.isclass(target) or inspect.isroutine(target)):
        target = type(target)
    path, digest = None, None
    try:
        path = inspect.getsourcefile(target)
        digest = hashlib.sha256(Path(path).read_bytes()).hexdigest() if path else None
    except (OSError, TypeError):
        pass
    return {"module": str(target.__module__), "file": path, "sha256": digest}


def nearest(name: str, known: Iterable[str]) -> str | None:
    """The most similar of the known names, if any is similar.

    >>> nearest("asoftmax", ["softmax", "a_softmax"])
    'a_softmax'
    """
    lower = {other.lower(): other for other in known}
    found = difflib.get_close_matches(name.lower(), list(lower), n=1, cutoff=0.5)
    return lower[found[0]] if found else None


def unknown_name(what: str, name: str, known: Iterable[str]) -> ValueError:
    """An error for an unknown name, which suggests the nearest one.

    >>> unknown_name("head", "asoftmax", ["softmax", "a_softmax"])
    ValueError("unknown head 'asoftmax'; did you mean 'a_softmax'? (known: softmax, a_softmax)")
    """
    known = list(known)
    near = nearest(str(name), known)
    hint = f"; did you mean {near!r}?" if near else ""
    return ValueError(f"unknown {what} {name!r}{hint} (known: {', '.join(known)})")


def _identity(target: Any) -> Any:
    """What makes two registrations the same part: a module that is imported again is no clash."""
    name = getattr(target, "__qualname__", None)
    return target if name is None else (target.__module__, name)
