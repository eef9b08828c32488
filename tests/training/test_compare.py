"""Comparisons: many runs in processes, tuning, divergence, interruption, paired differences."""

import json
import os
import signal
import subprocess
import sys
import time

import pytest

import warm
from hypersphere.commands import _comparing, compare
from hypersphere.reports import markdown_table, read_result
from hypersphere.training.campaign import Ended
from hypersphere.training.interrupt import Interrupted

pytestmark = pytest.mark.usefixtures("warm_workers")
CONFIG = """
data: {name: digits, batch_size: 32, share: 0.2, test_share: 0.3}
model: {name: mlp, widths: [8, 8]}
optimizer: {lr: 0.05}
train: {steps: 8, quiet: true}
thesis: {source: Table 0, row: a, metric: accuracy, value: 50.0, also: {top5_error: 12.5}}
variants:
  a_softmax: {head: {name: a_softmax, m: 2}}
  wild: {optimizer: {lr: 1.0e+18}}
  long: {train: {steps: 1000}}
"""


@pytest.fixture
def config(tmp_path):
    (tmp_path / "c.yaml").write_text(CONFIG)
    return str(tmp_path / "c.yaml")


def test_an_interrupted_comparison_gives_no_table(config, tmp_path, capsys, monkeypatch):
    def stop(*arguments):
        raise Interrupted(15)

    monkeypatch.setattr(_comparing, "run_all", stop)
    assert compare.main([config, "--seeds", "0", "--folder", str(tmp_path / "runs")]) == 143
    seen = capsys.readouterr()
    assert seen.out == "" and "the same command goes on" in seen.err


def test_the_metric_is_that_of_the_recipes(config, tmp_path, capsys, monkeypatch):
    """Else the column of the dissertation would be empty."""
    asked = []
    monkeypatch.setattr(_comparing, "run_all", lambda *arguments: asked.append(arguments))
    (tmp_path / "e.yaml").write_text(CONFIG.replace("metric: accuracy", "metric: error"))
    folder = ["--folder", str(tmp_path / "runs")]
    assert compare.main([str(tmp_path / "e.yaml"), *folder]) == 0
    text = capsys.readouterr().out
    assert "last error (%)" in text and " 50" in text and len(asked) == 2
    assert compare.main([config, str(tmp_path / "e.yaml"), *folder]) == 2
    assert "different metrics (accuracy, error): choose one" in capsys.readouterr().err


def test_the_table_is_there_after_every_run(config, tmp_path, capsys, monkeypatch):
    """An early stop leaves what was measured."""
    place, seen = tmp_path / "runs", []

    def one_by_one(runs, jobs, report, known):
        assert not (place / "comparison.json").exists()
        for number, run in enumerate(runs):
            point = {"step": 8, "loss": 1.0, "accuracy": 0.5, "error": 0.5, "top5_error": 0.1}
            report(run, Ended({"last": point, "best": point}, None, 3.0))
            rows = json.loads((place / "comparison.json").read_text())["rows"]
            seen.append([len(row["last"]) for row in rows])
            assert "accuracy" in (place / "comparison.txt").read_text()
            if number == 2:
                raise Interrupted(2)

    monkeypatch.setattr(_comparing, "run_all", one_by_one)
    words = [config, f"{config}:a_softmax", "--seeds", "0", "1", "--folder", str(place)]
    assert compare.main(words) == 130
    assert seen == [[1, 0], [1, 1], [2, 1]]
    assert "run 3 of 4" in capsys.readouterr().err


