"""One process at a time trains in a run folder.

The lock is the operating system's (`flock` on the file .lock), so that a killed process leaves none
behind; the file says who holds it. What a killed process leaves behind is the file, and perhaps a
child that still has it open: then the file is replaced. Taking the lock and writing one's name, or
reading a name and replacing the file, are each one step for others: they hold the folder meanwhile.
Who cannot have the folder, because somebody else keeps it locked, never replaces the file.
"""

from __future__ import annotations

import contextlib
import errno
import json
import os
import socket
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from hypersphere.training.run.checkpoint import RunError, explain_os_error

try:
    import fcntl
except ImportError:  # no such locks on this system
    fcntl = None  # type: ignore[assignment]

__all__ = ["FolderInUse", "FolderLock", "is_alive"]

NAME = ".lock"
WAIT_FOR_FOLDER = 3.0  # seconds; others have it for less than a thousandth


class FolderInUse(RunError):
    """Another process is training in the folder; later it may be free."""


class FolderLock:
    """The right to train in a folder.

    Args:
        folder: the run folder; it exists.
        advice: what else a user can do while another process has it.
        file: what of the folder is meant, if others may write the rest of it.
    """

    def __init__(
        self,
        folder: Path | str,
        advice: str = "choose another folder (--run.folder)",
        file: str | None = None,
    ) -> None:
        self.path = Path(folder) / (NAME if file is None else f".{file}{NAME}")
        self.what = Path(folder) / (file or "")
        self.advice = advice
        self._descriptor: int | None = None

    def acquire(self) -> None:
        """Take the lock.

        Raises:
            FolderInUse: if another process holds it; the message says who, and since when.
        """
        while fcntl is not None and self._descriptor is None:
            with _one_at_a_time(self.path.parent) as alone:
                if not self._try(alone):
                    return

    def _try(self, alone: bool) -> bool:
        """Take the lock, refuse, or make way for another try; False where there are no locks."""
        try:
            descriptor = os.open(self.path, os.O_RDWR | os.O_CREAT, 0o666)
        except OSError as error:
            raise explain_os_error(error, self.path) from error
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            there = _is_at(descriptor, self.path)
            os.close(descriptor)
            if error.errno not in (errno.EWOULDBLOCK, errno.EACCES):
                return False  # a file system without locks
            if there:
                self._refuse_or_break(alone)
            return True
        if not _is_at(descriptor, self.path):  # its holder took it away in between
            os.close(descriptor)
            return True
        holder = {"host": socket.gethostname(), "pid": os.getpid()}
        text = json.dumps({**holder, "since": time.strftime("%Y-%m-%d %H:%M:%S")})
        os.truncate(descriptor, 0)
        os.write(descriptor, text.encode())
        self._descriptor = descriptor
        return True

    def release(self) -> None:
        """Give the lock back; nothing happens if it is not held."""
        if self._descriptor is not None:
            # First the file, then the lock: who opens the file in between sees that it is gone.
            if _is_at(self._descriptor, self.path):
                self.path.unlink(missing_ok=True)
            os.close(self._descriptor)
            self._descriptor = None

    def __enter__(self) -> FolderLock:
        self.acquire()
        return self

    def __exit__(self, *_: object) -> None:
        self.release()

    def holder(self) -> dict[str, Any]:
        """Host, pid and time of who holds the lock; empty if nobody says so."""
        try:
            found = json.loads(self.path.read_text("utf-8"))
        except (OSError, ValueError):
            return {}
        return found if isinstance(found, dict) else {}

    def is_held(self) -> bool:
        """Whether a process that runs holds the lock."""
        who = self.holder()
        if fcntl is None or not who or _is_gone(who):
            return False
        # Its number may be that of another process by now. Nobody can take the lock in between
        # and be refused because of this look: whoever wants it sees the same holder.
        try:
            descriptor = os.open(self.path, os.O_RDONLY)
        except OSError:
            return False
        try:
            fcntl.flock(descriptor, fcntl.LOCK_SH | fcntl.LOCK_NB)
            return False
        except OSError as error:
            return error.errno in (errno.EWOULDBLOCK, errno.EACCES)
        finally:
            os.close(descriptor)

    def _refuse_or_break(self, alone: bool) -> None:
        """Somebody has the lock; a process that is gone has it only through a child it left.

        Args:
            alone: nobody else can be about to replace the file, too. Two that did would each
                remove the other's.
        """
        who = self.holder()
        gone = bool(who) and _is_gone(who)
        if gone and alone:
            self.path.unlink(missing_ok=True)
            return
        said = "another process is training in it"
        if who:
            name = f"process {who.get('pid')} on {who.get('host')} (since {who.get('since')})"
            said = f"{name} is training in it"
            if gone:
                said = f"a process left by {name} keeps it (`fuser {self.path}` says which)"
        raise FolderInUse(f"{self.what} is in use: {said}; wait for it, stop it, or {self.advice}")


@contextlib.contextmanager
def _one_at_a_time(folder: Path) -> Iterator[bool]:
    """Holds a lock on the folder itself, which nobody removes.

    Yields False where it cannot be had: on file systems that lock files alone, and if somebody
    keeps the folder locked, as the command `flock` does.
    """
    try:
        descriptor = os.open(folder, os.O_RDONLY)
    except OSError as error:
        raise explain_os_error(error, folder) from error
    try:
        yield _waited_for(descriptor)
    finally:
        os.close(descriptor)


def _waited_for(descriptor: int) -> bool:
    """Whether the lock of an open folder could be had within a while."""
    end = time.monotonic() + WAIT_FOR_FOLDER
    while True:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            return True
        except OSError as error:
            if error.errno not in (errno.EWOULDBLOCK, errno.EACCES) or time.monotonic() > end:
                return False
        time.sleep(0.01)


def _is_gone(holder: dict[str, Any]) -> bool:
    """Whether the holder was a process of this machine that has ended."""
    try:
        return holder.get("host") == socket.gethostname() and not is_alive(int(holder["pid"]))
    except (KeyError, TypeError, ValueError):
        return True  # nobody wrote this


def is_alive(pid: int) -> bool:
    """Whether a process of this machine runs; one that has ended and was not waited for does not.

    >>> is_alive(os.getpid())
    True
    """
    if pid <= 0:
        return False
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        return True
    try:
        # The kernel cuts names of programs at 15 bytes, in the middle of a character, too.
        state = Path(f"/proc/{pid}/stat").read_bytes().rpartition(b")")[2].split()[0]
    except (OSError, IndexError):
        return True
    return state != b"Z"


def _is_at(descriptor: int, path: Path) -> bool:
    try:
        return os.path.samestat(os.fstat(descriptor), path.stat())
    except FileNotFoundError:
        return False
