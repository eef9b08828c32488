"""What a run says while it runs: a bar on a terminal, plain lines elsewhere, a table of tests."""

from __future__ import annotations

import sys
import time
from collections.abc import Mapping
from typing import Any, TextIO

from hypersphere._terminal import columns_of, duration, paint

__all__ = ["Progress", "is_share"]

# Shown as long as they fit, the first ones first; the step and the time left always are.
SHOWN = ("loss", "accuracy", "energy")
NARROWEST, WIDEST = 8, 24  # cells of the bar


def is_share(metric: str) -> bool:
    """Whether a metric is a share, which is printed in percent.

    >>> [is_share(m) for m in ("validation_accuracy", "top5_error", "loss", "verification_eer")]
    [True, True, False, True]
    """
    return any(word in metric for word in ("accuracy", "error", "eer"))


class Progress:
    """Loss, accuracy, energy, samples per second and time left.

    On a terminal one line is redrawn in place, as long as it fits, and taken away at the end;
    otherwise a line is printed at most every `interval` seconds.
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
        self._columns: list[str] = []  # of the table of tests

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

    def parts(self, step: int, now: float) -> list[str]:
        """What there is to say, the most important first."""
        spent = max(now - self.began, 1e-9)
        done = step - self.first
        left = spent / done * (self.total - step) if done else 0.0
        values = [f"{k} {_figure(k, self._shown[k])}" for k in SHOWN if k in self._shown]
        ends = [f"step {step}/{self.total}", f"{duration(left)} left"]
        return [*ends, *values, f"{self._samples / spent:.0f} samples/s"]

    def line(self, step: int, now: float, columns: int = 1000) -> str:
        """One line of at most `columns` characters: the step, what fits, and the time left."""
        step_text, left, *values = self.parts(step, now)
        kept: list[str] = []
        for value in values:
            if len("  ".join([step_text, *kept, value, left])) > columns:
                break
            kept.append(value)
        return "  ".join([step_text, *kept, left])

    def _show(self, step: int, now: float) -> None:
        if not self.bar:
            print(self.line(step, now), file=self.stream, flush=True)
            return
        columns = columns_of(self.stream) - 1  # the last cell would wrap
        width = WIDEST if columns >= 100 else NARROWEST
        filled = int(width * step / max(self.total, 1))
        drawn = paint("#" * filled, "green", self.stream) + "-" * (width - filled)
        text = self.line(step, now, columns - width - 3)
        self.stream.write(f"\r\033[K[{drawn}] {text}")
        self.stream.flush()
        self._dirty = True

    def tested(self, step: int, values: Mapping[str, float], best: bool) -> None:
        """A row of the table of tests; the best so far is marked."""
        if self.quiet:
            return
        columns = ["test at step", *values]
        if columns != self._columns:
            self._columns = columns
            self.say("  ".join(f"{name:>{_width(name)}}" for name in columns))
        cells = [f"{step:>{_width(columns[0])}}"]
        cells += [f"{_figure(name, value):>{_width(name)}}" for name, value in values.items()]
        row = "  ".join(cells)
        self.say(paint(f"{row}  best", "bold", self.stream) if best else row)

    def say(self, message: str) -> None:
        """A message above the bar."""
        if self.quiet:
            return
        self.close()
        print(message, file=self.stream, flush=True)

    def close(self) -> None:
        """Take the bar away."""
        if self._dirty:
            self.stream.write("\r\033[K")
            self.stream.flush()
            self._dirty = False


def _figure(name: str, value: float) -> str:
    return f"{value:.2%}" if is_share(name) else f"{value:.4f}"


def _width(name: str) -> int:
    return max(len(name), 7)
