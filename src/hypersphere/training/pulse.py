"""Signs of life of the processes of a run, in the store that they found each other by.

A machine that is cut off says nothing: connections to it stay open, and whoever waits for its
numbers waits on. So each process counts up a number in the store every few seconds and looks at
that of the next one, in a ring. One thread does this; another one judges by the clock, because a
store that cannot be reached makes the first one wait too.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from typing import Any

__all__ = ["Pulse"]

EVERY = 2.0  # seconds between two signs of life


class Pulse:
    """Shows signs of life of this process and watches those of the next.

    Args:
        store: where they are shown; not used by anybody else at the same time.
        rank: number of this process.
        count: number of processes.
        silence: seconds after which a process without a sign of life counts as gone.
        gone: called once, in a thread of its own, with the process that counts as gone, or with
            None if the store has not been reached for so long.
    """

    def __init__(
        self,
        store: Any,
        rank: int,
        count: int,
        silence: float,
        gone: Callable[[int | None], None],
    ) -> None:
        self.store, self.rank, self.next = store, rank, (rank + 1) % count
        self.silence, self.gone = silence, gone
        self.every = min(EVERY, silence / 5)
        self._stop = threading.Event()
        self._threads: list[threading.Thread] = []
        self._shown = 0
        self._seen: str | None = None
        self._asks_next = True
        self._reached = self._heard = time.monotonic()

    def start(self) -> None:
        """Begin to show signs of life; `watch` begins to ask for those of the next process."""
        self._show()
        self._run(self._beat)

    def watch(self) -> None:
        """Begin to judge: every process has started."""
        self._reached = self._heard = time.monotonic()
        self._run(self._judge)

    def ask_the_store_only(self) -> None:
        """Something failed already, and signs of life are missed by who looks for the reason."""
        self._asks_next = False

    def stop(self) -> None:
        """The run is over; nobody counts as gone any more."""
        self._stop.set()
        # An interpreter that ends while a thread is inside the store ends with SIGABRT.
        for thread in self._threads:
            thread.join(2.0)

    def last(self, rank: int) -> str | None:
        """What a process showed last; None if nothing yet."""
        name = f"pulse/{rank}"
        return self.store.get(name).decode() if self.store.check([name]) else None

    def _run(self, work: Callable[[], None]) -> None:
        thread = threading.Thread(target=work, name=f"pulse{work.__name__}", daemon=True)
        self._threads.append(thread)
        thread.start()

    def _show(self) -> None:
        self._shown += 1
        self.store.set(f"pulse/{self.rank}", str(self._shown))

    def _beat(self) -> None:
        while not self._stop.wait(self.every):
            try:
                self._show()
                seen = self.last(self.next)
            except RuntimeError:  # the store is gone; the judge counts the seconds
                continue
            self._reached = time.monotonic()
            if seen != self._seen:
                self._seen, self._heard = seen, self._reached

    def _judge(self) -> None:
        while not self._stop.wait(self.every):
            now = time.monotonic()
            if now - self._reached > self.silence:
                self.gone(None)
                return
            if self._asks_next and now - self._heard > self.silence:
                self.gone(self.next)
                return
