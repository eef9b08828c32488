"""Sharded classes in real processes over gloo; the checks are in shard_worker.py."""

from pathlib import Path

import pytest
import torch
import torch.distributed as dist

import hypersphere.heads as heads
from processes import run_ranks

WORKER = Path(__file__).with_name("shard_worker.py")


def run(jobs, world, folder, timeout=150):
    run_ranks(WORKER, world, jobs, folder, timeout=timeout)


@pytest.mark.slow
def test_two_processes_are_one_and_their_checkpoint_loads_on_one_and_three(tmp_path):
    run("agree,train", 2, tmp_path)
    run("resume,agree", 3, tmp_path)
    run("resume", 1, tmp_path)


def test_what_one_process_refuses_all_refuse(tmp_path):
    run("misuse", 2, tmp_path, timeout=60)


def test_sharding_needs_processes():
    with pytest.raises(RuntimeError, match="init_process_group"):
        heads.shard(heads.SoftmaxHead(3, 4))


@pytest.fixture
def one_process():
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    yield
    dist.destroy_process_group()


def test_one_class_on_one_process(one_process):
    head = heads.shard(heads.ArcFaceHead(3, 1))
    x = torch.randn(2, 3, requires_grad=True)
    loss = head.loss(x, torch.tensor([0, -100]))
    loss.backward()
    assert loss.item() == 0 and (x.grad == 0).all() and (head.weight.grad == 0).all()


def test_a_sharded_head_ignores_and_refuses_as_a_whole_one(one_process):
    whole = heads.ASoftmaxHead(3, 4)
    head = heads.ASoftmaxHead(3, 4)
    head.load_state_dict(whole.state_dict())
    heads.shard(head)
    x, y = torch.randn(3, 3), torch.tensor([0, 255, 3])
    torch.testing.assert_close(head(x, y, 255), whole(x, y, 255))
    for use in (head, head.loss):
        with pytest.raises(ValueError, match="label 255 .* C = 4"):
            use(x, y)
        with pytest.raises(ValueError, match="soft targets"):
            use(x, torch.rand(3, 4))


def test_a_plain_head_uses_the_same_folder(tmp_path):
    head = heads.SoftmaxHead(3, 4)
    head.annealing = heads.LambdaAnnealing()
    optimizer = torch.optim.Adam(head.parameters())
    for _ in range(2):
        head.loss(torch.randn(5, 3), torch.tensor([0, 1, 2, 3, 0])).backward()
        optimizer.step()
        head.annealing.step()
    heads.save_shards(head, tmp_path, optimizer)
    other = heads.SoftmaxHead(3, 4)  # no schedule: it comes with the rest
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
