"""SIGINT and SIGTERM ask the loop to save and stop; it looks between two steps."""

from __future__ import annotations

import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType
from typing import Any

__all__ = ["Interrupt", "Interrupted", "raising"]


class Interrupted(Exception):
    """A signal ended what was under way: an unfinished value is no result."""

    def __init__(self, signal: int) -> None:
        super().__init__(f"ended by signal {signal}")
        self.signal = signal


@contextmanager
def raising() -> Iterator[None]:
    """Context in which the two signals raise `Interrupted` (outside of a run, which saves first).

    >>> with raising():
    ...     signal.raise_signal(signal.SIGTERM)
    Traceback (most recent call last):
    hypersphere.training.interrupt.Interrupted: ended by signal 15
    """

    def stop(number: int, frame: FrameType | None) -> None:
        raise Interrupted(number)

    previous: dict[int, Any] = {}
    if threading.current_thread() is threading.main_thread():
        previous = {number: signal.signal(number, stop) for number in Interrupt.SIGNALS}
    try:
        yield
    finally:
        for number, handler in previous.items():
            signal.signal(number, handler)


class Interrupt:
    """Context in which the two signals only set `.signal`; a second one acts as usual.

    >>> with Interrupt() as interrupt:
    ...     signal.raise_signal(signal.SIGTERM)
    ...     interrupt.signal == signal.SIGTERM
    True
    """

    SIGNALS = (signal.SIGINT, signal.SIGTERM)

    def __init__(self) -> None:
        self.signal: int | None = None
        self._previous: dict[int, Any] = {}

    def __enter__(self) -> Interrupt:
        # Python delivers signals to the main thread only; elsewhere (notebooks, servers) leave them
        # be.
        if threading.current_thread() is threading.main_thread():
            for number in self.SIGNALS:
                self._previous[number] = signal.signal(number, self._note)
        return self

    def __exit__(self, *_: object) -> None:
        self._restore()

    def _note(self, number: int, frame: FrameType | None) -> None:
        self.signal = number
        self._restore()

    def _restore(self) -> None:
        for number, handler in self._previous.items():
            signal.signal(number, handler)
        self._previous = {}
