"""Pictures that cannot be read: listed, skipped and counted, up to a limit."""

from __future__ import annotations

import threading
import warnings
from collections.abc import Callable, Iterator
from typing import Any, TypeVar

from torch import Tensor

from .errors import DamagedData

__all__ = ["UnreadablePictures", "read_or_replace"]

T = TypeVar("T")
SHOWN = 5  # that a message lists


class UnreadablePictures:
    """The pictures of a set that could not be read, and how many may be.

    Args:
        share: share of all pictures that may be unreadable; a single one may be wherever the share
            is not 0.
        total: number of all pictures, if it is known.

    >>> found = UnreadablePictures(0.5, 3)
    >>> found.add("a.jpg", "cut off")
    >>> found.allowed
    1
    """

    def __init__(self, share: float, total: int = 0) -> None:
        if not 0 <= share <= 1:
            raise ValueError(f"unreadable is a share of the pictures in 0..1; got {share}")
        self.share = share
        self.total = total  # pictures that were tried
        self.reasons: dict[str, str] = {}
        self._lock = threading.Lock()  # pictures are decoded by several threads

    def add(self, path: str, reason: str) -> None:
        """Note a picture that could not be read.

        Args:
            path: the file.
            reason: what is wrong with it.
        """
        for said in ("is damaged: ", "is no picture that can be read: "):
            reason = reason.removeprefix(f"{path} {said}")
        with self._lock:
            self.reasons[path] = reason

    def replace(self, path: str, reason: str) -> None:
        """Note a picture that is met in the middle of a run, where another takes its place.

        Args:
            path: the file, or what a message calls the sample.
            reason: what is wrong with it.

        Raises:
            DamagedData: if there are more than the limit by now.
        """
        self.add(path, reason)
        if len(self.reasons) > self.allowed:
            self.report()
        warnings.warn(
            f"{path} cannot be read, and another of its class or batch takes its place: "
            f"{self.reasons[path]}",
            stacklevel=2,
        )

    def __getstate__(self) -> dict[str, Any]:
        return {key: value for key, value in self.__dict__.items() if key != "_lock"}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state, _lock=threading.Lock())

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


def read_or_replace(
    place: int,
    labels: Tensor,
    read: Callable[[int], T],
    name: Callable[[int], str],
    unreadable: UnreadablePictures | None,
) -> T:
    """A sample, or the next one of its class where it cannot be read.

    Of its class, because labels are taken by the number of the sample; the next, so that a resumed
    run sees the same.

    Args:
        place: number of the sample.
        labels: (N,) of all samples.
        read: gives a sample by its number, or raises DamagedData.
        name: what a message calls it.
        unreadable: receives those that cannot be read. Default: the error is raised.

    Returns:
        What `read` gave.

    Raises:
        DamagedData: if there are more unreadable ones than the limit, or no other of the class.
    """
    if unreadable is None:
        return read(place)

    def candidates() -> Iterator[int]:
        yield place
        same = (labels == labels[place]).nonzero().flatten()
        yield from same.roll(-int((same <= place).sum())).tolist()

    for candidate in candidates():
        if name(candidate) in unreadable.reasons:
            continue
        try:
            return read(candidate)
        except DamagedData as error:
            unreadable.replace(name(candidate), str(error))
    raise DamagedData(f"no picture of the class of {name(place)} can be read: replace or remove it")
