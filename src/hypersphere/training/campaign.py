"""Many runs, some at a time, in processes of their own: safe to stop and to start again.

A run that has ended (finished or diverged) is not repeated, one that was interrupted goes on from
its checkpoint, and one that another process is training (of a second campaign in the same folder,
or left by one that was killed) is waited for. Several at a time have one thread each, so that N of
them share N cores without waiting for one another.
"""

from __future__ import annotations

import contextlib
import dataclasses
import json
import os
import queue
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from hypersphere.training.interrupt import raising
from hypersphere.training.run.checkpoint import RunError
from hypersphere.training.run.lock import FolderLock
from hypersphere.training.run.records import read_record

__all__ = ["FOLDER_TAKEN", "Ended", "PlannedRun", "ended", "run_all"]

# Exit code of a run whose folder another process trains in: EX_TEMPFAIL of sysexits.h.
FOLDER_TAKEN = 75
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
        before: whether it had ended before this campaign looked at it.
    """

    summary: dict[str, Any] = field(default_factory=dict)
    diverged: str | None = None
    seconds: float = 0.0
    before: bool = False


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
    known: Mapping[Path, Ended] | None = None,
) -> dict[Path, Ended]:
    """Train every run that has not ended, `jobs` at a time.

    Args:
        runs: what to train, in this order.
        jobs: number of processes at once.
        report: called after each run, also for those that had ended before.
        known: how runs ended whose folders are elsewhere, by the folders that they would have here.

    Returns:
        How each run ended, by its folder.

    Raises:
        RunError: if a run fails for another reason than divergence; the others are stopped.
        Interrupted: after a signal, when all processes have saved their state.
    """
    found: dict[Path, Ended] = {}

    def conclude(run: PlannedRun, how: Ended) -> None:
        found[run.folder] = how
        report(run, how)

    waiting: list[PlannedRun] = []
    for run in runs:
        how = ended(run.folder) or (known or {}).get(run.folder)
        if how is None:
            waiting.append(run)
        else:
            conclude(run, dataclasses.replace(how, before=True))
    active: dict[_Worker, PlannedRun] = {}
    idle: list[_Worker] = []
    with raising():
        try:
            while waiting or active:
                free = _next_free(waiting) if len(active) < jobs else None
                if free is not None:
                    how = ended(free.folder)
                    if how is None:
                        worker = idle.pop() if idle else _Worker(one_thread=jobs > 1)
                        active[worker] = free
                        worker.begin(free)
                    else:  # trained by another process in the meantime
                        conclude(free, how)
                    continue
                done = _next_to_end(active)
                if done is None:
                    continue
                run = active.pop(done)
                if done.alive():
                    idle.append(done)
                else:
                    done.close(0.1)
                how = ended(run.folder)
                if how is not None:
                    conclude(run, how)
                elif done.code == FOLDER_TAKEN:  # another process was faster
                    waiting.append(run)
                else:
                    raise RunError(f"{run.name} failed: {_why(run, done.code)}")
        finally:
            _stop(active, idle)
    return found


def _next_free(waiting: list[PlannedRun]) -> PlannedRun | None:
    """Take out the first run that no other process is training."""
    for run in waiting:
        if not FolderLock(run.folder).is_held():
            waiting.remove(run)
            return run
    return None


class _Worker:
    """A process that trains one run after the other: Python and torch are started once."""

    def __init__(self, one_thread: bool) -> None:
        environment = {**os.environ, "OMP_NUM_THREADS": "1"} if one_thread else None
        # A session of its own: Ctrl-C reaches it once, from here, and not from the terminal too.
        self.process = subprocess.Popen(
            [sys.executable, "-m", "hypersphere.commands._worker"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            env=environment,
            start_new_session=True,
        )
        self.code: int | None = None  # of the run that has ended
        self.alone = False
        self.answers: queue.SimpleQueue[bytes] = queue.SimpleQueue()
        self.listener = threading.Thread(target=self._listen, daemon=True)
        self.listener.start()

    def _listen(self) -> None:
        assert self.process.stdout is not None
        with self.process.stdout as lines:
            for line in lines:
                self.answers.put(line)

    def begin(self, run: PlannedRun) -> None:
        # Begun or not: there may be a run by the time the process looks.
        arguments = [str(run.config), "--resume", str(run.folder), *run.options]
        log = _log(run)
        log.parent.mkdir(parents=True, exist_ok=True)
        # A plugin is imported once per process: with one, each run has a process of its own.
        self.alone = "--plugin" in run.options
        assert self.process.stdin is not None
        line = json.dumps({"arguments": arguments, "log": str(log.resolve())})
        with contextlib.suppress(BrokenPipeError):  # a worker that cannot start: no result is found
            self.process.stdin.write(f"{line}\n".encode())
            self.process.stdin.flush()
            if self.alone:
                self.process.stdin.close()

    def has_ended(self) -> bool:
        """Whether its run is over, or the process itself."""
        if self.answers.empty():
            self.code = self.process.poll()
            return self.code is not None
        self.code = int(self.answers.get())
        return True

    def alive(self) -> bool:
        """Whether it can take another run."""
        if self.alone:
            self.process.wait()
        return self.process.poll() is None

    def stop(self) -> None:
        """Ask it to save and end."""
        self.process.send_signal(signal.SIGINT)

    def close(self, seconds: float) -> None:
        """Wait until it has ended; end it if it does not."""
        assert self.process.stdin is not None
        with contextlib.suppress(OSError):
            self.process.stdin.close()
        try:
            self.process.wait(seconds)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()
        self.listener.join()  # ends with the process


def _next_to_end(active: dict[_Worker, PlannedRun]) -> _Worker | None:
    """A worker whose run is over; None if there is none after a moment."""
    for worker in active:
        if worker.has_ended():
            return worker
    time.sleep(0.05)
    return None


def _stop(active: dict[_Worker, PlannedRun], idle: list[_Worker]) -> None:
    for worker in active:
        worker.stop()
    deadline = time.monotonic() + PATIENCE
    for worker in [*active, *idle]:
        worker.close(max(0.1, deadline - time.monotonic()))


def _log(run: PlannedRun) -> Path:
    return run.folder.parent / f"{run.folder.name}.log"


def _why(run: PlannedRun, code: int | None) -> str:
    if code is not None and code < 0:  # a process that is killed says nothing: its log is of before
        return (
            f"its process was ended by signal {-code}; repeat the command: finished runs are kept"
        )
    return _last_words(run)


def _last_words(run: PlannedRun) -> str:
    try:
        lines = _log(run).read_text("utf-8", "replace").strip().splitlines()
    except OSError:
        lines = []
    return lines[-1] if lines else "it left no message"
