"""Checksums as the publishers give them: "md5:..." or "sha256:..."."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable
from pathlib import Path

from .errors import damaged
from .sources import Source


def checksum(path: Path | str, kind: str = "sha256") -> str:
    """The checksum of a file, read in pieces.

    Args:
        path: the file.
        kind: "sha256", "md5" or another name that hashlib knows.

    Returns:
        "kind:hexadecimal".
    """
    digest = hashlib.new(kind, usedforsecurity=False)
    with open(path, "rb") as file:
        while piece := file.read(1 << 20):
            digest.update(piece)
    return f"{kind}:{digest.hexdigest()}"


def verify(path: Path | str, expected: str, where: str) -> None:
    """Raise `DamagedData` unless a file has the expected checksum.

    Args:
        path: the file.
        expected: "kind:hexadecimal".
        where: where a fresh copy is available, for the message.
    """
    found = checksum(path, expected.partition(":")[0])
    if found != expected:
        raise damaged(Path(path), f"the checksum {expected}", found, where)


def verify_files(paths: Iterable[Path], source: Source) -> list[Path]:
    """Check every file whose checksum the publisher gives; returns those that were checked."""
    checked = []
    for path in paths:
        expected = source.checksums.get(path.name)
        if expected is not None:
            verify(path, expected, source.where)
            checked.append(path)
    return checked
