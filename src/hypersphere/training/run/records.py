"""run.json and summary.json: records that know whether they were changed.

Each has a checksum of its own. run.json also has that of config.yaml, and summary.json the length
and the checksum of files that have none ("files"), as they were when the run ended.
"""

from __future__ import annotations

import zlib
from pathlib import Path
from typing import Any

from hypersphere._reading import Unreadable, check_regular, read_sealed
from hypersphere.training.run.checkpoint import RunError

__all__ = ["changed_config", "changed_file", "data_of_run", "file_entry", "partial_checksum"]
__all__ += ["read_record", "run_config", "text_checksum"]

LARGEST_CONFIG = 1 << 26  # bytes; no run writes more


def read_record(path: Path) -> dict[str, Any]:
    """A record of a run folder.

    Args:
        path: run.json or summary.json.

    Returns:
        Its entries; a record of an earlier version, without a checksum, is taken as it is.

    Raises:
        FileNotFoundError: if it is not there.
        RunError: if it cannot be read, or was changed after it was written.
    """
    try:
        return read_sealed(path)
    except Unreadable as error:
        raise RunError(str(error)) from None


def run_config(details: dict[str, Any], path: Path) -> dict[str, Any]:
    """The config of a run.

    Args:
        details: the entries of run.json.
        path: run.json, for the message.

    Returns:
        Its sections.

    Raises:
        RunError: if there is none, or a section is none.
    """
    config = details.get("config")
    if not isinstance(config, dict):
        raise RunError(f"{path} has no config: it is not a run that can go on")
    return config


def data_of_run(details: dict[str, Any], path: Path) -> tuple[tuple[int, ...], list[str]]:
    """Shape of a sample and names of the classes that a run was trained on.

    Args:
        details: the entries of run.json.
        path: run.json, for the message.

    Returns:
        (shape, classes).

    Raises:
        ValueError: if the run is not that of a classifier.
        RunError: if the entry is not what it should be.
    """
    if "data" not in details:
        raise ValueError(f"{path.parent} is a run of {details.get('task')!r}, not of a classifier")
    found = details["data"] if isinstance(details["data"], dict) else {}
    shape, classes = found.get("shape"), found.get("classes")
    if not (
        isinstance(shape, list)
        and all(type(n) is int and n > 0 for n in shape)
        and isinstance(classes, list)
        and classes
    ):
        raise RunError(f"{path} is damaged: data has to give the shape of a sample and the classes")
    return tuple(shape), [str(name) for name in classes]


def file_entry(path: Path) -> list[Any]:
    """Length and checksum of a file, for the entry "files" of summary.json.

    Args:
        path: the file.

    Returns:
        [bytes, checksum].
    """
    size = check_regular(path)
    return [size, partial_checksum(path, size)]


def changed_file(path: Path, entry: Any) -> str:
    """What is different about a file since the run ended.

    Args:
        path: the file.
        entry: what `file_entry` gave; anything else is no evidence.

    Returns:
        A sentence; empty if nothing is.
    """
    if not (isinstance(entry, list) and len(entry) == 2 and isinstance(entry[0], int)):
        return ""
    try:
        size = check_regular(path)
        if size < entry[0] or partial_checksum(path, entry[0]) != entry[1]:
            return f"{path.name} is damaged or was changed after the run ended"
        longer = f"{path.name} is longer than when the run ended: it goes on, or was changed"
        return longer if size > entry[0] else ""
    except (OSError, Unreadable):
        return ""  # said by whoever reads it


def changed_config(path: Path, details: dict[str, Any]) -> str:
    """Whether config.yaml of a run is still what the run wrote.

    Args:
        path: config.yaml.
        details: the entries of run.json; without a checksum of config.yaml there is no evidence.

    Returns:
        A sentence; empty if it is.
    """
    known = details.get("config_checksums")
    try:
        size = check_regular(path)
        size = min(size, LARGEST_CONFIG)  # the longer file has another checksum anyway
        if not isinstance(known, list) or partial_checksum(path, size) in known:
            return ""
    except (OSError, Unreadable):
        return ""  # said by whoever reads it
    return f"{path.name} is damaged or was changed after the run wrote it"


def text_checksum(text: str) -> str:
    """The checksum of a text file.

    Args:
        text: its content.

    Returns:
        8 hex digits.
    """
    return f"{zlib.crc32(text.encode()):08x}"


def partial_checksum(path: Path | str, length: int) -> str:
    """The checksum of the first `length` bytes of a file.

    Args:
        path: the file.
        length: in bytes.

    Returns:
        8 hex digits.
    """
    value = 0
    with open(path, "rb") as file:
        while length > 0 and (block := file.read(min(length, 1 << 22))):
            value, length = zlib.crc32(block, value), length - len(block)
    return f"{value:08x}"