@pytest.mark.slow
def test_compare_over_seeds_resumes_what_is_there(config, tmp_path, capsys):
    command = [config, f"{config}:a_softmax", "--seeds", "0", "1"]
    command += ["--folder", str(tmp_path / "runs"), "--baseline", "c", "--jobs", "2"]
    assert compare.main(command) == 0
    seen = capsys.readouterr()
    text = seen.out
    assert "last accuracy (%)" in text and "c-a_softmax" in text and "+-" in text and "50" in text
    assert "against c" in text and text.count("[") == 1
    assert "run 4 of 4: " in seen.err and " left" in seen.err
    record = read_result(tmp_path / "runs/comparison.json")
    assert [len(row["ours"]) for row in record["rows"]] == [2, 2]
    assert record["rows"][0]["ours"][0] == pytest.approx(100 * record["rows"][0]["last"][0])
    assert record["rows"][1]["difference"]["pairs"] == 2
    assert record["rows"][1]["difference"]["verdict"] in ("holds", "open", "reversed")
    assert "(2 seeds)" in markdown_table(record) and "| 50 |" in markdown_table(record)
    # Threads and places may differ: nothing is trained again.
    assert compare.main([*command, "--train.threads", "2", "--data.root", "elsewhere"]) == 0
    assert "seed" not in capsys.readouterr().err
    assert compare.main([*command, "--optimizer.lr", "0.1"]) == 1
    assert "another config" in capsys.readouterr().err
    assert compare.main([*command, "--metric", "speed"]) == 1
    assert "it has: loss, accuracy, error, top5_error" in capsys.readouterr().err
    assert compare.main([*command, "--metric", "top5_error"]) == 0
    text = capsys.readouterr().out
    assert "last top5_error (%)" in text and "12.5" in text


@pytest.mark.slow
def test_divergence_is_a_result_and_settings_are_tuned_equally(config, tmp_path, capsys):
    command = [config, f"{config}:wild", "--seeds", "0", "--folder", str(tmp_path / "a")]
    assert compare.main([*command, "--jobs", "2", "--baseline", "c"]) == 0
    assert "not converged (1)" in capsys.readouterr().out
    record = read_result(tmp_path / "a/comparison.json")
    assert record["rows"][1]["last"] == [None] and record["rows"][1]["not_converged"] == 1
    command = [config, "--seeds", "0", "--folder", str(tmp_path / "b"), "--jobs", "2"]
    assert compare.main([*command, "--tune", "optimizer.lr=0.05,1.0e+18"]) == 0
    (row,) = read_result(tmp_path / "b/comparison.json")["rows"]
    assert row["chosen"] == {"optimizer.lr": 0.05}
    assert [trial["value"] is None for trial in row["tuning"]] == [False, True]
    tried = json.loads((tmp_path / "b/tuning/c-optimizer.lr=0.05/run.json").read_text())
    assert tried["config"]["data"]["holdout"] == 0.2


@pytest.mark.slow
def test_a_stopped_comparison_goes_on(config, tmp_path):
    folder = tmp_path / "runs"
    command = [sys.executable, "-m", "hypersphere", "compare", f"{config}:long", "--seeds", "0"]
    command += ["1", "--jobs", "2", "--folder", str(folder)]
    process = warm.Popen(command, stderr=subprocess.PIPE, text=True)
    deadline = time.monotonic() + 120
    while len(list(folder.glob("*/metrics.jsonl"))) < 2 and time.monotonic() < deadline:
        time.sleep(0.1)
    process.send_signal(signal.SIGTERM)
    _, errors = process.communicate(timeout=120)
    assert process.returncode == 143, errors
    assert errors.count("goes on") == 1 and "continue with" not in errors  # one piece of advice
    saved = [list((folder / f"c-long-seed{i}/checkpoints").glob("step-*")) for i in (0, 1)]
    assert all(saved), "every run has saved its state"
    assert compare.main(command[4:]) == 0
    assert len(json.loads((folder / "comparison.json").read_text())["rows"][0]["ours"]) == 2
    assert not [line for line in os.listdir(folder) if line.endswith(".partial")]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--jobs", "0"], "--jobs takes whole numbers from 1 on; got '0'"),
        (["--seeds", "x"], "--seeds takes whole numbers from 0 on; got 'x'"),
        (["--baseline", "cc"], "unknown baseline 'cc'"),
        (["--tune", "optimizer.lr"], "--tune takes KEY=V1,V2,...; got 'optimizer.lr'"),
        (["--tune", "optimizer.lrr=1,2"], "did you mean 'lr'"),
        (["--tune", "nothing.lr=1,2"], "no setting 'nothing.lr' to tune"),
        (["--tune", "optimizer.lr=-1,2"], "optimizer.lr"),
    ],
)
def test_wrong_arguments(config, tmp_path, capsys, arguments, message):
    assert compare.main([config, "--folder", str(tmp_path / "runs"), *arguments]) == 2
    assert message in capsys.readouterr().err
    assert not (tmp_path / "runs").exists()
