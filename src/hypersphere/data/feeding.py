"""Batches on their way: decoded by other processes, copied to a graphics card ahead of time."""

from __future__ import annotations

import multiprocessing
import multiprocessing.connection
import os
import pickle
import signal
import threading
from collections import deque
from collections.abc import Callable, Iterator
from concurrent.futures import Executor, Future, ProcessPoolExecutor
from typing import Any, TypeVar

import torch
from torch import Tensor

__all__ = ["Decoders", "copied_ahead", "decode", "in_order"]

T = TypeVar("T")


def in_order(
    pool: Executor, work: Callable[..., T], arguments: Iterator[tuple[Any, ...]], ahead: int
) -> Iterator[T]:
    """Results of `work` in the order of its arguments, the next `ahead` of them under way.

    Args:
        pool: where the work is done.
        work: a function.
        arguments: its arguments, a tuple for each call.
        ahead: calls under way beside the one that is waited for.

    Returns:
        Iterator over the results.
    """
    waiting: deque[Future[T]] = deque()
    try:
        for values in arguments:
            waiting.append(pool.submit(work, *values))
            if len(waiting) > ahead:
                yield waiting.popleft().result()
        while waiting:
            yield waiting.popleft().result()
    finally:  # an epoch left early does not decode what nobody will see
        for future in waiting:
            future.cancel()


class Decoders:
    """Processes that take samples out of a data set, which they hold a copy of.

    Decoding a picture is work for a processor and holds Python's lock for part of it: threads
    share one core's worth of that, processes do not.

    Args:
        dataset: the samples; it is sent to each process once.
        count: number of processes.

    Raises:
        ValueError: if the data set cannot be sent to another process.
    """

    def __init__(self, dataset: Any, count: int) -> None:
        try:
            packed = pickle.dumps(dataset)
        except Exception as error:  # whatever a user's own class does when it is pickled
            raise ValueError(
                f"data.workers={count} needs a data set that can be sent to other processes; "
                f"{type(dataset).__name__} cannot be pickled ({error}). Use data.workers 0"
            ) from None
        # Spawned, as threads and a graphics card do not survive a fork.
        self.pool = ProcessPoolExecutor(
            count, multiprocessing.get_context("spawn"), _receive, (packed,)
        )

    def close(self) -> None:
        """End the processes."""
        self.pool.shutdown(wait=False, cancel_futures=True)


_dataset: Any = None


def _receive(packed: bytes) -> None:
    """In a process of `Decoders`: keep the data set, and leave the other cores to the others."""
    global _dataset
    torch.set_num_threads(1)
    # Ctrl-C and `timeout` signal the whole group; the trainer still wants batches then, to finish
    # its step and save. Decoders end when it closes them, or with it.
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, signal.SIG_IGN)
    threading.Thread(target=_end_with_parent, daemon=True).start()
    _dataset = pickle.loads(packed)


def _end_with_parent() -> None:
    parent = multiprocessing.parent_process()
    if parent is not None:
        multiprocessing.connection.wait([parent.sentinel])
        os._exit(1)


def decode(index: Any) -> Any:
    """In a process of `Decoders`: take samples out of its data set.

    Args:
        index: their indices, an array.

    Returns:
        The samples as an array, which needs no shared memory to travel.
    """
    return _dataset.take(torch.from_numpy(index)).numpy()


def copied_ahead(
    batches: Iterator[tuple[Tensor, ...]], device: torch.device
) -> Iterator[tuple[Tensor, ...]]:
    """Batches on a graphics card, each copied while the one before is computed with.

    Only memory that cannot be swapped out is copied without the processor, so each batch is pinned
    first; the copies have a stream of their own.

    Args:
        batches: batches in the memory of the host.
        device: a graphics card.

    Returns:
        Iterator over the same batches on the device.
    """
    stream = torch.cuda.Stream(device)
    waiting: tuple[tuple[Tensor, ...], Any] | None = None
    for batch in batches:
        with torch.cuda.stream(stream):
            moved = tuple(value.pin_memory().to(device, non_blocking=True) for value in batch)
            copied = stream.record_event()
        if waiting is not None:
            yield _arrived(*waiting)
        waiting = moved, copied
    if waiting is not None:
        yield _arrived(*waiting)


def _arrived(batch: tuple[Tensor, ...], copied: Any) -> tuple[Tensor, ...]:
    """The batch for the stream that computes: it waits for this copy, the host does not."""
    # For the event and not for the stream, on which the next copy is under way already.
    current = torch.cuda.current_stream(batch[0].device)
    current.wait_event(copied)
    for value in batch:
        value.record_stream(current)
    return batch
