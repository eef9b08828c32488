"""The process behind campaigns: one run after the other, each in its own memory."""

import io
import json
import os
import sys
import weakref

import pytest

from hypersphere.commands import _worker


class Circle:
    """Holds itself, as the parts of a run hold one another."""

    def __init__(self) -> None:
        self.itself = self


@pytest.fixture
def kept_streams():
    """The worker points both streams at its logs."""
    kept = [os.dup(stream) for stream in (1, 2)]
    yield
    for stream, copy in zip((1, 2), kept, strict=True):
        os.dup2(copy, stream)
        os.close(copy)


def test_a_run_leaves_nothing_for_the_next(tmp_path, monkeypatch, kept_streams):
    alive: list[weakref.ref[Circle]] = []
    seen: list[int] = []

    def run(arguments: list[str]) -> int:
        seen.append(sum(one() is not None for one in alive))
        alive.append(weakref.ref(Circle()))
        return 0

    task = json.dumps({"arguments": [], "log": str(tmp_path / "log")})
    monkeypatch.setattr(_worker, "main", run)
    monkeypatch.setattr(sys, "stdin", io.StringIO(f"{task}\n" * 3))
    monkeypatch.setattr(sys, "argv", sys.argv)
    assert _worker.work() == 0
    assert seen == [0, 0, 0]
