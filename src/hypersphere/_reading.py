"""Reading files that may be damaged or come from an untrusted source.

Note [Only regular files]: opening a pipe waits for whoever writes to it, and a device has no end.
So what is read here is a regular file of moderate size, and everything else is refused in a
sentence that names it.
"""

from __future__ import annotations

import json
import os
import re
import stat
import zlib
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ._optional import require

if TYPE_CHECKING:
    from torch import Tensor

__all__ = ["STATE", "Unreadable", "check_regular", "check_replaceable", "checksum_file"]
__all__ += ["file_checksum", "read_json", "read_lines", "read_sealed", "read_state", "read_tensors"]
__all__ += ["read_text", "sealed_text"]

CONTROL = re.compile(r"[\x00-\x08\x0b\x0c\x0e-\x1f\x7f-\x9f]")
MOST_TEXT = 1 << 30  # bytes of a record or a list
STATE = "state.json"  # of a checkpoint of a run


class Unreadable(ValueError):
    """A file is there, but it cannot be read as what it should be; the message says why."""


def check_regular(path: Path | str, most: int | None = None) -> int:
    """Refuse folders, pipes, devices and files that are too large.

    Args:
        path: the file.
        most: bytes that it may have. Default: any number.

    Returns:
        Its size in bytes.

    Raises:
        FileNotFoundError: if it is not there.
        Unreadable: if it is no regular file, or too large.
    """
    try:
        status = os.stat(path)
    except FileNotFoundError:
        raise FileNotFoundError(f"{path} is not there") from None
    except (OSError, ValueError) as error:  # links in a circle, names that no file can have
        raise Unreadable(f"{path} cannot be read: {error}") from None
    if stat.S_ISDIR(status.st_mode):
        raise Unreadable(f"{path} is a folder; expected a file")
    if not stat.S_ISREG(status.st_mode):
        raise Unreadable(f"{path} is a pipe or a device; expected a file")
    if most is not None and status.st_size > most:
        raise Unreadable(f"{path} has {status.st_size:,} bytes; expected at most {most:,}")
    return status.st_size


def check_replaceable(path: Path | str) -> None:
    """Refuse to put a new file in the place of a pipe or a device.

    A file is written beside its place and renamed, and a rename replaces even /dev/null.

    Args:
        path: the file; it need not be there.

    Raises:
        OSError: if a pipe or a device is there.
    """
    try:
        mode = os.stat(path).st_mode
    except OSError:
        return  # whoever writes will find out
    if not (stat.S_ISREG(mode) or stat.S_ISDIR(mode)):
        raise OSError(f"{path} is a pipe or a device; expected a file")


def read_text(path: Path | str, most: int = MOST_TEXT) -> str:
    """The content of a text file.

    Args:
        path: the file, in UTF-8.
        most: bytes that it may have. Default: 1 GiB.

    Returns:
        The text.

    Raises:
        FileNotFoundError: if it is not there.
        Unreadable: if it is no regular file, too large, or not UTF-8.
    """
    check_regular(path, most)
    try:
        return Path(path).read_text("utf-8")
    except UnicodeDecodeError as error:
        raise Unreadable(f"{path} is damaged: it is not text ({error})") from None
    except OSError as error:
        raise Unreadable(f"{path} cannot be read: {error}") from None


def read_lines(path: Path | str, most: int = MOST_TEXT) -> list[str]:
    """The lines of a list that people write: names, numbers, paths.

    Args:
        path: the file, in UTF-8.
        most: bytes that it may have. Default: 1 GiB.

    Returns:
        The lines.

    Raises:
        FileNotFoundError: if it is not there.
        Unreadable: if it is no regular file, too large, or no text.
    """
    text = read_text(path, most).removeprefix("\ufeff")
    found = CONTROL.search(text)
    if found:
        line = text.count("\n", 0, found.start()) + 1
        raise Unreadable(f"{path} is damaged: line {line} has the control character {found[0]!r}")
    return text.splitlines()


