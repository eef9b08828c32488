"""The limits of one call: what hangs is seen, and a busy machine is no hang."""

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from reliability import calls


def _works() -> None:
    while True:
        sum(range(1000))


def _waits() -> None:
    time.sleep(60)


@pytest.mark.parametrize("hang", [_works, _waits])
def test_a_hang_is_seen(monkeypatch, hang):
    monkeypatch.setattr(calls, "HANG", 0.5)
    monkeypatch.setattr(calls, "BLOCKED", 1)
    with pytest.raises(calls.Hang, match="of the processor"), calls.limited():
        hang()


def test_being_stopped_is_no_hang():
    """As on a machine that has no time for it at all."""
    code = (
        "import time\nfrom reliability import calls\ncalls.BLOCKED = 3\n"
        "with calls.limited():\n"
        "    print('here', flush=True)\n"
        "    for _ in range(15):\n"
        "        time.sleep(0.1)\n"
        "        sum(range(2_000_000))\n"
    )
    path = os.pathsep.join([str(Path(__file__).parents[1]), os.environ.get("PYTHONPATH", "")])
    command = [sys.executable, "-c", code]
    environment = {**os.environ, "PYTHONPATH": path}
    with subprocess.Popen(command, stdout=subprocess.PIPE, env=environment) as process:
        assert process.stdout.readline() == b"here\n"
        process.send_signal(signal.SIGSTOP)
        time.sleep(6)
        process.send_signal(signal.SIGCONT)
        assert process.wait(60) == 0
