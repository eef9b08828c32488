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
from pathlib import Path

HERE = Path(__file__).parent


def run_ranks(script: Path, world: int, *arguments: object, timeout: float = 150) -> list[str]:
    """`python script RANK WORLD arguments` for every rank; asserts that all end well.

    Returns what each wrote to stderr.
    """
    path = os.pathsep.join([str(HERE), *filter(None, [os.environ.get("PYTHONPATH")])])
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": path}
    started = [
        subprocess.Popen(
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
