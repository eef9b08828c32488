"""Where this machine keeps what was found out about it once, and what tells it from others."""

from __future__ import annotations

import atexit
import logging
import os
import re
import shutil
import tempfile
from functools import cache
from pathlib import Path

__all__ = ["kept_folder", "processor", "write_first"]

logger = logging.getLogger(__name__)


@cache
def kept_folder() -> Path:
    """Where kernels and measurements stay; of this process alone if that cannot be used."""
    try:
        cache_home = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
        kept = Path(cache_home, "hypersphere", "kernels")
        kept.mkdir(parents=True, exist_ok=True, mode=0o700)
        reason = _unusable(kept)
        if reason is None:
            return kept
    except (OSError, RuntimeError) as error:  # the latter if there is no home
        reason = str(error)
    logger.warning(
        "compiled kernels cannot be kept, so that every process builds its own: %s; set "
        "XDG_CACHE_HOME to a folder of yours that can be written",
        reason,
    )
    scratch = Path(tempfile.mkdtemp(prefix="hypersphere-kernels-"))
    atexit.register(_remove, scratch, os.getpid())
    return scratch


def _unusable(folder: Path) -> str | None:
    """What keeps libraries from being written to and loaded from a folder."""
    about, user = folder.stat(), getattr(os, "getuid", lambda: None)()
    if user is not None and about.st_uid != user:
        return f"{folder} belongs to another user"
    if user is not None and about.st_mode & 0o022:
        return f"{folder} can be written by other users (chmod go-w)"
    return None if os.access(folder, os.W_OK) else f"{folder} cannot be written"


def _remove(folder: Path, process: int) -> None:
    if process == os.getpid():  # and not in a child of it
        shutil.rmtree(folder, ignore_errors=True)


def write_first(path: Path, content: bytes) -> None:
    """Write a small file, unless there is one: the first of several processes decides for all."""
    descriptor, name = tempfile.mkstemp(dir=path.parent, prefix=f"{path.name}-")
    try:
        with os.fdopen(descriptor, "wb") as mine:
            mine.write(content)
        try:
            os.link(name, path)
        except FileExistsError:
            pass
        except OSError:  # a file system without links
            os.replace(name, path)
    finally:
        Path(name).unlink(missing_ok=True)


@cache
def processor() -> str:
    """What decides which instructions a compiler or a library takes."""
    try:
        text = Path("/proc/cpuinfo").read_text().partition("\n\n")[0]
    except OSError:
        return ""
    kept = re.compile(r"(vendor|cpu family|model|flags|Features|CPU part)")
    return "\n".join(line for line in text.splitlines() if kept.match(line))
