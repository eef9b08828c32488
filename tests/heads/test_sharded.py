"""Sharded classes in real processes over gloo; the checks are in shard_worker.py."""

import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch

import hypersphere.heads as heads

WORKER = Path(__file__).with_name("shard_worker.py")


def run(jobs, world, folder):
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    started = [
        subprocess.Popen(
            [sys.executable, str(WORKER), jobs, str(rank), str(world), str(folder)],
            stderr=subprocess.PIPE,
            text=True,
            env=environment,
        )
        for rank in range(world)
    ]
    try:
        errors = [process.communicate(timeout=150)[1] for process in started]
    finally:
        for process in started:
            process.kill()
    for rank, (process, error) in enumerate(zip(started, errors, strict=True)):
        assert process.returncode == 0, f"process {rank} of {world}:\n{error}"


@pytest.mark.slow
def test_two_processes_are_one_and_their_checkpoint_loads_on_one_and_three(tmp_path):
    run("agree,misuse,train", 2, tmp_path)
    run("resume,agree", 3, tmp_path)
    run("resume", 1, tmp_path)


def test_sharding_needs_processes():
    with pytest.raises(RuntimeError, match="init_process_group"):
        heads.shard(heads.SoftmaxHead(3, 4))


def test_a_plain_head_uses_the_same_folder(tmp_path):
    head = heads.SoftmaxHead(3, 4)
    head.annealing = heads.LambdaAnnealing()
    optimizer = torch.optim.Adam(head.parameters())
    for _ in range(2):
        head.loss(torch.randn(5, 3), torch.tensor([0, 1, 2, 3, 0])).backward()
        optimizer.step()
        head.annealing.step()
    heads.save_shards(head, tmp_path, optimizer)
    other = heads.SoftmaxHead(3, 4)
    other.annealing = heads.LambdaAnnealing()
    resumed = torch.optim.Adam(other.parameters())
    heads.load_shards(other, tmp_path, resumed)
    assert torch.equal(other.weight, head.weight) and torch.equal(other.bias, head.bias)
    assert other.annealing.value == head.annealing.value < 1000
    for key, value in optimizer.state[head.weight].items():
        assert torch.equal(resumed.state[other.weight][key], value)
    with pytest.raises(ValueError, match="num_classes=4"):
        heads.load_shards(heads.SoftmaxHead(3, 5), tmp_path)
    with pytest.raises(FileNotFoundError, match="no sharded head"):
        heads.load_shards(other, tmp_path / "elsewhere")
