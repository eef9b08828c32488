"""Signs of life: who falls silent is named, once, and so is a store that does not answer."""

import queue
import threading

import pytest
import torch.distributed as dist

from hypersphere.training.pulse import Pulse


class Deaf:
    """A store that is there until it is cut off; then it answers nothing (or fails)."""

    def __init__(self, fails):
        self.store, self.fails = dist.HashStore(), fails
        self.cut, self.over = threading.Event(), threading.Event()

    def __getattr__(self, name):
        if self.cut.is_set():
            if self.fails:
                raise RuntimeError("connection refused")
            self.over.wait(30)
        return getattr(self.store, name)


def pair(store, told, silence=0.5):
    both = [
        Pulse(store, rank, 2, silence, lambda who, r=rank: told.put((r, who))) for rank in (0, 1)
    ]
    for pulse in both:
        pulse.start()
    for pulse in both:
        pulse.watch()
    return both


def test_nobody_is_called_silent_while_all_live():
    told = queue.Queue()
    both = pair(dist.HashStore(), told, silence=1.5)  # a busy machine may hold up a thread a little
    with pytest.raises(queue.Empty):
        told.get(timeout=4.0)
    for pulse in both:
        pulse.stop()
    assert not any(thread.is_alive() for pulse in both for thread in pulse._threads)
    shown = both[0].last(0)
    with pytest.raises(queue.Empty):  # after the end, silence is nobody's fault
        told.get(timeout=2.0)
    assert both[0].last(0) == shown


def test_who_falls_silent_is_named_by_the_one_before_it():
    told = queue.Queue()
    first, second = pair(dist.HashStore(), told)
    second.stop()
    assert told.get(timeout=10) == (0, 1)
    first.stop()


def test_once_something_failed_silence_is_not_news():
    told = queue.Queue()
    first, second = pair(dist.HashStore(), told)
    first.ask_the_store_only()
    second.stop()
    with pytest.raises(queue.Empty):
        told.get(timeout=1.5)
    first.stop()


@pytest.mark.parametrize("fails", [True, False], ids=["refuses", "says nothing"])
def test_a_store_that_is_cut_off_is_told_as_none(fails):
    told, store = queue.Queue(), Deaf(fails)
    both = pair(store, told)
    store.cut.set()
    assert {told.get(timeout=10), told.get(timeout=10)} == {(0, None), (1, None)}
    store.over.set()
    for pulse in both:
        pulse.stop()
