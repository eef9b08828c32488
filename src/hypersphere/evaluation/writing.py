"""Files that cannot be written, such as on a full disk: one error that names the file."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path


@contextmanager
def naming(path: str | Path) -> Iterator[None]:
    """Put the name of a file into errors of the system that have none, as those of a write.

    Args:
        path: the file.

    Returns:
        A context to write in.
    """
    try:
        yield
    except OSError as error:
        if error.errno is None or error.filename is not None:
            raise
        raise system_error(error.errno, path) from None


def system_error(number: int, path: str | Path) -> OSError:
    """What Python says of an error of the system.

    Args:
        number: of the error, such as `errno.ENOSPC`.
        path: the file that could not be written.

    >>> system_error(28, "g/gallery.json")
    OSError(28, 'No space left on device')
    """
    return OSError(number, os.strerror(number), str(path))


def from_safetensors(error: Exception, path: str | Path) -> OSError:
    """The error of the system behind one of safetensors, which has a type of its own for it.

    Args:
        error: what `save_file` raised.
        path: the file that could not be written.

    >>> print(from_safetensors(Exception("No space left (os error 28)"), "f.safetensors"))
    [Errno 28] No space left on device: 'f.safetensors'
    """
    found = re.search(r"os error (\d+)", str(error))
    return system_error(int(found[1]), path) if found else OSError(f"cannot write {path}: {error}")
