"""Pictures that cannot be read: listed, skipped and counted, up to a limit."""

from __future__ import annotations

import threading
import warnings

from .errors import DamagedData

__all__ = ["UnreadablePictures"]

SHOWN = 5  # that a message lists


class UnreadablePictures:
    """The pictures of a set that could not be read, and how many may be.

    Args:
        share: share of all pictures that may be unreadable; a single one may be wherever the share
            is not 0.

    >>> found = UnreadablePictures(0.5)
    >>> found.total = 3
    >>> found.add("a.jpg", "cut off")
    >>> found.allowed
    1
    """

    def __init__(self, share: float) -> None:
        if not 0 <= share <= 1:
            raise ValueError(f"unreadable is a share of the pictures in 0..1; got {share}")
        self.share = share
        self.total = 0  # pictures that were tried
        self.reasons: dict[str, str] = {}
        self._lock = threading.Lock()  # pictures are decoded by several threads

    def add(self, path: str, reason: str) -> None:
        """Note a picture that could not be read.

        Args:
            path: the file.
            reason: what is wrong with it.
        """
        with self._lock:
            self.reasons[path] = reason

    @property
    def allowed(self) -> int:
        """How many pictures may be unreadable."""
        return max(int(self.share * self.total), 1) if self.share else 0

    @property
    def paths(self) -> list[str]:
        """The unreadable files, in alphabetical order."""
        return sorted(self.reasons)

    def report(self) -> None:
        """Warn of what was skipped.

        Raises:
            DamagedData: if it was more than the limit.
        """
        if not self.reasons:
            return
        lines = [f"  {path}: {self.reasons[path]}" for path in self.paths[:SHOWN]]
        if len(self.reasons) > SHOWN:
            lines.append(f"  ... and {len(self.reasons) - SHOWN} more")
        count = f"{len(self.reasons)} of {self.total:,} pictures cannot be read"
        if len(self.reasons) > self.allowed:
            raise DamagedData(
                "\n".join([f"{count}; {self.allowed} may be (unreadable={self.share:g}):", *lines])
                + "\nreplace or remove them, or allow a larger share: unreadable=1, on the command "
                "line --data.options.unreadable 1"
            )
        warnings.warn("\n".join([f"{count} and are left out:", *lines]), stacklevel=2)
