"""When one process of a run ends, the others end too, with a sentence that names it.

Each process says in the store that they found each other by who it is and, if it fails, why. A
process whose exchange with the others breaks looks there before it gives up. If nothing breaks
because a machine is cut off, its signs of life (`pulse.py`) are missed.
"""

from __future__ import annotations

import atexit
import gc
import os
import signal
import socket
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext, suppress
from datetime import timedelta
from typing import Any

import torch.distributed as dist

from hypersphere.training.diagnose import BAD_BATCH, WENT_BAD_BEFORE, NotFinite
from hypersphere.training.meeting import hold_back_fabric
from hypersphere.training.pulse import EVERY, Pulse
from hypersphere.training.run.checkpoint import RunError
from hypersphere.training.run.lock import is_alive

if dist.is_available():  # its functions would keep, as defaults, a group that is there before them
    import torch.distributed.nn  # noqa: F401

__all__ = ["SILENCE", "end_processes", "named_failures"]

SILENCE = 120.0  # seconds, for a fabric that does not say
PATIENCE = 10.0  # seconds in which a process that failed has said so
MISSED = 3.5 * EVERY  # seconds without a sign of life that are enough once an exchange broke
BROKEN = "exchange with another process broke"


@contextmanager
def named_failures(fabric: Any) -> Iterator[None]:
    """Context in which the failure of another process becomes a `RunError` that names it.

    A process that waits for a machine that was cut off cannot be woken by an error: after
    ``fabric.silence`` seconds (of `make_fabric`) it prints the same sentence and exits with 1.

    Args:
        fabric: devices and processes; with one process nothing happens here.
    """
    if fabric.world_size == 1:
        yield
        return
    hold_back_fabric()
    sigterm = _Sigterm()
    meeting = getattr(fabric, "meeting", None)
    with meeting.exchange() if meeting else nullcontext():
        board = _Board(fabric)
    try:
        yield
        sigterm.restore()
    except NotFinite as error:
        sigterm.patience = PATIENCE
        board.write(str(error))
        other = board.first_failure(PATIENCE, own=str(error))
        board.leave(str(error))
        if other is not None:  # what was noticed here is the consequence
            raise RunError(other) from error
        raise
    except RunError as error:
        sigterm.patience = PATIENCE
        board.leave(str(error))
        raise
    except RuntimeError as error:  # what torch.distributed raises when a process has gone
        sigterm.patience = 2 * PATIENCE
        board.write(BROKEN)
        other = board.first_failure(PATIENCE)
        board.leave(BROKEN if other is not None else f"{type(error).__name__}: {error}")
        if other is not None:
            raise RunError(other) from error
        raise
    except BaseException as error:
        sigterm.patience = PATIENCE
        board.leave(f"{type(error).__name__}: {error}")
        raise
    finally:
        board.pulse.stop()


class _Sigterm:
    """What SIGTERM does outside the loop: this process ends, but says its sentence first.

    torchrun sends it to the others as soon as it sees that one process is gone, which is when they
    look for the reason. After a failure it stays so until the process ends.
    """

    def __init__(self) -> None:
        self.patience = 0.0
        self.previous: Any = None
        usual = signal.getsignal(signal.SIGTERM) is signal.SIG_DFL  # others know what they do
        if usual and threading.current_thread() is threading.main_thread():
            self.previous = signal.signal(signal.SIGTERM, self._came)

    def restore(self) -> None:
        """The run went well: as before."""
        if self.previous is not None:
            signal.signal(signal.SIGTERM, self.previous)

    def _came(self, number: int, frame: Any) -> None:
        threading.Thread(target=self._end, args=(128 + number,), daemon=True).start()

    def _end(self, code: int) -> None:
        time.sleep(1.0)  # a failure that made somebody send the signal is noticed by then
        time.sleep(self.patience)
        os._exit(code)


def end_processes() -> None:
    """Take down the process group, in order, after everything that used it.

    DDP's reducer, which holds on to the group, goes first: an interpreter that ends while a thread
    of the group still wants its lock ends with SIGABRT.
    """
    gc.collect()
    if dist.is_initialized():
        dist.destroy_process_group()


def _let_go_last(held: list[Any]) -> None:
    """Keep the group in `held` until nobody else has it, in a thread.

    Taking a group apart waits for its threads, and a thread that lets go of a tensor waits for the
    lock of the interpreter. A reference of Python gives the lock away meanwhile. DDP's reducer,
    which goes with the failed run, would keep it, and both would wait for ever.
    """
    begun = threading.Event()

    def let_go() -> None:
        while sys.getrefcount(held[0]) > 2:  # those of the list and of this call
            time.sleep(0.05)
        begun.set()
        held.clear()

    def wait() -> None:
        # An interpreter that ends while the group is taken apart ends with SIGABRT. A group that
        # is still in use stays whole.
        if begun.wait(0.2):
            thread.join(PATIENCE)

    thread = threading.Thread(target=let_go, name="let-go-last", daemon=True)
    thread.start()
    atexit.register(wait)