def read_json(path: Path | str, most: int = MOST_TEXT) -> Any:
    """The value of a JSON file.

    Args:
        path: the file.
        most: bytes that it may have. Default: 1 GiB.

    Returns:
        What it holds.

    Raises:
        FileNotFoundError: if it is not there.
        Unreadable: if it is no regular file, too large, or not JSON.
    """
    text = read_text(path, most)
    try:
        return json.loads(text)
    except (ValueError, RecursionError) as error:
        raise Unreadable(f"{path} is damaged: it is not JSON ({error})") from None


def read_tensors(path: Path | str) -> dict[str, Tensor]:
    """All tensors of a .safetensors file, on the CPU.

    Args:
        path: the file.

    Returns:
        The tensors by name.

    Raises:
        FileNotFoundError: if it is not there.
        Unreadable: if it is no regular file, or no complete .safetensors file.
    """
    check_regular(path)
    load = require("safetensors.torch", extra="train").load_file
    try:
        return dict(load(str(path)))
    except Exception as error:  # the library has error types of its own
        if not os.path.exists(path):  # it went between the look and the reading
            raise FileNotFoundError(f"{path} is not there") from None
        raise Unreadable(f"{path} is damaged, or no .safetensors file: {error}") from None


def file_checksum(path: Path | str) -> str:
    """The CRC-32 of a file.

    Args:
        path: the file.

    Returns:
        8 hex digits.
    """
    value = 0
    with open(path, "rb") as file:
        while block := file.read(1 << 22):
            value = zlib.crc32(block, value)
    return f"{value:08x}"


def read_state(folder: Path | str) -> dict[str, Any]:
    """The state.json of a checkpoint of a run: its checksum in a line, and an object.

    Args:
        folder: the checkpoint.

    Returns:
        The object; its entry "checksums" has those of the files beside it, by name.

    Raises:
        FileNotFoundError: if it is not there.
        Unreadable: if it is no such file, or was changed after it was written.
    """
    path = Path(folder) / STATE
    head, _, body = read_text(path).partition("\n")
    body = body.removesuffix("\n")
    if head != f"{zlib.crc32(body.encode()):08x}":
        raise Unreadable(f"{path} is damaged (its checksum differs)")
    return json.loads(body)  # type: ignore[no-any-return]


def checksum_file(path: Path | str) -> Path:
    """Where the checksum of a file of weights is kept: NAME.crc32 beside it."""
    path = Path(path)
    return path.with_name(f"{path.name}.crc32")


def sealed_text(content: dict[str, Any], indent: int = 2) -> str:
    """An object as JSON, with an entry "checksum" of everything else in it.

    Args:
        content: plain values; others are written as text.
        indent: of the lines. Default: 2.

    >>> print(sealed_text({"seed": 0}), end="")
    {
      "seed": 0,
      "checksum": "0bcad144"
    }
    """
    plain = json.loads(json.dumps(content, default=str))
    plain.pop("checksum", None)
    return json.dumps({**plain, "checksum": _seal(plain)}, indent=indent) + "\n"


def read_sealed(path: Path | str) -> dict[str, Any]:
    """The object that `sealed_text` wrote, without its checksum.

    Args:
        path: the file.

    Returns:
        Its entries; those of a file without a checksum are taken as they are.

    Raises:
        FileNotFoundError: if it is not there.
        Unreadable: if it is no JSON object, or was changed after it was written.
    """
    content = read_json(path)
    if not isinstance(content, dict):
        raise Unreadable(f"{path} should hold an object, it holds a {type(content).__name__}")
    expected = content.pop("checksum", None)
    if expected is not None and expected != _seal(content):
        raise Unreadable(
            f"{path} is damaged or was changed after it was written: its checksum differs from the "
            f"recorded one (if the change is meant, remove the entry 'checksum')"
        )
    return content


def _seal(content: dict[str, Any]) -> str:
    return f"{zlib.crc32(json.dumps(content, sort_keys=True).encode()):08x}"
