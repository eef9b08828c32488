"""When one process of a run ends, the others end too, with a sentence that names it.

Each process says in the store that they found each other by who it is and, if it fails, why. A
process whose exchange with the others breaks looks there before it gives up.
"""

from __future__ import annotations

import os
import socket
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from datetime import timedelta
from typing import Any

import torch.distributed as dist

from hypersphere.training.diagnose import NotFinite
from hypersphere.training.run.checkpoint import RunError
from hypersphere.training.run.lock import is_alive

__all__ = ["named_failures"]

PATIENCE = 10.0  # seconds in which a process that failed has said so
BROKEN = "exchange with another process broke"


@contextmanager
def named_failures(fabric: Any) -> Iterator[None]:
    """Context in which the failure of another process becomes a `RunError` that names it.

    Args:
        fabric: devices and processes; with one process nothing happens here.
    """
    if fabric.world_size == 1:
        yield
        return
    board = _Board(fabric)
    try:
        yield
    except NotFinite as error:
        other = board.first_failure(patience=0.0, but=str(error))
        board.leave(str(error))
        if other is not None:  # what was noticed here is the consequence
            raise RunError(other) from error
        raise
    except RunError as error:
        board.leave(str(error))
        raise
    except RuntimeError as error:  # what torch.distributed raises when a process has gone
        board.write(BROKEN)
        other = board.first_failure(PATIENCE)
        board.leave(BROKEN if other is not None else f"{type(error).__name__}: {error}")
        if other is not None:
            raise RunError(other) from error
        raise
    except BaseException as error:
        board.leave(f"{type(error).__name__}: {error}")
        raise


class _Board:
    """Who takes part and how they ended, in the store of the process group."""

    def __init__(self, fabric: Any) -> None:
        self.rank, self.count = fabric.global_rank, fabric.world_size
        self.store = dist.PrefixStore(
            "hypersphere/processes", dist.distributed_c10d._get_default_store()
        )
        self.run = str(self.store.add(f"runs/{self.rank}", 1))  # several runs may share a group
        self._set("who", f"{socket.gethostname()} {os.getpid()}")
        fabric.barrier()
        self.who = [self._get("who", rank) or "" for rank in range(self.count)]

    def write(self, reason: str) -> None:
        """Say how this process ended."""
        with suppress(RuntimeError):  # the store may have gone with the first process
            self._set("end", reason or "it failed")

    def leave(self, reason: str) -> None:
        """Say how this process ended, and let the others notice at once.

        They notice when their exchange breaks, and read the reason in the store. The first process
        usually keeps the store, so it stays until they have.
        """
        self.write(reason)
        if dist.is_initialized() and dist.get_backend() == "gloo":
            dist.destroy_process_group()
        end = time.monotonic() + PATIENCE
        with suppress(RuntimeError):
            while self.rank == 0 and time.monotonic() < end:
                waiting = [r for r in range(1, self.count) if self._get("end", r) is None]
                if not any(self._is_alive(rank) for rank in waiting):
                    break
                time.sleep(0.1)

    def first_failure(self, patience: float, but: str = "") -> str | None:
        """A sentence about a process that failed by itself; None if there is none.

        A process that says the same as this one (`but`) is no cause: all failed alike.
        """
        end = time.monotonic() + patience
        while True:
            others = [rank for rank in range(self.count) if rank != self.rank]
            for rank in others:
                try:
                    reason = self._get("end", rank)
                except RuntimeError:
                    return self._sentence(0, "is gone")
                if reason not in (None, BROKEN, but):
                    return self._sentence(rank, f"ended: {reason}")
                if reason is None and not self._is_alive(rank):
                    return self._sentence(rank, "is gone")
            if time.monotonic() >= end:
                return None
            time.sleep(0.1)

    def _sentence(self, rank: int, what: str) -> str:
        host, _, pid = self.who[rank].partition(" ")
        return (
            f"process {rank} of {self.count} (pid {pid} on {host}) {what}; this one, {self.rank}, "
            f"stops too. Continue with --resume"
        )

    def _is_alive(self, rank: int) -> bool:
        host, _, pid = self.who[rank].partition(" ")
        return host != socket.gethostname() or is_alive(int(pid))

    def _set(self, key: str, value: str) -> None:
        self.store.set(f"{self.run}/{key}/{self.rank}", value)

    def _get(self, key: str, rank: int) -> str | None:
        name = f"{self.run}/{key}/{rank}"
        if not self.store.check([name]):
            return None
        self.store.wait([name], timedelta(seconds=1))
        return self.store.get(name).decode()
