"""Sharded classes in real processes over gloo; the checks are in shard_worker.py."""

import math
import os
from pathlib import Path

import pytest
import torch
import torch.distributed as dist

import hypersphere.heads as heads
from processes import run_ranks

WORKER = Path(__file__).with_name("shard_worker.py")


def run(jobs, world, folder):
    run_ranks(WORKER, world, jobs, folder)


@pytest.mark.slow
def test_two_processes_are_one_and_their_checkpoint_loads_on_one_and_three(tmp_path):
    run("agree,train", 2, tmp_path)
    run("resume,agree", 3, tmp_path)
    run("resume", 1, tmp_path)


def test_what_one_process_refuses_all_refuse(tmp_path):
    run("misuse", 2, tmp_path)


def test_ddp_leaves_the_rows_alone_by_itself(tmp_path):
    run("wrapped", 2, tmp_path)


def test_one_process_that_cannot_write_or_read_stops_all(tmp_path):
    run("files", 2, tmp_path)


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


def test_a_file_is_no_folder_to_save_in(tmp_path):
    file = tmp_path / "head.pt"
    file.write_text("mine")
    for path in (file, file / "head"):
        with pytest.raises(NotADirectoryError, match="expected a folder.*: name another"):
            heads.save_shards(heads.SoftmaxHead(3, 4), path)
    assert file.read_text() == "mine"


def saved(folder, weight, classes=4):
    head = heads.SoftmaxHead(3, classes)
    with torch.no_grad():
        head.weight.fill_(weight)
        head.bias.fill_(weight)
    heads.save_shards(head, folder)
    return head


@pytest.mark.parametrize("step", range(5))
def test_a_save_that_is_killed_anywhere_leaves_the_one_before(tmp_path, monkeypatch, step):
    folder = tmp_path / "head"
    saved(folder, 1.0)
    calls = []

    def killing(function):
        def call(*arguments, **options):
            calls.append(function)
            if len(calls) == step + 1:
                if function is torch.save:  # half a file
                    Path(arguments[1]).write_bytes(b"PK")
                raise KeyboardInterrupt
            return function(*arguments, **options)

        return call

    monkeypatch.setattr(torch, "save", killing(torch.save))
    monkeypatch.setattr(os, "replace", killing(os.replace))
    monkeypatch.setattr(Path, "unlink", killing(Path.unlink))
    killed = True
    try:
        saved(folder, 2.0)
        killed = False
    except KeyboardInterrupt:
        pass
    monkeypatch.undo()
    assert killed == (step < 4)
    head = heads.SoftmaxHead(3, 4)
    heads.load_shards(head, folder)
    expected = 2.0 if step >= 3 else 1.0  # after common.pt is replaced, only old files are left
    assert (head.weight == expected).all() and (head.bias == expected).all()
    saved(folder, 3.0)  # and the next save clears what the killed one left
    heads.load_shards(head, folder)
    assert (head.weight == 3).all()
    assert len(list(folder.iterdir())) == 2


def test_wrong_shards_are_refused_before_the_head_is_touched(tmp_path):
    folder = tmp_path / "head"
    saved(folder, 1.0)
    (file,) = folder.glob("classes-*.pt")
    whole = torch.load(file, weights_only=True)
    common = torch.load(folder / "common.pt", weights_only=True)

    def write(names, **changes):
        for old in folder.glob("classes-*.pt"):
            old.unlink()
        for name in names:
            first, last = (int(n) for n in name.removesuffix(".pt").split("-")[1:3])
            rows = {k: v[first:last] for k, v in whole["rows"].items()}
            torch.save({**whole, "rows": rows, **changes}, folder / name)
        torch.save({**common, "shards": names}, folder / "common.pt")

    a, b, c = "classes-0-2-5.pt", "classes-2-4-5.pt", "classes-1-4-5.pt"
    write([a, b])
    head = heads.SoftmaxHead(3, 4)
    heads.load_shards(head, folder)
    assert (head.weight == 1).all()
    cases = [
        ([a, c], {}, "overlap: expected one from class 2 on"),
        ([b], {}, "leave out classes: expected one from class 0 on"),
        ([a], {}, "a head of 2 classes"),
        ([a, b], {"num_classes": 9}, "num_classes=9"),
        ([a, b], {"rows": {"weight": torch.zeros(2, 3)}}, "of another head"),
        ([a, b], {"rows": {"weight": torch.zeros(2, 7), "bias": torch.zeros(2)}}, "another head"),
    ]
    for names, changes, message in cases:
        write(names, **changes)
        fresh = heads.SoftmaxHead(3, 4)
        before = {k: v.clone() for k, v in fresh.state_dict().items()}
        optimizer = torch.optim.SGD(fresh.parameters(), lr=0.1, momentum=0.9)
        with pytest.raises(ValueError, match=message):
            heads.load_shards(fresh, folder, optimizer)
        assert all(torch.equal(v, before[k]) for k, v in fresh.state_dict().items())
        assert not optimizer.state
    write([a, b])
    (folder / b).unlink()
    with pytest.raises(FileNotFoundError, match="lacks classes-2-4-5.pt"):
        heads.load_shards(head, folder)
    write([a, b])
    (folder / b).write_bytes(b"PK")
    with pytest.raises(ValueError, match="classes-2-4-5.pt is damaged"):
        heads.load_shards(head, folder)
    write([a, b])
    torch.save({"model": 1}, folder / b)
    with pytest.raises(ValueError, match="was not written by save_shards"):
        heads.load_shards(head, folder)
    with pytest.raises(ValueError, match="of another head"):
        write([a, b])
        heads.load_shards(heads.SSoftmaxHead(3, 4, learn_scale=True), folder)


def test_rows_that_were_changed_or_are_of_another_head_are_refused(tmp_path):
    saved(tmp_path, 1.0)
    (file,) = tmp_path.glob("classes-*.pt")
    content = torch.load(file, weights_only=True)
    content["rows"]["weight"].neg_()
    torch.save(content, file)
    head = heads.SoftmaxHead(3, 4)
    with pytest.raises(ValueError, match="was changed after it was written: its checksum differs"):
        heads.load_shards(head, tmp_path)
    with pytest.raises(ValueError, match="of another head: it is of a SoftmaxHead"):
        heads.load_shards(heads.ArcFaceHead(3, 4), tmp_path)
    saved(tmp_path, math.nan)
    with pytest.raises(ValueError, match="holds NaN or infinity in 'weight'"):
        heads.load_shards(head, tmp_path)
    with pytest.raises(TypeError, match="got a HingeHead: save its state_dict"):
        heads.save_shards(heads.HingeHead(3, 4), tmp_path)


def test_folders_of_earlier_versions_load(tmp_path):
    saved(tmp_path, 1.0)
    (file,) = tmp_path.glob("classes-*.pt")
    file.rename(tmp_path / "classes-000000000-000000004.pt")
    common = torch.load(tmp_path / "common.pt", weights_only=True)
    for key in ("shards", "checksums", "head"):
        del common[key]
    torch.save(common, tmp_path / "common.pt")
    head = heads.SoftmaxHead(3, 4)
    heads.load_shards(head, tmp_path)
    assert (head.weight == 1).all()
    (tmp_path / "classes-abc.pt").write_bytes(b"")
    with pytest.raises(ValueError, match="classes-abc.pt is no file of this folder"):
        heads.load_shards(head, tmp_path)
