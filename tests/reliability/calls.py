"""One call of the `hypersphere` command inside this process, with limits on time and memory.

A command may refuse (one sentence, an exit code other than 0) or answer. An exception that
escapes, a hang and a refusal without a sentence are faults of the command.
"""

from __future__ import annotations

import contextlib
import io
import json
import os
import re
import resource
import signal
import subprocess
import sys
import time
import traceback
import warnings
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from types import FrameType, SimpleNamespace
from typing import Any
from unittest import mock

HANG = 5.0  # seconds of the processor: a hang that works
BLOCKED = 10  # seconds of the clock in which it does nothing at all: a hang that waits
ENDLESS = 180  # seconds of the clock in which this process was awake
MEMORY = 3 << 30  # bytes that one call may add to the process
LONGEST = 1500  # characters of a sentence, with the names that it may list

SENTENCE = re.compile(r"^hypersphere[\w ]*: \S.*\s\S", re.MULTILINE)
_limits = True  # whether limits hold
RAW = re.compile(r"Traceback \(most recent|<[\w.]+ object at 0x|\x1b")


class Hang(BaseException):
    """A call took too long."""


@dataclass
class Answer:
    """What a call of the command gave.

    Args:
        command: its arguments.
        code: its exit code.
        out: its output.
        err: its messages.
        escaped: the exception that left the command, with its traceback; empty if none did.
        seconds: of the clock.
    """

    command: Sequence[str]
    code: int = 0
    out: str = ""
    err: str = ""
    escaped: str = ""
    seconds: float = field(default=0.0, compare=False)

    @property
    def is_refusal(self) -> bool:
        """Whether the command says that it cannot answer."""
        return self.code != 0 and SENTENCE.search(self.err) is not None

    def fault(self) -> str:
        """What is wrong with the form of the answer; empty if nothing is."""
        if self.escaped:
            return f"{self.escaped.strip().splitlines()[-1][:300]}\n{self.escaped}"
        if RAW.search(self.err) or RAW.search(self.out):
            return f"raw output: {(self.err + self.out)[-400:]!r}"
        if self.code == 0:
            return ""
        if "not enough memory" in self.err:
            return f"it asked for too much memory: {self.err[-400:]}"
        found = [line for line in self.err.splitlines() if SENTENCE.match(line)]
        if self.code == 3 and not found:  # of `gallery`: nobody matches
            return ""
        if len(found) != 1:
            return f"exit {self.code} without one sentence: {self.err[-400:]!r}"
        if len(found[0]) > LONGEST:
            return f"a sentence of {len(found[0])} characters: {found[0][:200]}..."
        return ""


def _print_warning(message, category, filename, lineno, file=None, line=None):
    print(warnings.formatwarning(message, category, filename, lineno, line), file=sys.stderr)


def call(arguments: Sequence[str], folder: Path, work: float | None = None) -> Answer:
    """Run the command in `folder`; nothing escapes but a KeyboardInterrupt.

    Args:
        arguments: of `hypersphere`.
        folder: to work in.
        work: seconds of the processor that it may take. Default: `HANG`.

    Returns:
        What it said, and how it ended.
    """
    from hypersphere import cli

    answer = Answer(list(arguments))
    out, err = io.StringIO(), io.StringIO()
    began = time.perf_counter()
    with _inside(folder), contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
        try:
            with limited(work), warnings.catch_warnings():
                warnings.showwarning = _print_warning  # pytest would keep them to itself
                warnings.simplefilter("always")  # as for a user, whose process is new each time
                answer.code = int(cli.main(list(arguments)))
        except SystemExit as leave:
            answer.code = leave.code if isinstance(leave.code, int) else 1
        except Hang:
            answer.code, answer.escaped = -1, "hang: over the limit of time\n"
            answer.escaped += traceback.format_exc(limit=-4)
        except KeyboardInterrupt:
            raise
        except BaseException:
            answer.code, answer.escaped = -1, traceback.format_exc()
    answer.seconds = time.perf_counter() - began
    answer.out, answer.err = out.getvalue(), _messages(err.getvalue())
    return answer


