"""Many runs, some at a time, each in a process of its own: safe to stop and to start again.

A run that has ended (finished or diverged) is not repeated, one that was interrupted goes on from
its checkpoint, and one that another process is training (of a second campaign in the same folder,
or left by one that was killed) is waited for. Several at a time have one thread each, so that N of
them share N cores without waiting for one another.
"""

from __future__ import annotations

import dataclasses
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
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
) -> dict[Path, Ended]:
    """Train every run that has not ended, `jobs` at a time.

    Args:
        runs: what to train, in this order.
        jobs: number of processes at once.
        report: called after each run, also for those that had ended before.

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
        how = ended(run.folder)
        if how is None:
            waiting.append(run)
        else:
            conclude(run, dataclasses.replace(how, before=True))
    active: dict[subprocess.Popen[bytes], PlannedRun] = {}
    with raising():
        try:
            while waiting or active:
                free = _next_free(waiting) if len(active) < jobs else None
                if free is not None:
                    how = ended(free.folder)
                    if how is None:
                        active[_start(free, one_thread=jobs > 1)] = free
                    else:  # trained by another process in the meantime
                        conclude(free, how)
                    continue
                process = _next_to_end(active)
                if process is None:
                    continue
                run = active.pop(process)
                how = ended(run.folder)
                if how is not None:
                    conclude(run, how)
                elif process.poll() == FOLDER_TAKEN:  # another process was faster
                    waiting.append(run)
                else:
                    raise RunError(f"{run.name} failed: {_last_words(run)}")
        finally:
            _stop(active)
    return found


def _next_free(waiting: list[PlannedRun]) -> PlannedRun | None:
    """Take out the first run that no other process is training."""
    for run in waiting:
        if not FolderLock(run.folder).is_held():
            waiting.remove(run)
            return run
    return None


def _start(run: PlannedRun, one_thread: bool) -> subprocess.Popen[bytes]:
    # Begun or not: there may be a run by the time the process looks.
    what = [str(run.config), "--resume", str(run.folder)]
    command = [sys.executable, "-m", "hypersphere", "train", *what, *run.options]
    log = _log(run)
    log.parent.mkdir(parents=True, exist_ok=True)
    environment = {**os.environ, "OMP_NUM_THREADS": "1"} if one_thread else None
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
    active: dict[subprocess.Popen[bytes], PlannedRun],
) -> subprocess.Popen[bytes] | None:
    """A process that has ended; None if there is none after a moment."""
    for process in active:
        if process.poll() is not None:
            return process
    time.sleep(0.05)
    return None


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
