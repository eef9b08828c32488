"""Many runs, some at a time, each in a process of its own: safe to stop and to start again.

A run that has ended (finished or diverged) is not repeated, one that was interrupted goes on from
its checkpoint. Each process has one thread, so that N of them share N cores without waiting for
one another.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from types import FrameType
from typing import Any

from hypersphere.training.run.checkpoint import RunError
from hypersphere.training.run.records import read_record

__all__ = ["Ended", "PlannedRun", "ended", "run_all"]

PATIENCE = 60.0  # seconds that stopped runs have to write their checkpoints


@dataclass(frozen=True)
class PlannedRun:
    """One run of a campaign.

    Args:
        name: what progress lines call it.
        folder: its run folder.
        config: the config file to train.
        options: further arguments of ``hypersphere train``.
    """

    name: str
    folder: Path
    config: Path
    options: tuple[str, ...] = ()


@dataclass(frozen=True)
class Ended:
    """How a run ended.

    Args:
        summary: what summary.json says; empty if the run diverged before its first test.
        diverged: why it did not converge, or None.
        seconds: its training time.
    """

    summary: dict[str, Any] = field(default_factory=dict)
    diverged: str | None = None
    seconds: float = 0.0


def ended(folder: Path) -> Ended | None:
    """How the run in `folder` ended, or None if it has to be started or continued."""
    try:
        lost = read_record(folder / "diverged.json")
        return Ended({}, str(lost["reason"]), float(lost.get("seconds", 0.0)))
    except (OSError, RunError, ValueError, KeyError, TypeError):
        pass
    try:
        summary = read_record(folder / "summary.json")
        return Ended(summary, None, float(summary["seconds"]))
    except (OSError, RunError, ValueError, KeyError, TypeError):
        return None


def run_all(
    runs: Sequence[PlannedRun],
    jobs: int = 1,
    report: Callable[[PlannedRun, Ended], object] = lambda run, how: None,
) -> dict[Path, Ended]:
    """Train every run that has not ended, `jobs` at a time.

    Args:
        runs: what to train, in this order.
        jobs: number of processes at once.
        report: called after each run, also for those that had ended before.

    Returns:
        How each run ended, by its folder.

    Raises:
        RuntimeError: if a run fails for another reason than divergence; the others are stopped.
        KeyboardInterrupt: after a signal, when all processes have saved their state.
    """
    found: dict[Path, Ended] = {}
    waiting: list[PlannedRun] = []
    for run in runs:
        how = ended(run.folder)
        if how is None:
            waiting.append(run)
        else:
            found[run.folder] = how
            report(run, how)
    active: dict[subprocess.Popen[bytes], PlannedRun] = {}
    stopped = _Stopped()
    with stopped:
        try:
            while waiting or active:
                while waiting and len(active) < jobs:
                    run = waiting.pop(0)
                    active[_start(run)] = run
                process = _next_to_end(active, stopped)
                run = active.pop(process)
                how = ended(run.folder)
                if how is None:
                    raise RuntimeError(f"{run.name} failed: {_last_words(run)}")
                found[run.folder] = how
                report(run, how)
        finally:
            _stop(active)
    return found


class _Stopped:
    """SIGINT and SIGTERM become a KeyboardInterrupt in the main thread, where it is waiting."""

    def __init__(self) -> None:
        self.signal: int | None = None
        self.previous: dict[int, Any] = {}

    def __enter__(self) -> None:
        def note(number: int, frame: FrameType | None) -> None:
            self.signal = number

        for number in (signal.SIGINT, signal.SIGTERM):
            self.previous[number] = signal.signal(number, note)

    def __exit__(self, *_: object) -> None:
        for number, handler in self.previous.items():
            signal.signal(number, handler)


def _start(run: PlannedRun) -> subprocess.Popen[bytes]:
    begun = (run.folder / "run.json").exists()
    what = ["--resume", str(run.folder)] if begun else [str(run.config)]
    where = [] if begun else ["--run.folder", str(run.folder)]
    command = [sys.executable, "-m", "hypersphere", "train", *what, *where, *run.options]
    log = _log(run)
    log.parent.mkdir(parents=True, exist_ok=True)
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    with open(log, "ab") as output:
        # A session of its own: Ctrl-C reaches it once, from here, and not from the terminal too.
        return subprocess.Popen(
            command,
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=output,
            env=environment,
            start_new_session=True,
        )


def _next_to_end(
    active: dict[subprocess.Popen[bytes], PlannedRun], stopped: _Stopped
) -> subprocess.Popen[bytes]:
    while True:
        if stopped.signal is not None:
            raise KeyboardInterrupt
        for process in active:
            if process.poll() is not None:
                return process
        time.sleep(0.05)


def _stop(active: dict[subprocess.Popen[bytes], PlannedRun]) -> None:
    """Ask the processes to save and end; end those that do not."""
    for process in active:
        process.send_signal(signal.SIGINT)
    deadline = time.monotonic() + PATIENCE
    for process in active:
        try:
            process.wait(max(0.1, deadline - time.monotonic()))
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()


def _log(run: PlannedRun) -> Path:
    return run.folder.parent / f"{run.folder.name}.log"


def _last_words(run: PlannedRun) -> str:
    try:
        lines = _log(run).read_text("utf-8", "replace").strip().splitlines()
    except OSError:
        lines = []
    return lines[-1] if lines else "it left no message"