def _messages(text: str) -> str:
    """Messages with the usage of argparse left out: `usage: ...` and its continuation lines."""
    return re.sub(r"^usage: .*\n(?:[ \t]+.*\n)*", "", text, flags=re.MULTILINE)


@contextlib.contextmanager
def _inside(folder: Path) -> Iterator[None]:
    before = os.getcwd()
    os.chdir(folder)
    try:
        yield
    finally:
        os.chdir(before)


@contextlib.contextmanager
def warming_up() -> Iterator[None]:
    """Context without limits, for a first call: it imports what all later ones have."""
    global _limits
    before, _limits = _limits, False
    try:
        yield
    finally:
        _limits = before


@contextlib.contextmanager
def limited(most: float | None = None) -> Iterator[None]:
    """`Hang` after too long, MemoryError for too much; the limits of the caller come back."""
    if not _limits:
        yield
        return
    most = HANG if most is None else most
    clock, work = time.monotonic(), time.process_time()
    # Stillness is that of this thread: others of the process, left by whoever, may be at work.
    before, still, seconds = time.thread_time(), 0, 0

    def too_long(number: int, frame: FrameType | None) -> None:
        """Called every second: on a busy machine a little is done in most, and one that is stopped
        altogether has none.
        """
        nonlocal before, still, seconds
        now, own, seconds = time.process_time(), time.thread_time(), seconds + 1
        still = still + 1 if own - before < 0.002 else 0
        before = own
        # A loop of short sleeps works a little in every second: it ends by their number.
        if now - work > most or still > BLOCKED or seconds > ENDLESS:
            raise Hang(f"{now - work:.1f} s of the processor, still for the last {still} s")

    soft, hard = resource.getrlimit(resource.RLIMIT_AS)
    handler = signal.signal(signal.SIGALRM, too_long)
    left, interval = signal.setitimer(signal.ITIMER_REAL, 1.0, 1.0)
    resource.setrlimit(resource.RLIMIT_AS, (_address_space() + MEMORY, hard))
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        resource.setrlimit(resource.RLIMIT_AS, (soft, hard))
        signal.signal(signal.SIGALRM, handler)
        if left:  # the limit of the test that we are in
            passed = time.monotonic() - clock
            signal.setitimer(signal.ITIMER_REAL, max(0.1, left - passed), interval)
    if time.process_time() - work > most:  # inside one call of C, where no signal arrives
        raise Hang(f"{time.process_time() - work:.1f} s of the processor")


def _address_space() -> int:
    pages = Path("/proc/self/statm").read_text().split()[0]
    return int(pages) * resource.getpagesize()


class TrainedHere:
    """Takes the place of the process of a comparison (`_worker.py`): trains in this one."""

    def __init__(self, command: Sequence[str], **_: Any) -> None:
        assert command[-1] == "hypersphere.commands._worker"
        out, self.answers = os.pipe()
        self.stdin, self.stdout = self, os.fdopen(out, "rb")
        self.code: int | None = None

    def write(self, line: bytes) -> None:
        """Train what a line of its input asks for."""
        from hypersphere import cli

        task, text = json.loads(line), io.StringIO()
        with contextlib.redirect_stdout(text), contextlib.redirect_stderr(text):
            code = cli.main(["train", *task["arguments"]])
        with open(task["log"], "a", encoding="utf-8") as log:
            log.write(text.getvalue())
        os.write(self.answers, f"{code}\n".encode())

    def flush(self) -> None:
        """Everything is done at once."""

    def close(self) -> None:
        """No further runs."""
        if self.code is None:
            self.code = 0
            os.close(self.answers)

    def poll(self) -> int | None:
        """The exit code, once it has ended."""
        return self.code

    def wait(self, timeout: float | None = None) -> int | None:
        """It has ended when its input was closed."""
        return self.code


def compare(folder: Path) -> Answer:
    """`hypersphere compare`, whose runs are no processes of their own: those take seconds each."""
    here = SimpleNamespace(Popen=TrainedHere, PIPE=subprocess.PIPE)
    with mock.patch("hypersphere.training.campaign.subprocess", here):
        return call(["compare", "small.yaml", "--seeds", "0", "--folder", "several"], folder)


if sys.platform != "linux":  # pragma: no cover
    raise ImportError("the harness reads /proc")
