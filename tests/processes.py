"""Real processes for tests: started together, ended in order.

An interpreter that goes down while a thread of gloo still wants its lock ends with SIGABRT
("terminate called without an active exception"). So a process of a test leaves by `leave`, after
the process group has been taken down, and never through the interpreter's own end.
"""

from __future__ import annotations

import gc
import os
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import warm

HERE = Path(__file__).parent


def run_ranks(script: Path, world: int, *arguments: object, timeout: float = 150) -> list[str]:
    """`python script RANK WORLD arguments` for every rank; asserts that all end well.

    Returns what each wrote to stderr.
    """
    path = os.pathsep.join([str(HERE), *filter(None, [os.environ.get("PYTHONPATH")])])
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": path}
    started = [
        warm.Popen(
            [sys.executable, str(script), str(rank), str(world), *map(str, arguments)],
            stderr=subprocess.PIPE,
            text=True,
            env=environment,
        )
        for rank in range(world)
    ]
    try:
        errors = [process.communicate(timeout=timeout)[1] for process in started]
    finally:
        for process in started:
            process.kill()
            process.wait()
    for rank, (process, error) in enumerate(zip(started, errors, strict=True)):
        assert process.returncode == 0, f"process {rank} of {world}:\n{error}"
    return errors


def leave() -> None:
    """End this process well: wait for the others, take down the process group, and go.

    Whoever calls it has let go of its DDP wrappers (`del`).
    """
    import torch.distributed as dist

    gc.collect()
    dist.barrier()
    dist.destroy_process_group()
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(0)


def rank_pids(parent: int) -> dict[int, int]:
    """The process of each rank among a process and all that it started, by rank."""
    found, waiting = {}, [parent]
    while waiting:
        pid = waiting.pop()
        try:
            waiting += map(int, Path(f"/proc/{pid}/task/{pid}/children").read_text().split())
            words = Path(f"/proc/{pid}/environ").read_bytes().split(b"\0")
        except OSError:
            continue
        values = dict(word.split(b"=", 1) for word in words if b"=" in word)
        rank = values.get(b"RANK", values.get(b"LOCAL_RANK"))  # of torchrun, of Fabric
        if rank is not None:
            found[int(rank)] = pid
        elif pid == parent:
            found[0] = pid
    return found


def wait_for_work(pid: int, seconds: float) -> None:
    """Wait until a process has had so many seconds of the processor, or has ended.

    A moment in the life of a process that is the same on a busy machine.
    """
    clock = ~pid << 3 | 2  # of that process: clock_getcpuclockid(3)
    try:
        while time.clock_gettime(clock) < seconds:
            if Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] == "Z":
                return
            time.sleep(0.002)
    except OSError:  # gone, or never there
        return


def wait_until(condition: Callable[[], object], seconds: float, log: Path) -> None:
    """Wait for a condition; an AssertionError with the end of a log if it does not come true."""
    end = time.monotonic() + seconds
    while not condition():
        if time.monotonic() > end:
            raise AssertionError(f"waited {seconds:g} s\n{log.read_text(errors='replace')[-3000:]}")
        time.sleep(0.05)
