"""One process of test_loops: python rank_worker.py RANK WORLD KIND FOLDER"""

import importlib.util
import os
import sys
from pathlib import Path

import torch.distributed as dist
from torch import nn

import hypersphere as hs
from hypersphere.integrations import rotation_optimizer
from processes import leave


def loops():
    """The module of the tests, for its network and batches."""
    path = Path(__file__).with_name("test_loops.py")
    spec = importlib.util.spec_from_file_location("test_loops", path)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def main(rank: int, world: int, kind: str, folder: Path) -> None:
    os.environ.update(RANK=str(rank), WORLD_SIZE=str(world))
    store = f"file://{folder}/store-{kind}"
    dist.init_process_group("gloo", init_method=store, rank=rank, world_size=world)
    tests = loops()
    ogd = kind == "fsdp2_ogd"
    options = {"method": "ogd"} if ogd else {}
    model = tests.plain_network() if kind.startswith("sharded") else tests.network(**options)
    if kind == "ddp":
        wrapped = nn.parallel.DistributedDataParallel(model)
        optimizer = rotation_optimizer(wrapped, lr=0.02, weight_decay=0.1)
    else:
        from torch.distributed.device_mesh import init_device_mesh
        from torch.distributed.fsdp import fully_shard

        mesh = init_device_mesh("cpu", (world,))
    if kind.startswith("sharded"):  # the weights are spread out before anything is rotated
        wrapped = fully_shard(model, mesh=mesh)
        hs.orthogonal.rotate(wrapped, start="identity", side="input")
        if kind == "sharded_task":
            hs.orthogonal.use_task(hs.orthogonal.add_task(wrapped, "other"), "other")
        optimizer = rotation_optimizer(wrapped, lr=0.02, weight_decay=0.1)
    elif kind.startswith("fsdp2"):
        name = "ogd" if ogd else "adamw"
        optimizer = rotation_optimizer(
            model, name, lr=0.02, weight_decay=0.1, shard=lambda m: fully_shard(m, mesh=mesh)
        )
        wrapped = model
        assert all(hasattr(p, "full_tensor") for p in wrapped.parameters())
    for x, y in tests.batches(4):
        part = slice(rank * len(x) // world, (rank + 1) * len(x) // world)
        optimizer.zero_grad()
        nn.functional.cross_entropy(wrapped(x[part]), y[part]).backward()
        optimizer.step()
    hs.orthogonal.save_adapter(wrapped, folder / "adapter")
    del wrapped, optimizer
    leave()


if __name__ == "__main__":
    main(int(sys.argv[1]), int(sys.argv[2]), sys.argv[3], Path(sys.argv[4]))