class _Board:
    """Who takes part and how they ended, in the store of the process group."""

    def __init__(self, fabric: Any) -> None:
        self.rank, self.count = fabric.global_rank, fabric.world_size
        self.silence = getattr(fabric, "silence", SILENCE)
        shared = dist.distributed_c10d._get_default_store()
        self.store = dist.PrefixStore("hypersphere/processes", shared)
        self.run = str(self.store.add(f"runs/{self.rank}", 1))  # several runs may share a group
        keeps = "keeps the store" if _is_kept_here(shared) else ""
        self._set("who", f"{socket.gethostname()} {os.getpid()} {keeps}")
        # A connection of its own, so that nobody waits for the other's answer.
        own = shared.clone() if hasattr(shared, "clone") else shared
        place = dist.PrefixStore(f"hypersphere/processes/{self.run}", own)
        self.pulse = Pulse(place, self.rank, self.count, self.silence, self._silent)
        self.pulse.start()
        try:
            fabric.barrier()
            self.who = [(self._get("who", rank) or "").split(" ", 2) for rank in range(self.count)]
        except BaseException:
            self.pulse.stop()
            raise
        self.keeper = next((r for r, who in enumerate(self.who) if who[-1]), 0)
        self.pulse.watch()

    def write(self, reason: str) -> None:
        """Say how this process ended."""
        with suppress(RuntimeError):  # the store may have gone with the first process
            self._set("end", reason or "it failed")

    def leave(self, reason: str) -> None:
        """Say how this process ended, and let the others notice at once.

        They notice when their exchange breaks, and read the reason in the store. The process that
        keeps the store stays until they have.
        """
        self.pulse.ask_the_store_only()
        self.write(reason)
        if dist.is_initialized() and dist.get_backend() == "gloo":
            held = [dist.group.WORLD]
            dist.destroy_process_group()
            _let_go_last(held)
        end = time.monotonic() + PATIENCE
        signs = _Signs(self)
        with suppress(RuntimeError):
            while self.who[self.rank][-1] and time.monotonic() < end:
                others = [r for r in range(self.count) if r != self.rank]
                waiting = [r for r in others if self._get("end", r) is None]
                if not any(signs.is_alive(rank) for rank in waiting):
                    break
                time.sleep(0.1)

    def first_failure(self, patience: float, own: str = BROKEN) -> str | None:
        """A sentence about a process that failed by itself; None if there is none.

        Such a process has a reason that is nearer to a cause than that of this one, `own`.
        """
        self.pulse.ask_the_store_only()
        end = time.monotonic() + patience
        signs = _Signs(self)
        while _distance(own) > 0:
            undecided = False
            for rank in (r for r in range(self.count) if r != self.rank):
                try:
                    lives = signs.is_alive(rank)  # asked first: who ends says why before
                    reason = self._get("end", rank)
                except RuntimeError:
                    return self._sentence(self.keeper, "is gone")
                if reason is None and not lives:
                    return self._sentence(rank, "is gone")
                if reason is None or reason == BROKEN:
                    undecided = True
                elif _distance(reason) < _distance(own):
                    return self._sentence(rank, f"ended: {reason}")
            if not undecided or time.monotonic() >= end:
                return None
            time.sleep(0.1)
        return None

    def _silent(self, rank: int | None) -> None:
        """End this process, wherever it waits: `rank` (None: who keeps the store) is silent."""
        what = f"has shown no sign of life for {self.silence:g} s, its machine may be cut off"
        sentence = self._sentence(self.keeper if rank is None else rank, what)
        print(f"hypersphere: {sentence}", file=sys.stderr, flush=True)
        # This is a consequence, and nobody's cause. The store may not answer: do not wait for it.
        saying = threading.Thread(target=self.write, args=(BROKEN,), daemon=True)
        saying.start()
        saying.join(1.0)
        sys.stdout.flush()
        os._exit(1)

    def _sentence(self, rank: int, what: str) -> str:
        host, pid, _ = self.who[rank]
        return (
            f"process {rank} of {self.count} (pid {pid} on {host}) {what}; this one, {self.rank}, "
            f"stops too. Continue with --resume"
        )

    def _set(self, key: str, value: str) -> None:
        self.store.set(f"{self.run}/{key}/{self.rank}", value)

    def _get(self, key: str, rank: int) -> str | None:
        name = f"{self.run}/{key}/{rank}"
        if not self.store.check([name]):
            return None
        self.store.wait([name], timedelta(seconds=1))
        return self.store.get(name).decode()


def _distance(reason: str) -> int:
    """How far from the cause a failure was noticed: numbers that are not finite reach the other
    processes by synchronized statistics, then by the update, and break their exchange last.
    """
    if reason == BROKEN:
        return 3
    return 0 if BAD_BATCH in reason else 2 if WENT_BAD_BEFORE in reason else 1


class _Signs:
    """Whether processes live, as seen from one of them, from now on."""

    def __init__(self, board: _Board) -> None:
        self.board = board
        self.pulse: dict[int, tuple[str | None, float]] = {}  # the last sign, and since when

    def is_alive(self, rank: int) -> bool:
        """Whether a process runs; on another machine, whether its signs of life go on."""
        host, pid, _ = self.board.who[rank]
        if host == socket.gethostname():
            return is_alive(int(pid))
        now, last = time.monotonic(), self.board._get("pulse", rank)
        if rank not in self.pulse or self.pulse[rank][0] != last:
            self.pulse[rank] = last, now
        return now - self.pulse[rank][1] < MISSED


def _is_kept_here(store: Any) -> bool:
    """Whether the server of a store runs on this machine: its address can be bound here."""
    while isinstance(store, dist.PrefixStore):
        store = store.underlying_store
    if not isinstance(store, dist.TCPStore):
        return False
    try:
        family, kind, number, _, address = socket.getaddrinfo(
            store.host, 0, type=socket.SOCK_STREAM
        )[0]
        with socket.socket(family, kind, number) as probe:
            probe.bind(address)
    except OSError:
        return False
    return True
