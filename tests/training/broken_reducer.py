"""A process whose run fails while another one still owes it numbers, so that its process group has
work left when the reducer of DDP goes: `python broken_reducer.py RANK WORLD FOLDER ends|stays`.
"""

import contextlib
import os
import sys
import threading
import time
from pathlib import Path
from types import SimpleNamespace

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from hypersphere.training import processes

rank, world, folder = int(sys.argv[1]), int(sys.argv[2]), Path(sys.argv[3])
processes.PATIENCE = 0.2  # seconds that it stays for the others


def failing_run(tensors: list[torch.Tensor]) -> None:
    fabric = SimpleNamespace(
        world_size=world, global_rank=rank, silence=60.0, barrier=lambda: dist.barrier()
    )
    with processes.named_failures(fabric):
        network = DistributedDataParallel(nn.Linear(4, 4))
        network(torch.ones(1, 4)).sum().backward()
        if rank:  # owes the numbers until it is killed
            (folder / "waits").touch()
            time.sleep(60)
        for tensor in tensors:
            dist.all_reduce(tensor, async_op=True)
        raise KeyError("failed")


store = dist.FileStore(str(folder / "store"), world)
dist.init_process_group("gloo", store=store, rank=rank, world_size=world)
kept = [torch.ones(1000) for _ in range(20)]
with contextlib.suppress(KeyError):
    failing_run(kept)
processes.PATIENCE = 10.0  # and at its end
(folder / "left").touch()
# The other one is killed: what it owed fails, the tensors are let go, and the group ends.
if sys.argv[4] == "stays":
    letting_go = [thread for thread in threading.enumerate() if thread.name == "let-go-last"]
    for thread in letting_go:
        thread.join(30)
    os._exit(0 if letting_go and not any(thread.is_alive() for thread in letting_go) else 3)
