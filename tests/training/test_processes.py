"""Two processes train the model that one would: the same losses with the same global batch."""

import json
import os
import signal
import sys
import time
from contextlib import suppress
from pathlib import Path
from subprocess import STDOUT

import pytest
import torch
from small_run import run
from torch import nn

import warm
from hypersphere.training import Config, TrainConfig, synchronize
from hypersphere.training.config import DataConfig, OptimizerConfig
from hypersphere.training.run.lock import is_alive
from processes import rank_pids, run_ranks, wait_until
from tolerances import close

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
    done = warm.run(
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


NORMALIZED = """
import sys, torch
from pathlib import Path
from torch import nn
from hypersphere.training import synchronize
from processes import leave
rank, world, folder = int(sys.argv[1]), int(sys.argv[2]), Path(sys.argv[3])
place = f"file://{folder}/rendezvous"
torch.distributed.init_process_group("gloo", init_method=place, rank=rank, world_size=world)
x, grad = torch.load(folder / "batch.pt")
net = synchronize(nn.Sequential(nn.BatchNorm2d(3)))
part = x.chunk(world)[rank].clone().requires_grad_(True)
out = net(part)
out.backward(grad.chunk(world)[rank])
found = (out.detach(), part.grad, net[0].running_mean, net[0].running_var)
torch.save(found, folder / f"{rank}.pt")
leave()
"""


@pytest.mark.slow
def test_batch_norm_over_processes_is_that_of_the_joined_batch(tmp_path):
    x, grad = torch.randn(6, 3, 4, 4) * 2 + 1, torch.randn(6, 3, 4, 4)
    whole = nn.BatchNorm2d(3)
    wanted = x.clone().requires_grad_(True)
    y = whole(wanted)
    y.backward(grad)
    torch.save((x, grad), tmp_path / "batch.pt")
    (tmp_path / "run.py").write_text(NORMALIZED)
    run_ranks(tmp_path / "run.py", 2, tmp_path)
    parts = [torch.load(tmp_path / f"{rank}.pt") for rank in (0, 1)]
    torch.testing.assert_close(torch.cat([p[0] for p in parts]), y.detach())
    close(torch.cat([p[1] for p in parts]), wanted.grad, scale=10)
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


@pytest.mark.slow
@pytest.mark.parametrize(
    "way", ["killed", "killed elsewhere", "bad batch", "bad batch, told late", "lock"]
)
def test_when_one_process_ends_the_others_name_it(tmp_path, way):
    from test_fsdp import processes

    answer = processes("one_ends", tmp_path, way)
    assert answer["seconds"] < 60
    if way.startswith("killed"):
        assert answer["codes"][1] == -9 and answer["codes"][0] == 0
        assert f"process 1 of 2 (pid {answer['pids'][1]} on" in answer["said"]["0"]
        assert "is gone; this one, 0, stops too" in answer["said"]["0"]
    elif way.startswith("bad batch"):
        assert answer["said"]["1"].startswith(
            "NotFinite: the loss is not finite at step 3: the batch"
        )
        assert "process 1 of 2" in answer["said"]["0"]
        assert "ended: the loss is not finite at step 3: the batch" in answer["said"]["0"]
    else:
        assert answer["said"]["0"] == answer["said"]["1"] and "is in use" in answer["said"]["0"]


@pytest.mark.slow
def test_a_process_that_stands_still_does_not_hold_up_the_others(tmp_path):
    """As one whose machine was cut off: no connection breaks, and nothing comes."""
    from test_fsdp import processes

    answer = processes("one_ends", tmp_path, "stopped")
    assert answer["codes"][0] == 1 and answer["said"] == {}  # it was woken by nothing
    said = f"process 1 of 2 (pid {answer['pids'][1]} on"
    assert said in answer["stderr"] and "no sign of life for 10 s" in answer["stderr"]
    assert answer["seconds"] < 180  # and not the half hour after which gloo gives up


@pytest.mark.slow
def test_what_follows_training_waits_for_no_other_process(tmp_path):
    from test_fsdp import processes

    answer = processes("concludes", tmp_path)
    assert answer["codes"] == [0, 0] and (tmp_path / "run/samples.npy").exists()
    assert "one acts alone" in answer["said"] and "fabric.devices 1" in answer["said"]


@pytest.mark.slow
def test_processes_of_a_gan_draw_noise_of_their_own(tmp_path):
    from test_fsdp import processes

    answer = processes("noise", tmp_path)
    first, second = answer["drawn"]
    assert answer["codes"] == [0, 0] and first["weights"] == second["weights"]  # one GAN
    assert len(first["z"]) == len(second["z"]) == 6  # for the discriminator and the generator
    both = [tuple(z) for z in first["z"] + second["z"]]
    assert len(set(both)) == len(both)


@pytest.mark.slow
@pytest.mark.parametrize("victim", [0, 1])
@pytest.mark.parametrize("way", ["torchrun", "fabric.devices"])
def test_the_command_names_a_rank_that_was_killed(tmp_path, way, victim):
    (tmp_path / "config.yaml").write_text(CONFIG)
    command = ["hypersphere", "train", str(tmp_path / "config.yaml"), "--train.steps", "1000000"]
    command += ["--run.folder", str(tmp_path / "run")]
    launch = [*command, "--fabric.devices", "2"]
    if way == "torchrun":
        launch = ["torch.distributed.run", "--nproc-per-node", "2", "-m", *command]
    log = tmp_path / "log"
    with log.open("wb") as out:
        started = warm.Popen(
            [sys.executable, "-m", *launch],
            env={**os.environ, "OMP_NUM_THREADS": "1"},
            stdout=out,
            stderr=STDOUT,
            start_new_session=True,
        )
    try:
        wait_until((tmp_path / "run/checkpoints/step-00000005").exists, 120, log)
        ranks = rank_pids(started.pid)
        os.kill(ranks[victim], signal.SIGKILL)
        # fabric: rank 0 is the command itself, which nobody outlives but its child
        started.wait(60)
        wait_until(lambda: not any(map(is_alive, ranks.values())), 60, log)
        said = log.read_text(errors="replace")
        assert f"process {victim} of 2 (pid {ranks[victim]} on" in said, said[-3000:]
        assert f"is gone; this one, {1 - victim}, stops too. Continue with --resume" in said
        assert "]: Traceback" not in said  # of a rank
        expected = -9 if way == "fabric.devices" and victim == 0 else 1
        assert started.returncode == expected, said[-3000:]
    finally:
        with suppress(ProcessLookupError):
            os.killpg(started.pid, signal.SIGKILL)
        started.wait()


@pytest.mark.slow
@pytest.mark.parametrize(
    ("victim", "sent", "how", "expected"),
    [
        (0, signal.SIGKILL, "is gone", -9),
        (1, signal.SIGKILL, "was ended by signal 9", 1),
        (1, signal.SIGTERM, "was ended by signal 15", 143),
    ],
)
def test_a_rank_that_ends_before_the_processes_met_is_named(tmp_path, victim, sent, how, expected):
    (tmp_path / "config.yaml").write_text(CONFIG)
    command = ["hypersphere", "train", str(tmp_path / "config.yaml"), "--fabric.devices", "2"]
    log = tmp_path / "log"
    with log.open("wb") as out:
        started = warm.Popen(
            [sys.executable, "-m", *command, "--run.folder", str(tmp_path / "run")],
            env={**os.environ, "OMP_NUM_THREADS": "1"},
            stdout=out,
            stderr=STDOUT,
            start_new_session=True,
        )
    try:
        wait_until(lambda: 1 in rank_pids(started.pid), 60, log)
        ranks = rank_pids(started.pid)
        os.kill(ranks[victim], sent)
        code = started.wait(60)
        wait_until(lambda: not any(map(is_alive, ranks.values())), 60, log)
        said = log.read_text(errors="replace")
        assert f"process {victim} of 2 (pid {ranks[victim]}) {how} before the" in said, said
        assert f"this one, {1 - victim}, stops too. Start the run again" in said
        assert "Traceback" not in said
        assert code == expected
    finally:
        with suppress(ProcessLookupError):
            os.killpg(started.pid, signal.SIGKILL)
        started.wait()


@pytest.mark.parametrize("then", ["stays", "ends"])
def test_a_failed_run_ends_though_its_group_has_work_left(tmp_path, then):
    script = Path(__file__).with_name("broken_reducer.py")
    log = tmp_path / "log"
    with log.open("wb") as out:
        ranks = [
            warm.Popen(
                [sys.executable, str(script), str(rank), "2", str(tmp_path), then],
                env={**os.environ, "OMP_NUM_THREADS": "1"},
                stdout=out,
                stderr=STDOUT,
            )
            for rank in range(2)
        ]
    try:
        wait_until((tmp_path / "left").exists, 60, log)
        time.sleep(0.3)  # the interpreter ends meanwhile, or the thread waits
        ranks[1].kill()
        assert ranks[0].wait(60) == 0, log.read_text()
    finally:
        for process in ranks:
            process.kill()
            process.wait()
