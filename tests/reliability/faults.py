"""Faults at a chosen moment of a real process: killed, interrupted, the disk full, two at once.

`python -m reliability.faults JOB COUNT FOLDER` tries every fault `COUNT` times on one of `JOBS` and
prints a JSON line per fault: how often it was tried and survived, and what went wrong. It is a
process of its own that imports once and computes nothing; every attempt is a child of it, so that
an attempt costs no imports.

A moment is a change of a file: the child counts (by an audit hook of the interpreter) what it opens
for writing, renames, removes and makes, and the fault comes just before the n-th of them. So every
state in which a process can leave its folder is tried, and not only those that time favors.
"""

from __future__ import annotations

import contextlib
import errno
import gc
import json
import os
import random
import re
import signal
import sys
import time
import traceback
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from reliability.calls import RAW
from reliability.damage import fresh_copy
from reliability.jobs import JOBS, Job

CHANGES = ("os.rename", "os.remove", "os.rmdir", "os.mkdir", "os.truncate", "os.chmod", "os.link")
NO_FILE = re.compile("/proc/|/dev/(?!shm/)")  # files of tests may be in memory
FILLING = ("open", "os.mkdir", "os.rename")  # what a full disk refuses
# An attempt that hangs works for long, or waits for long without working at all. An attempt on a
# busy machine may take long in all and does neither.
WORK, STILLNESS = 60.0, 60.0  # seconds of the processor, and of the clock


@dataclass
class Fault:
    """A kind of fault and how it was lived through.

    Args:
        kind: what happens.
        tried: how often.
        survived: how often the job ended as if nothing had happened.
        wrong: what was seen where it did not.
    """

    kind: str
    tried: int = 0
    survived: int = 0
    wrong: list[str] = field(default_factory=list)

    def judge(self, problem: str, moment: str) -> None:
        """Count an attempt."""
        self.tried += 1
        self.survived += not problem
        if problem:
            self.wrong.append(f"{moment}: {problem}")


# --- in the child -------------------------------------------------------------------------------


def _is_change(event: str, arguments: tuple[Any, ...]) -> bool:
    if event in CHANGES:
        return True
    if event != "open" or not isinstance(arguments[0], (str, bytes, os.PathLike)):
        return False
    if NO_FILE.match(os.fsdecode(arguments[0])):
        return False
    mode, flags = arguments[1], arguments[2]
    if isinstance(mode, str):
        return any(letter in mode for letter in "wax+")
    return bool(isinstance(flags, int) and flags & (os.O_WRONLY | os.O_RDWR | os.O_CREAT))


def _at_change(number: int, act: Callable[[str], object], log: Path) -> None:
    """Call `act` before the change of that number; note how many there were."""
    seen, busy = 0, False

    def hook(event: str, arguments: tuple[Any, ...]) -> None:
        nonlocal seen, busy
        if busy or os.getpid() != pid or not _is_change(event, arguments):
            return
        seen += 1
        busy = True  # noting it is no change
        try:
            log.write_text(str(seen))
        finally:
            busy = False
        if seen >= number:
            act(event)

    pid = os.getpid()
    sys.addaudithook(hook)


def _act(kind: str) -> Callable[[str], object]:
    done = False

    def kill(event: str) -> None:
        os.kill(os.getpid(), signal.SIGKILL)

    def interrupt(event: str) -> None:
        nonlocal done
        if not done:
            done = True
            os.kill(os.getpid(), signal.SIGINT)

    def fill(event: str) -> None:
        if event in FILLING:
            raise OSError(errno.ENOSPC, "No space left on device")

    return {"killed": kill, "interrupted": interrupt, "no space left": fill}[kind]


def _child(
    folder: Path, words: Sequence[str], kind: str = "", moment: int = sys.maxsize, name: str = "a"
) -> int:
    """A process with one call of the command, and a fault at a moment of it; its number."""
    pid = os.fork()
    if pid:
        return pid
    code = 1
    try:
        out = os.open(folder.parent / f"{name}.said", os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
        os.dup2(out, 1)
        os.dup2(out, 2)
        os.setsid()  # so that what it starts can be ended with it
        os.chdir(folder)
        from hypersphere import cli

        _at_change(moment, _act(kind or "killed"), folder.parent / f"{name}.changes")
        code = cli.main(list(words))
    except SystemExit as leave:
        code = leave.code if isinstance(leave.code, int) else 1
    except BaseException:  # as the interpreter would
        traceback.print_exc()
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)


