"""A process that ends before the processes of a run have met: the others end too, and name it.

Until they have met there is no store that says who takes part (`processes.py`), and who waits for a
process that will never come waits for half an hour. But the process that starts the others sees
them end, and they see that it is gone. torchrun watches the processes that it starts itself.
"""

from __future__ import annotations

import os
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any

import torch.distributed as dist

from hypersphere.training.run.checkpoint import RunError
from hypersphere.training.run.lock import is_alive

__all__ = ["Meeting", "hold_back_fabric"]

STARTED_BY = "HYPERSPHERE_STARTED_BY"  # read by the processes that Fabric starts
EVERY = 0.1  # seconds between two looks
STOPPED = (128 + signal.SIGINT, 128 + signal.SIGTERM)  # exit codes
PATIENCE = 2.0  # seconds in which it shows who is gone
TO_SAY_WHY = 20.0  # seconds that Fabric gives a process before it kills it


class Meeting:
    """Names the process that keeps the others from meeting.

    Args:
        fabric: devices and processes, before its ``launch``.
    """

    def __init__(self, fabric: Any) -> None:
        self.processes = getattr(fabric.strategy, "num_processes", None)  # on this machine
        launcher = fabric.strategy.launcher
        self.children = getattr(launcher, "procs", None)
        if self.children is not None and launcher.cluster_environment.creates_processes_externally:
            self.children = None  # torchrun, SLURM or Fabric has started this one
        self.parent = os.environ.pop(STARTED_BY, None)

    @contextmanager
    def exchange(self) -> Iterator[None]:
        """Context of what the processes exchange before they watch each other."""
        over = threading.Event()

        def watch() -> None:
            while not over.wait(EVERY):
                hold_back_fabric()
                gone = self._gone()
                if gone and not over.is_set():
                    self._leave(*gone)

        if self.children is not None:
            os.environ[STARTED_BY] = str(os.getpid())
        watches = self.children is not None or self.parent is not None
        if watches:
            threading.Thread(target=watch, name="meeting", daemon=True).start()
        try:
            yield
        except RuntimeError as error:
            if not _is_broken_exchange(error):
                raise
            if watches:
                time.sleep(PATIENCE)  # of `watch`, which ends this process if it sees who is gone
            raise RunError(
                f"the processes of this run did not meet, one of them may have ended: {error}"
            ) from error
        finally:
            over.set()
            os.environ.pop(STARTED_BY, None)  # no other program is part of this run

    def _gone(self) -> tuple[str, int] | None:
        """What became of another process on this machine, if it is gone, and the exit code of this
        one: that of an interruption, which a terminal sends to all of them.
        """
        for local, process in enumerate(list(self.children or ()), start=1):
            code = process.poll()
            if code is not None:
                how = f"was ended by signal {-code}" if code < 0 else f"ended with exit code {code}"
                stopped = 128 - code if code < 0 else code
                own = stopped if stopped in STOPPED else 1
                return f"{self._name(local)} (pid {process.pid}) {how}", own
        if self.parent is not None and not is_alive(int(self.parent)):
            return f"{self._name(0)} (pid {self.parent}) is gone", 1
        return None

    def _name(self, local: int) -> str:
        return f"process {self._rank(local)} of {os.environ['WORLD_SIZE']}"

    def _rank(self, local: int) -> int:
        return int(os.environ["NODE_RANK"]) * int(self.processes or 1) + local

    def _leave(self, gone: str, code: int) -> None:
        """End this process, wherever it waits; those that it started see that it is gone."""
        own = self._rank(int(os.environ["LOCAL_RANK"]))
        print(
            f"hypersphere: {gone} before the processes had met; this one, {own}, stops too. "
            f"Start the run again",
            file=sys.stderr,
            flush=True,
        )
        sys.stdout.flush()
        os._exit(code)


def _is_broken_exchange(error: RuntimeError) -> bool:
    """Whether another process may have caused it; a port that is taken is nobody's end."""
    by_torch = isinstance(error, dist.DistError) or "gloo" in str(error).lower()
    return by_torch and "EADDRINUSE" not in str(error)


def hold_back_fabric() -> None:
    """Let this process say why it ends, before Fabric kills it.

    Fabric looks every few seconds whether the processes that it has started live, and kills all of
    them, and this one, if one does not. It still does so for a process that cannot end by itself.
    """
    for thread in threading.enumerate():
        terminate: Any = getattr(thread, "_terminate_all", None)
        if thread.name == "child-process-observer" and not isinstance(terminate, partial):
            thread._terminate_all = partial(_later, terminate)  # type: ignore[attr-defined]


def _later(terminate: Callable[[], None]) -> None:
    time.sleep(TO_SAY_WHY)
    terminate()
