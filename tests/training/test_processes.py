"""Two processes train the model that one would: the same losses with the same global batch."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch
import torch.multiprocessing as mp
from small_run import run
from torch import nn

from hypersphere.training import Config, TrainConfig, synchronize
from hypersphere.training.config import DataConfig, OptimizerConfig

CONFIG = """
data: {name: digits, batch_size: 64}
model: {name: cnn3, widths: [8, 8, 8], features: 16, operator: tanh, norm: batch}
head: {name: a_softmax, m: 3, annealing: {base: 50.0, minimum: 1.0}}
regularizers: {mhe: {}}
hooks: {monitor: {every: 5}}
optimizer: {name: sgd, lr: 0.01, weight_decay: 5.0e-4}
train: {steps: 12, log_every: 1, test_every: 6, checkpoint_every: 5, quiet: true}
fabric: {accelerator: cpu}
run: {report: false}
"""


def curves(folder: Path) -> dict[str, list[float]]:
    lines = [json.loads(x) for x in (folder / "metrics.jsonl").read_text().splitlines()]
    found: dict[str, list[float]] = {}
    for line in lines:
        for key in ("loss", "mhe"):
            if key in line:
                found.setdefault(f"{line['split']} {key}", []).append(line[key])
        if line["split"] == "monitor":
            found.setdefault("energy", []).append(sum(line["energy"].values()))
    return found


@pytest.fixture(scope="module")
def alone(tmp_path_factory):
    folder = tmp_path_factory.mktemp("alone")
    config = Config(
        data=DataConfig(batch_size=64),
        model={"name": "cnn3", "widths": [8, 8, 8], "features": 16, "operator": "tanh"},
        head={"name": "a_softmax", "m": 3, "annealing": {"base": 50.0, "minimum": 1.0}},
        regularizers={"mhe": {}},
        hooks={"monitor": {"every": 5}},
        optimizer=OptimizerConfig(lr=0.01, weight_decay=5e-4),
        train=TrainConfig(steps=12, log_every=1, test_every=6, quiet=True),
    )
    run(config, folder)
    return curves(folder)


@pytest.mark.slow
@pytest.mark.parametrize("way", ["torchrun", "fabric.devices"])
def test_two_processes_have_the_losses_of_one(tmp_path, alone, way):
    """torchrun with the class weights of the head spread over both; Fabric's own launch without."""
    (tmp_path / "config.yaml").write_text(CONFIG)
    command = ["train", str(tmp_path / "config.yaml"), "--run.folder", str(tmp_path / "run")]
    if way == "torchrun":
        launch = [sys.executable, "-m", "torch.distributed.run", "--nproc-per-node", "2", "-m"]
        launch += ["hypersphere", *command, "--head.sharded", "true"]
    else:
        launch = [sys.executable, "-m", "hypersphere", *command, "--fabric.devices", "2"]
    done = subprocess.run(
        launch,
        env={**os.environ, "OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
        timeout=200,
    )
    assert done.returncode == 0, done.stderr[-3000:]
    both = curves(tmp_path / "run")
    assert set(both) == set(alone)
    for name, values in alone.items():
        assert both[name] == pytest.approx(values, rel=2e-4), name
    assert (tmp_path / "run/checkpoints/step-00000012/model.safetensors").exists()


def _normalized(rank, world, x, grad, results):
    os.environ.update(MASTER_ADDR="127.0.0.1", MASTER_PORT="29611")
    torch.distributed.init_process_group("gloo", rank=rank, world_size=world)
    net = synchronize(nn.Sequential(nn.BatchNorm2d(3)))
    part = x.chunk(world)[rank].clone().requires_grad_(True)
    out = net(part)
    out.backward(grad.chunk(world)[rank])
    results[rank] = (out.detach(), part.grad, net[0].running_mean, net[0].running_var)
    torch.distributed.destroy_process_group()


@pytest.mark.slow
def test_batch_norm_over_processes_is_that_of_the_joined_batch():
    x, grad = torch.randn(6, 3, 4, 4) * 2 + 1, torch.randn(6, 3, 4, 4)
    whole = nn.BatchNorm2d(3)
    wanted = x.clone().requires_grad_(True)
    y = whole(wanted)
    y.backward(grad)
    with mp.Manager() as manager:
        results = manager.dict()
        mp.spawn(_normalized, (2, x, grad, results), nprocs=2)
        parts = [results[0], results[1]]
    torch.testing.assert_close(torch.cat([p[0] for p in parts]), y.detach())
    torch.testing.assert_close(torch.cat([p[1] for p in parts]), wanted.grad, rtol=1e-4, atol=1e-5)
    torch.testing.assert_close(parts[0][2], whole.running_mean)
    torch.testing.assert_close(parts[0][3], whole.running_var)


def test_a_batch_must_divide_among_processes(tmp_path):
    from hypersphere.training.build import make_loaders

    with pytest.raises(ValueError, match="31 does not divide among 2 processes"):
        make_loaders(DataConfig(batch_size=31), 0, 0, 2)
    with pytest.raises(ValueError, match="need data.drop_last: true"):
        make_loaders(DataConfig(batch_size=32, drop_last=False), 0, 0, 2)


def test_alone_synced_batch_norm_is_batch_norm():
    x = torch.randn(4, 3, 2, 2)
    plain, synced = nn.BatchNorm2d(3), synchronize(nn.Sequential(nn.BatchNorm2d(3)))
    assert torch.equal(plain(x), synced(x))
