"""`torchrun --nnodes 2` as docs/training.md gives it, on two hosts with names and addresses of
their own: it trains what one process would, and a host that is lost ends the run in a sentence.
"""

import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from hosts import Hosts, missing

from hypersphere.commands import train

pytestmark = [pytest.mark.slow, pytest.mark.timeout(500)]

CONFIG = """
data: {name: digits, batch_size: 60, share: 0.4, test_share: 0.3}
model: {name: cnn3, widths: [8, 8, 8], features: 16, operator: tanh, norm: batch}
head: {name: a_softmax, m: 3, annealing: {base: 50.0, minimum: 1.0}}
regularizers: {mhe: {}}
optimizer: {name: sgd, lr: 0.01, weight_decay: 5.0e-4}
train: {steps: 8, log_every: 1, test_every: 4, checkpoint_every: 4, quiet: true}
fabric: {accelerator: cpu, silence: 15}
run: {report: false}
"""
TORCHRUN = [sys.executable, "-m", "torch.distributed.run", "--nnodes", "2", "--nproc-per-node", "1"]
TORCHRUN += ["--rdzv-backend", "c10d", "--rdzv-endpoint", "host-a:29500", "-m"]
TORCHRUN += ["hypersphere", "train", "my.yaml"]
KINDS = {
    "ddp": [],
    "fsdp": ["--fabric.strategy", "fsdp"],
    "sharded head": ["--head.sharded", "true"],
}


@pytest.fixture
def hosts(tmp_path, monkeypatch):
    reason = missing()
    if reason is not None:
        pytest.skip(reason)
    monkeypatch.chdir(tmp_path)
    (tmp_path / "my.yaml").write_text(CONFIG)
    with Hosts(tmp_path) as both:
        yield both


def losses(folder: Path) -> dict[int, float]:
    lines = [json.loads(x) for x in (folder / "metrics.jsonl").read_text().splitlines()]
    return {line["step"]: line["loss"] for line in lines if line["split"] == "train"}


def alone(folder: Path, steps: int) -> dict[int, float]:
    words = ["my.yaml", "--run.folder", str(folder), "--train.steps", str(steps)]
    assert train.main(words) == 0
    return losses(folder)


def test_two_hosts_train_what_one_process_would(hosts, tmp_path):
    for name in ("host-a", "host-b"):
        hosts.start(name, TORCHRUN)
    hosts.wait(lambda: hosts.ended("host-a") and hosts.ended("host-b"), 200, "the end")
    codes = [process.returncode for process in hosts.started.values()]
    assert codes == [0, 0], hosts.log("host-a")[-3000:] + hosts.log("host-b")[-3000:]
    assert "everything is in runs/my" in hosts.log("host-a")
    assert [path.name for path in (tmp_path / "runs").iterdir()] == ["my"]  # one folder, not two
    assert losses(tmp_path / "runs/my") == pytest.approx(alone(tmp_path / "alone", 8), rel=2e-4)


@pytest.mark.parametrize(
    ("kind", "way", "processes"),
    [("ddp", "cut", 1), ("fsdp", "killed", 1), ("sharded head", "cut", 3)],
)
def test_a_lost_host_is_named_and_others_go_on(hosts, tmp_path, kind, way, processes):
    folder = tmp_path / "runs/my"
    for name in ("host-a", "host-b"):
        hosts.start(name, [*TORCHRUN, *KINDS[kind], "--train.steps", "1000000"])
    hosts.wait((folder / "checkpoints/step-00000004").exists, 200, "a checkpoint")
    (pid_a,), (pid_b,) = hosts.workers("host-a"), hosts.workers("host-b")
    if way == "cut":
        hosts.cut("host-b")
        what = "has shown no sign of life for 15 s"
    else:
        os.kill(pid_b, signal.SIGKILL)
        what = "is gone"
    hosts.wait(lambda: not hosts.workers("host-a"), 60, "the end of the training on host-a")
    hosts.wait(lambda: not hosts.workers("host-b"), 60, "the end of the training on host-b")
    hosts.wait(lambda: hosts.ended("host-a"), 60, "the end of torchrun on host-a")
    assert hosts.started["host-a"].returncode == 1
    said = f"process 1 of 2 (pid {pid_b} on host-b) {what}"
    assert said in hosts.log("host-a") and "Continue with --resume" in hosts.log("host-a")
    if way == "cut":
        assert f"process 0 of 2 (pid {pid_a} on host-a) {what}" in hosts.log("host-b")
    assert "]: Traceback" not in hosts.log("host-a")  # of a rank; torchrun has its own

    saved = max(int(p.name[5:]) for p in (folder / "checkpoints").glob("step-*"))
    steps = saved + 5
    words = ["--resume", str(folder), "--train.steps", str(steps), "--fabric.strategy", "auto"]
    if processes > 1:
        command = [sys.executable, "-m", "hypersphere", "train", *words]
        command += ["--fabric.devices", str(processes)]
        done = subprocess.run(command, capture_output=True, text=True, timeout=200)
        assert done.returncode == 0, done.stderr[-3000:]
    else:
        assert train.main(words) == 0
    found, expected = losses(folder), alone(tmp_path / "alone", steps)
    assert list(found) == list(expected)
    early = [step for step in expected if step <= 12]
    assert [found[s] for s in early] == pytest.approx([expected[s] for s in early], rel=2e-4)
    assert found == pytest.approx(expected, rel=2e-2)  # rounding grows with the steps
    processes_then = json.loads((folder / "run.json").read_text())["processes"]
    assert processes_then == 2