# --- in the parent ------------------------------------------------------------------------------


@dataclass
class End:
    """How a child ended.

    Args:
        code: its exit code, or minus the signal.
        said: its output and messages.
        changes: how many changes of files it made.
        seconds: that it took.
    """

    code: int
    said: str
    changes: int
    seconds: float

    def problem(self, allowed: Sequence[int] = (0,)) -> str:
        """What is wrong with how it ended; empty if nothing is."""
        if RAW.search(self.said):
            return f"a traceback or raw output: {self.said[-900:]}"
        if self.code not in allowed:
            return f"exit {self.code}: {self.said[-600:]}"
        if self.code not in (0, -signal.SIGKILL) and not self.said.strip():
            return f"exit {self.code} without a word"
        return ""


def worked(session: int) -> float:
    """Seconds of the processor that the processes of a session have had, and those that it ended.

    Args:
        session: the number of its leader, a child of this process.

    Returns:
        The sum.
    """
    ticks = 0
    for place in Path("/proc").glob("[0-9]*/stat"):
        with contextlib.suppress(OSError):
            words = place.read_text().rpartition(")")[2].split()
            if int(words[3]) == session or place.parent.name == str(session):
                ticks += sum(map(int, words[11:15]))
    return ticks / os.sysconf("SC_CLK_TCK")


def _wait(pid: int, folder: Path, name: str = "a", began: float | None = None) -> End:
    began = time.monotonic() if began is None else began
    work, moved, looked = -1.0, time.monotonic(), time.monotonic()
    while True:
        ended, status = os.waitpid(pid, os.WNOHANG)
        if ended:
            break
        if time.monotonic() > looked + 1:
            looked = time.monotonic()
            if (now := worked(pid)) != work:
                work, moved = now, looked
            if work > WORK or looked - moved > STILLNESS:
                with contextlib.suppress(ProcessLookupError):
                    os.killpg(pid, signal.SIGKILL)  # with all that it started
                os.kill(pid, signal.SIGKILL)
                os.waitpid(pid, 0)
                return End(-1, f"a hang after {work:g} s of work", 0, looked - began)
        time.sleep(0.005)
    changes = folder.parent / f"{name}.changes"
    count = int(changes.read_text() or 0) if changes.exists() else 0
    said = (folder.parent / f"{name}.said").read_text(errors="replace")
    return End(os.waitstatus_to_exitcode(status), said, count, time.monotonic() - began)


def _run(folder: Path, words: Sequence[str], kind: str = "", moment: int = sys.maxsize) -> End:
    (folder.parent / "a.changes").unlink(missing_ok=True)
    return _wait(_child(folder, words, kind, moment), folder)


