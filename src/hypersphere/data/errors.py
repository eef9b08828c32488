"""Errors of the readers: which file, what was expected, where it is available."""

from __future__ import annotations

from pathlib import Path

LONGEST = 200  # characters of a file that a message shows


class MissingData(FileNotFoundError):
    """A file or folder of a data set is not there."""


class DamagedData(ValueError):
    """A file of a data set is there, but its content is not what its format promises."""


def missing(what: str, looked: Path | list[Path], where: str) -> MissingData:
    """The error for absent data: `what` was expected at `looked`, and is available at `where`.

    >>> print(missing("the MNIST file x.gz", Path("here"), "https://example.org"))
    the MNIST file x.gz is missing: expected at here. It is available at https://example.org
    """
    places = looked if isinstance(looked, list) else [looked]
    return MissingData(
        f"{what} is missing: expected at {' or '.join(str(p) for p in places)}. "
        f"It is available at {where}"
    )


def damaged(path: Path, expected: str, found: str, where: str | None = None) -> DamagedData:
    """The error for a broken file: `expected` against what was `found`, and where to get another.

    >>> print(damaged(Path("x.gz"), "100 bytes", "7 bytes", "https://example.org"))
    x.gz is damaged: expected 100 bytes, found 7 bytes. A fresh copy: https://example.org
    """
    if len(found) > LONGEST:
        found = found[:LONGEST] + "..."
    again = f". A fresh copy: {where}" if where else ""
    return DamagedData(f"{path} is damaged: expected {expected}, found {found}{again}")
