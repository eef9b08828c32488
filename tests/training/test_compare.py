"""Comparisons: many runs in processes, tuning, divergence, interruption, paired differences."""

import json
import os
import signal
import subprocess
import sys
import time

import pytest

import warm
from hypersphere import register, registry
from hypersphere.commands import _comparing, _config, compare
from hypersphere.commands._comparison import Method, table
from hypersphere.commands._files import recipe_root, variants_of
from hypersphere.commands._metrics import known_metrics, refuse_metric, usual_metric
from hypersphere.reports import markdown_table, read_result
from hypersphere.training import campaign
from hypersphere.training.campaign import Ended
from hypersphere.training.interrupt import Interrupted
from hypersphere.training.tasks import Classification

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


def pretend(monkeypatch, outcome, seen=lambda run: None):
    """Runs that end at once, as `outcome(run)` says."""

    def run_all(runs, jobs, report, known):
        for run in runs:
            report(run, outcome(run))
            seen(run)

    monkeypatch.setattr(_comparing, "run_all", run_all)


def accuracy(run):
    if "wild" in run.name:
        return Ended({}, "the loss is not finite", 1.0)
    point = {"step": 8, "loss": 1.0, "accuracy": 0.51 if "0.01" in run.name else 0.5}
    return Ended({"last": point, "best": point, "verification": {"accuracy": 0.75}}, None, 3.0)


def test_tuned_values_are_read_as_the_options_are(config, tmp_path, capsys, monkeypatch):
    """YAML takes 1e-3 for text."""
    pretend(monkeypatch, accuracy)
    command = [config, "--seeds", "0", "--folder", str(tmp_path / "runs")]
    assert compare.main([*command, "--tune", "optimizer.lr=1e-3,1E-2,.5"]) == 0
    (row,) = read_result(tmp_path / "runs/comparison.json")["rows"]
    assert [trial["values"]["optimizer.lr"] for trial in row["tuning"]] == [0.001, 0.01, 0.5]
    lines = capsys.readouterr().out.splitlines()
    head, _, line = lines[:3]
    assert head.split()[-1] == "lr" and line.split()[-1] == "0.01"  # the chosen one
    assert compare.main([*command, "--tune", "model.widths=[8,8],[4,4]", "--metric", "loss"]) == 0
    (row,) = read_result(tmp_path / "runs/comparison.json")["rows"]
    assert [trial["values"]["model.widths"] for trial in row["tuning"]] == [[8, 8], [4, 4]]


def test_the_table_is_there_while_settings_are_tuned(config, tmp_path, monkeypatch):
    place, tried = tmp_path / "runs", []

    def look(run):
        rows = json.loads((place / "comparison.json").read_text())["rows"]
        tried.append([len(row.get("tuning", [])) for row in rows])

    pretend(monkeypatch, accuracy, look)
    words = [config, f"{config}:a_softmax", "--seeds", "0", "--folder", str(place)]
    assert compare.main([*words, "--tune", "optimizer.lr=0.1,0.01"]) == 0
    assert tried == [[1, 0], [2, 0], [2, 1], [2, 2], [2, 2], [2, 2]]


def test_a_method_whose_tuning_diverges_is_a_result(config, tmp_path, capsys, monkeypatch):
    """The others go on."""
    pretend(monkeypatch, accuracy)
    words = [config, f"{config}:wild", "--seeds", "0", "1", "--folder", str(tmp_path / "runs")]
    assert compare.main([*words, "--tune", "optimizer.lr=0.1,0.01", "--baseline", "c"]) == 0
    seen = capsys.readouterr()
    (line,) = [line for line in seen.out.splitlines() if line.startswith("c-wild ")]
    assert line.split("  ")[1:] and line.count("not converged") == 2  # its value, its difference
    assert "c-wild: no run converged in tuning" in seen.err and "run 6 of 6" in seen.err
    record = read_result(tmp_path / "runs/comparison.json")
    plain, wild = record["rows"]
    assert len(plain["ours"]) == 2 and wild["ours"] == [] and wild["tuning_failed"]
    assert "| not converged |" in markdown_table(record)


def test_a_run_that_diverges_has_no_difference(config, tmp_path, capsys, monkeypatch):
    pretend(monkeypatch, accuracy)
    words = [config, f"{config}:wild", "--seeds", "0", "1", "--folder", str(tmp_path / "runs")]
    assert compare.main([*words, "--baseline", "c"]) == 0
    (line,) = [line for line in capsys.readouterr().out.splitlines() if line.startswith("c-wild ")]
    assert line.endswith("not converged") and "not converged (2)" in line


def test_the_metric_of_a_table_is_one_that_the_runs_have(config, tmp_path, capsys, monkeypatch):
    pretend(monkeypatch, accuracy)
    folder = ["--seeds", "0", "--folder", str(tmp_path / "runs")]
    recipe = CONFIG.replace("metric: accuracy", "metric: LFW accuracy")
    (tmp_path / "lfw.yaml").write_text(recipe)
    assert compare.main([str(tmp_path / "lfw.yaml"), *folder]) == 0
    seen = capsys.readouterr()
    assert "lfw has no 'LFW accuracy', the metric of its table: 'accuracy' is" in seen.err
    assert "last accuracy (%)" in seen.out
    (tmp_path / "lfw.yaml").write_text(recipe.replace("name: digits", "name: letters"))
    assert compare.main([str(tmp_path / "lfw.yaml"), *folder]) == 0
    seen = capsys.readouterr()
    assert "'verification_accuracy' is compared" in seen.err and "75.00" in seen.out