class Trial:
    """One job in a scratch folder, again and again."""

    def __init__(self, job: Job, scratch: Path) -> None:
        self.job, self.scratch = job, scratch
        self.pristine, self.folder = scratch / "pristine", scratch / "folder"
        self.pristine.mkdir(parents=True)
        for words in job.prepare(self.pristine):
            end = _run(self.pristine, words)
            assert end.code == 0, f"{words}: {end.said}"
        self.fresh()
        self.whole = _run(self.folder, job.words(self.folder))
        assert self.whole.problem() == "", self.whole
        self.result = job.result(self.folder)

    def fresh(self) -> None:
        """The folder as it was before the job."""
        fresh_copy(self.pristine, self.folder)

    def go_on(self) -> str:
        """Do what a user does after a fault: the same again; what is wrong with the result."""
        if self.job.once and self._is_done():
            return ""
        end = _run(self.folder, self.job.words(self.folder))
        if problem := end.problem():
            return f"afterwards {problem}"
        if self.job.result(self.folder) != self.result:
            return f"another result: {difference(self.job.result(self.folder), self.result)}"
        return ""

    def _is_done(self) -> bool:
        try:
            return bool(self.job.result(self.folder) == self.result)
        except (OSError, ValueError):
            return False

    def at_changes(self, kind: str, allowed: Sequence[int], count: int) -> Fault:
        """A fault before changes of files, evenly spread."""
        fault = Fault(f"{kind} at a change of a file")
        for moment in spread(self.whole.changes, count):
            self.fresh()
            end = _run(self.folder, self.job.words(self.folder), kind, moment)
            problem = end.problem(allowed) or self.go_on()
            fault.judge(problem, f"change {moment} of {self.whole.changes}")
        return fault

    def at_times(self, count: int, draw: random.Random) -> Fault:
        """SIGKILL at random times, each followed by another one after which the job goes on."""
        fault = Fault("killed at a random time")
        for _ in range(count):
            self.fresh()
            problem, moments = "", []
            for _ in range(2):
                pid = _child(self.folder, self.job.words(self.folder))
                moments.append(draw.uniform(0.05, 0.95) * self.whole.seconds)
                time.sleep(moments[-1])
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
                end = _wait(pid, self.folder)
                problem = problem or end.problem((0, -signal.SIGKILL))
                if self.job.once:
                    break
            after = ", ".join(f"{seconds:.2f} s" for seconds in moments)
            fault.judge(problem or self.go_on(), f"after {after}")
        return fault

    def two_at_once(self, count: int, draw: random.Random) -> Fault:
        """Two of them: each ends well or is refused with a sentence, and the result is right."""
        fault = Fault("two at once")
        for _ in range(count):
            self.fresh()
            both = self.job.both(self.folder)
            began, delay = time.monotonic(), draw.uniform(0.0, 0.5) * self.whole.seconds
            first = _child(self.folder, both[0], name="a")
            time.sleep(delay)
            second = _child(self.folder, both[1], name="b")
            ends = [_wait(first, self.folder, "a", began), _wait(second, self.folder, "b", began)]
            problems = [end.problem((0, 1, 2, 75)) for end in ends]  # 75: the folder is in use
            problem = problems[0] or problems[1]
            if not problem and all(end.code for end in ends):
                problem = f"none of them ended well: {ends[0].said}{ends[1].said}"
            if not problem and self.job.joined is not None:
                problem = self.job.joined(self.folder)
            fault.judge(
                problem or ("" if self.job.joined else self.go_on()), f"{delay:.2f} s apart"
            )
        return fault


def difference(found: Any, wanted: Any) -> str:
    """The first entry in which two results differ."""
    if isinstance(found, dict) and isinstance(wanted, dict):
        for key in sorted({*found, *wanted}, key=str):
            if found.get(key) != wanted.get(key):
                return f"{key}: {difference(found.get(key), wanted.get(key))}"
    return f"{str(found)[:200]} instead of {str(wanted)[:200]}"


def spread(total: int, count: int) -> list[int]:
    """`count` of the numbers 1 ... total, evenly spread, both ends among them.

    >>> spread(9, 3), spread(2, 5)
    ([1, 5, 9], [1, 2])
    """
    if count >= total:
        return list(range(1, total + 1))
    if count == 1:
        return [(total + 1) // 2]
    return [1 + round(i * (total - 1) / (count - 1)) for i in range(count)]


def faults(job: Job, count: int, scratch: Path, seed: int = 0) -> Iterator[Fault]:
    """Every fault for a job, `count` times each."""
    draw = random.Random(seed)
    trial = Trial(job, scratch)
    stopped = (0, -signal.SIGKILL)
    yield trial.at_changes("killed", stopped, count)
    yield trial.at_times(max(1, count // 3), draw)
    yield trial.at_changes("interrupted", (0, 128 + signal.SIGINT), max(1, count // 2))
    yield trial.at_changes("no space left", (0, 1), max(1, count // 2))
    yield trial.two_at_once(max(1, count // 4), draw)


def main(arguments: Sequence[str]) -> int:
    """Try the faults and print a line for each."""
    name, count, folder = arguments
    import torch

    torch.set_num_threads(1)
    job = next(job for job in JOBS if job.name == name)
    job.imports()
    gc.collect()
    gc.freeze()  # else every child looks through all that was imported, and copies its pages
    for fault in faults(job, int(count), Path(folder).resolve()):
        print(json.dumps(asdict(fault)), flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
