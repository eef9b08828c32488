"""What a run says while it runs: a bar on a terminal, plain lines elsewhere."""

from __future__ import annotations

import sys
import time
from collections.abc import Mapping
from typing import Any, TextIO

__all__ = ["Progress", "duration"]


def duration(seconds: float) -> str:
    """A time one can read.

    >>> duration(5.2), duration(95), duration(7322)
    ('5s', '1m35s', '2h02m')
    """
    whole = int(seconds)
    if whole < 60:
        return f"{whole}s"
    if whole < 3600:
        return f"{whole // 60}m{whole % 60:02d}s"
    return f"{whole // 3600}h{whole % 3600 // 60:02d}m"


class Progress:
    """Loss, accuracy, energy, samples per second and time left.

    On a terminal one line is redrawn in place; otherwise a line is printed at most every
    `interval` seconds.
    """

    def __init__(
        self,
        total: int,
        start: int = 0,
        quiet: bool = False,
        stream: TextIO | None = None,
        interval: float = 10.0,
    ) -> None:
        self.total, self.first, self.quiet = total, start, quiet
        self.stream = stream or sys.stderr
        self.bar = not quiet and self.stream.isatty()
        self.interval = 0.2 if self.bar else interval
        self.began = self._last = time.perf_counter()
        self._samples = 0
        self._shown: dict[str, float] = {}
        self._dirty = False

    def update(self, step: int, samples: int, values: Mapping[str, Any]) -> None:
        """Note `samples` more samples after `step` updates; show it if the time has come."""
        self._samples += samples
        if self.quiet:
            return
        self._shown.update({k: float(v) for k, v in values.items() if v is not None})
        now = time.perf_counter()
        if now - self._last >= self.interval or step >= self.total:
            self._last = now
            self._show(step, now)

    def line(self, step: int, now: float) -> str:
        spent = max(now - self.began, 1e-9)
        done = step - self.first
        left = spent / done * (self.total - step) if done else 0.0
        parts = [f"step {step}/{self.total}"]
        for name in ("loss", "accuracy", "energy"):
            if name in self._shown:
                value = self._shown[name]
                parts.append(f"{name} {value:.2%}" if name == "accuracy" else f"{name} {value:.4f}")
        parts.append(f"{self._samples / spent:.0f} samples/s")
        parts.append(f"{duration(left)} left")
        return "  ".join(parts)

    def _show(self, step: int, now: float) -> None:
        text = self.line(step, now)
        if not self.bar:
            print(text, file=self.stream, flush=True)
            return
        width = 24
        filled = int(width * step / max(self.total, 1))
        drawn = "#" * filled + "-" * (width - filled)
        self.stream.write(f"\r\033[K[{drawn}] {text}")
        self.stream.flush()
        self._dirty = True

    def say(self, message: str) -> None:
        """A message above the bar."""
        if self.quiet:
            return
        self.close()
        print(message, file=self.stream, flush=True)

    def close(self) -> None:
        if self._dirty:
            self.stream.write("\n")
            self.stream.flush()
            self._dirty = False