@pytest.mark.slow
def test_every_recipe_has_a_metric_that_its_runs_may_have():
    for path in sorted(recipe_root().glob("ch*/[!_]*.yaml")):
        for variant in variants_of(path):
            read = _config.read(f"{path}:{variant}")
            metric, _ = usual_metric(read, variant)
            assert metric in known_metrics(read), (path, variant)


def test_a_task_of_ones_own_may_have_any_metric(config):
    class Own(Classification):
        def test(self):
            return {"speed": 1.0}

    read = _config.read(config)
    assert known_metrics(read)[0] == "accuracy"
    read.task = "own"
    register("task", "own")(Own)
    try:
        assert known_metrics(read) is None
        refuse_metric("speed", read, "c")
    finally:
        del registry._ENTRIES["task"]["own"]


@pytest.mark.parametrize("columns", [50, 80, 120])
def test_the_table_fits_the_terminal(columns):
    """Short heads, then fewer decimals, then no best values."""
    names = ("table-2.8-m1-evidence", "table-2.8-m4-evidence")
    recipe = {"metric": "", "value": None}
    methods = [Method(name, name, recipe, chosen={"optimizer.lr": 0.01}) for name in names]
    for number, method in enumerate(methods):
        method.last = method.best = {s: 0.9 + 0.01 * s * (number + 1) for s in range(3)}
    shown = table(methods, "accuracy", methods[0], columns)
    assert ("last accuracy (%)" in shown) == (columns == 120)
    assert "lr" in shown and "0.01" in shown and "91" in shown
    if columns > 50:
        assert max(map(len, shown.splitlines())) <= columns


def test_a_folder_that_cannot_be_made(config, tmp_path, capsys):
    (tmp_path / "file").write_text("")
    words = [config, "--seeds", "0", "--folder", str(tmp_path / "file" / "runs")]
    assert compare.main(words) == 2
    seen = capsys.readouterr().err
    assert "--folder" in seen and "the folder cannot be made (not a directory)" in seen
    assert "Errno" not in seen


def test_the_same_config_twice(config, tmp_path, capsys):
    assert compare.main([config, config, "--folder", str(tmp_path / "runs")]) == 2
    assert "second config with the name" in capsys.readouterr().err


@pytest.mark.slow
def test_compare_over_seeds_resumes_what_is_there(config, tmp_path, capsys):
    command = [config, f"{config}:a_softmax", "--seeds", "0", "1"]
    command += ["--folder", str(tmp_path / "runs"), "--baseline", "c", "--jobs", "2"]
    assert compare.main(command) == 0
    seen = capsys.readouterr()
    text = seen.out
    assert "accuracy (%), mean" in text and "c-a_softmax" in text and "+-" in text and "50" in text
    assert "differences: to c" in text and text.count("[") == 1
    assert "last accuracy (%)" in (tmp_path / "runs/comparison.txt").read_text()
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
    assert compare.main([*command, "--metric", "speed"]) == 2
    assert "(known: accuracy, error, loss, top5_error)" in capsys.readouterr().err
    assert compare.main([*command, "--metric", "top5_error"]) == 0
    text = capsys.readouterr().out
    assert "top5_error (%)" in text and "12.5" in text


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


@pytest.mark.parametrize("jobs", ["1", "2"])
def test_a_killed_process_is_named(config, tmp_path, capsys, monkeypatch, jobs):
    begin = campaign._Worker.begin

    def killed(worker, run):
        begin(worker, run)
        worker.process.kill()

    monkeypatch.setattr(campaign._Worker, "begin", killed)
    command = [f"{config}:long", "--seeds", "0", "--jobs", jobs, "--folder", str(tmp_path / "a")]
    assert compare.main(command) == 1
    assert "ended by signal 9; repeat the command: finished" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--jobs", "0"], "--jobs must be a whole number in [1, 1024]; got 0"),
        (["--seeds", "x"], "--seeds must be a whole number in [0, 4294967296); got 'x'"),
        (["--baseline", "cc"], "unknown baseline 'cc'"),
        (["--tune", "optimizer.lr"], "--tune takes KEY=V1,V2,...; got 'optimizer.lr'"),
        (["--tune", "optimizer.lrr=1,2"], "did you mean 'lr'"),
        (["--tune", "nothing.lr=1,2"], "no setting 'nothing.lr' to tune"),
        (["--tune", "optimizer.lr=-1,2"], "optimizer.lr"),
        (["--tune", "optimizer.lr=[1,2"], "'[1,2' is no list of values"),
        (["--tune", "wlid:optimizer.lr=1,2"], "unknown config 'wlid' (known: c)"),
        (["--seeds", "0", "1", "0"], "--seeds names seed 0 twice"),
        (["--metric", "sped"], "unknown metric 'sped' (known: accuracy, error, loss, top5_error)"),
        (["--metric", "verification_eer"], "unknown metric 'verification_eer'"),
        (["--metric", "energy_change"], "unknown metric 'energy_change'"),
    ],
)
def test_wrong_arguments(config, tmp_path, capsys, arguments, message):
    assert compare.main([config, "--folder", str(tmp_path / "runs"), *arguments]) == 2
    assert message in capsys.readouterr().err
    assert not (tmp_path / "runs").exists()
