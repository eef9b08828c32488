"""A sweep that is interrupted or killed goes on as if it had not been."""

import contextlib
import json
import os
import re
import signal
import sqlite3
import subprocess
import sys
import time

import pytest

import warm
from hypersphere.commands import _study, sweep
from hypersphere.training.run.lock import FolderLock

CONFIG = """
data: {name: digits, batch_size: 32, share: 0.2, test_share: 0.3}
model: {name: mlp, widths: [8, 8]}
optimizer: {lr: 0.05}
train: {steps: 60, quiet: true, threads: 1}
"""
COMMAND = ["c.yaml", "--trials", "3", "--folds", "2", "--search", "optimizer.lr=1e-3:1e-1:log"]
COMMAND += ["--search", "head.name=softmax,s_softmax"]


def trials(folder):
    import optuna

    study = optuna.load_study(study_name="c", storage=f"sqlite:///{folder}/runs/sweep-c/sweep.db")
    return study.trials


def answers(folder):
    return [(t.params, t.values) for t in trials(folder) if t.state.name == "COMPLETE"]


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    """The trials of a sweep left alone."""
    folder = tmp_path_factory.mktemp("whole")
    (folder / "c.yaml").write_text(CONFIG)
    before = os.getcwd()
    os.chdir(folder)
    try:
        assert sweep.main(COMMAND) == 0
    finally:
        os.chdir(before)
    return answers(folder)


@pytest.mark.slow
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGKILL])
def test_a_stopped_sweep_goes_on_with_the_same_command(
    tmp_path, monkeypatch, capsys, whole, number
):
    (tmp_path / "c.yaml").write_text(CONFIG)
    process = warm.Popen(
        [sys.executable, "-m", "hypersphere", "sweep", *COMMAND],
        cwd=tmp_path,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    assert process.stdout.readline().startswith("trial 1 of ")
    deadline = time.monotonic() + 120  # wait until the second trial is training
    while not list(tmp_path.glob("runs/sweep-c/runs/fold-*/checkpoints")):
        assert time.monotonic() < deadline
        time.sleep(0.002)
    process.send_signal(number)
    _, err = process.communicate(timeout=120)
    kind = number != signal.SIGKILL
    assert process.returncode == (128 + number if kind else -number)
    assert ("the same command goes on" in err) is kind and "Traceback" not in err
    assert not (tmp_path / "runs/sweep-c/best.json").exists()
    done = [t for t in trials(tmp_path) if t.state.name == "COMPLETE"]
    assert 1 <= len(done) < 3

    monkeypatch.chdir(tmp_path)
    assert sweep.main(COMMAND) == 0
    text = capsys.readouterr().out
    assert f"{len(done)} of 3 trials are finished; 1 interrupted, tried again" in text
    assert answers(tmp_path) == whole
    best = json.loads((tmp_path / "runs/sweep-c/best.json").read_text())
    assert best["value"] == max(values[0] for _, values in whole)
    assert not list(tmp_path.glob("runs/sweep-c/runs/fold-*")) and not list(tmp_path.rglob(".*"))
    assert sweep.main(COMMAND) == 0  # nothing left to do
    assert "trial" not in re.sub("trials", "", capsys.readouterr().out)


def test_another_config_is_refused_and_divergence_is_an_answer(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "c.yaml").write_text(CONFIG)
    short = [*COMMAND, "--train.steps", "2", "--trials", "1"]
    assert sweep.main(short) == 0
    assert sweep.main([*short, "--optimizer.momentum", "0.5"]) == 2
    assert "made with other settings (config)" in capsys.readouterr().err
    assert sweep.main([*short, "--minimize"]) == 2
    assert "was made to maximize, not to minimize" in capsys.readouterr().err
    with FolderLock(tmp_path / "runs/sweep-c"):
        assert sweep.main(short) == 1
    assert "is in use: process" in capsys.readouterr().err
    base = sqlite3.connect(tmp_path / "runs/sweep-c/sweep.db")
    with contextlib.closing(base), base:
        base.execute("update trial_values set value = value + 0.01")
    assert sweep.main(short) == 2
    assert "trial 0 was changed after it was finished" in capsys.readouterr().err
    assert sweep.main([*short, "--trials", "many"]) == 2
    assert "--trials takes a whole number >= 1; got 'many'" in capsys.readouterr().err
    wild = ["c.yaml", "--study", "wild", "--trials", "2", "--folds", "2", "--train.steps", "40"]
    assert sweep.main([*wild, "--search", "optimizer.lr=1e29:1e30"]) == 1
    seen = capsys.readouterr()
    assert "diverged" in seen.out and "every one of 2 trials diverged" in seen.err


def test_an_owner_is_gone_only_if_its_process_is():
    process = subprocess.Popen([sys.executable, "-c", ""])
    process.wait()
    host = _study.owner().rpartition("-")[0]
    assert _study.is_gone(f"{host}-{process.pid}") and not _study.is_gone(_study.owner())
    assert not _study.is_gone(f"elsewhere-{process.pid}") and not _study.is_gone("")
