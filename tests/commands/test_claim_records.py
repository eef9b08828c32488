"""The record of a claim through later commands: no seed is lost, nothing is rewritten as another.

What trains is replaced by a table of outcomes: these tests are about the file.
"""

import json
import shutil
import zlib

import pytest

from hypersphere._reading import read_sealed, sealed_text
from hypersphere.commands import _comparing, claims
from hypersphere.reports.claims import claims_folder, claims_section, interval, read_claims
from hypersphere.training.campaign import Ended
from hypersphere.training.run.lock import FolderLock

CONFIG = """
data: {name: digits, batch_size: 32, share: 0.3}
model: {name: mlp, widths: [8]}
train: {steps: 10, test_every: 10}
variants:
  margin: {head: {name: a_softmax, m: 2}}
  spare: {head: {name: a_softmax, m: 3}}
"""
CLAIM = """
claim: A-Softmax lowers the error on digits.
source: Table 2.2
protocol: The digits, eight neurons.
metric: error
seeds: 5
tune: {optimizer.lr: [0.01, 0.05]}
not_converged: 0.9
methods:
  softmax: FOLDER/c.yaml
  margin: FOLDER/c.yaml:margin
  spare: FOLDER/c.yaml:spare
comparisons:
  - {method: margin, baseline: softmax, text: -1.0}
"""
HERE = {"commit": "here", "versions": {"torch": "2"}, "hardware": {"processor": "A", "cores": 2}}
THERE = {"commit": "there", "versions": {"torch": "3"}, "hardware": {"processor": "B", "cores": 2}}


class Bench:
    """A claim in a folder, and runs that end at once."""

    def __init__(self, folder, monkeypatch):
        self.folder, self.trained, self.diverging = folder, [], ()
        self.result = folder / "results" / "small.json"
        self.claim, self.machine, self.about = CLAIM, "here", HERE
        self.config = CONFIG
        monkeypatch.setattr(_comparing, "run_all", self.run_all)
        monkeypatch.setattr("hypersphere.commands.claims.describe_run", lambda seed: self.about)

    def run_all(self, runs, jobs, report, known):
        for run in runs:
            how = known.get(run.folder)
            if how is None:
                self.trained.append(run.name)
                how = self.outcome(run.name)
                run.folder.mkdir(parents=True, exist_ok=True)
                (run.folder / "run.json").write_text(sealed_text(self.about))
            report(run, how)

    def outcome(self, name):
        """Errors of thirds and sevenths, which no four decimals hold; the best one is lower."""
        if name in self.diverging:
            return Ended({}, "the loss is not finite", 2.0)
        error = zlib.crc32(name.encode()) % 29 / 87 + (0 if "softmax" in name else 1 / 7) + 0.1
        values = {"error": error, "loss": 3 * error}
        return Ended({"last": values, "best": {"error": error / 2, "loss": 1.0}}, None, 2.0)

    def run(self, *words):
        """The record after `hypersphere claims run`, and the names of what was trained."""
        (self.folder / "c.yaml").write_text(self.config)
        (self.folder / "small.yaml").write_text(self.claim.replace("FOLDER", str(self.folder)))
        self.trained = []
        command = ["run", str(self.folder / "small.yaml"), "--results", str(self.result.parent)]
        assert claims.main([*command, "--folder", str(self.folder / self.machine), *words]) == 0
        return read_sealed(self.result), self.trained


@pytest.fixture
def bench(tmp_path, monkeypatch):
    return Bench(tmp_path, monkeypatch)


def row(record, name):
    return next(row for row in record["methods"] if row["name"] == name)


@pytest.mark.parametrize("seeds", [1, 2, 10])
def test_fewer_seeds_leave_a_shipped_record_as_it_is(tmp_path, seeds):
    file = tmp_path / "angles.json"
    shutil.copy(claims_folder() / "angles.json", file)
    before = read_sealed(file)
    words = ["--results", str(tmp_path), "--folder", str(tmp_path / "x"), "--seeds", str(seeds)]
    assert claims.main(["run", "angles", *words]) == 0
    after = read_sealed(file)
    assert after["comparisons"] == before["comparisons"]  # computed from unrounded values
    for key in ("versions", "commit", "hardware", "minutes"):
        assert after[key] == before[key], key
    old, new = before["methods"][0], after["methods"][0]
    assert {key: new[key] for key in old} == old
    assert not (tmp_path / "before").exists()


@pytest.mark.parametrize("file", sorted(claims_folder().glob("*.json")), ids=lambda f: f.stem)
def test_every_shipped_record_is_of_the_settings_of_its_claim(file, tmp_path):
    """Otherwise `claims run` would put it aside and train everything again."""
    claim = claims.read_claim(file.stem)
    test = claims.ClaimTest(claim, tmp_path, file, seeds=claim.seeds)
    seeds = {row["name"]: sorted(map(int, row["seconds"])) for row in test.file["methods"]}
    assert {name: sorted(found) for name, found in test.recorded.items()} == seeds


def test_a_claim_without_its_seeds_says_how_many_there_are(bench, capsys):
    record, _ = bench.run("--seeds", "2")
    told = capsys.readouterr().err.splitlines()[-1]
    shown = interval(record["comparisons"][0])
    assert told == f"small: unfinished (2 of 5 seeds): margin against softmax {shown}"


def test_a_tuned_value_may_be_written_as_1e_2(bench):
    """YAML takes it for text."""
    bench.claim = CLAIM.replace("[0.01, 0.05]", "[1e-2, 5e-2]")
    record, _ = bench.run("--seeds", "1")
    tried = [trial["values"] for trial in row(record, "margin")["tuning"]]
    assert tried == [{"optimizer.lr": 0.01}, {"optimizer.lr": 0.05}]


def test_fewer_seeds_and_a_stop_leave_every_run_of_the_file(bench):
    first, trained = bench.run()
    assert len(trained) == 6 + 15
    again, trained = bench.run("--seeds", "2")
    assert trained == [] and again == first
    # A method that was stopped early has its own seeds.
    del (values := row(first, "margin"))["seconds"]["4"], values["values"]["error"]["4"]
    bench.result.write_text(sealed_text(first))
    again, trained = bench.run("--seeds", "1")
    assert trained == [] and len(row(again, "margin")["seconds"]) == 4
    assert len(row(again, "softmax")["seconds"]) == 5


@pytest.mark.parametrize(
    ("part", "old", "new"),
    [
        ("claim", "[0.01, 0.05]", "[0.01, 0.1]"),
        ("config", "widths: [8]", "widths: [9]"),
        ("claim", "  spare: FOLDER/c.yaml:spare\n", ""),
    ],
)
def test_a_record_that_cannot_go_on_is_kept(bench, capsys, part, old, new):
    bench.run()
    text = bench.result.read_text()
    setattr(bench, part, getattr(bench, part).replace(old, new))
    capsys.readouterr()
    bench.run("--seeds", "1")
    kept = bench.result.parent / "before" / "small.json"
    assert kept.read_text() == text
    assert f"kept as {kept}" in capsys.readouterr().err
    bench.run("--seeds", "1")
    bench.run("--seeds", "2")
    assert list(kept.parent.iterdir()) == [kept]  # once, not at every command
    bench.config = bench.config.replace("steps: 10", "steps: 11")
    bench.run("--seeds", "1")
    assert kept.read_text() == text  # a second one has a name of its own
    assert (kept.parent / "small-2.json").exists()
    assert [record["name"] for record in read_claims(bench.result.parent)] == ["small"]


def test_a_record_names_the_commits_that_trained_its_runs(bench):
    first, _ = bench.run("--seeds", "2")
    assert first["commit"] == "here" and first["versions"] == {"torch": "2"}
    bench.about, bench.machine = THERE, "there"
    same, trained = bench.run("--seeds", "2")
    assert trained == [] and same == first
    both, trained = bench.run("--seeds", "3")
    assert len(trained) == 3
    assert both["commit"] == "here and there" and both["versions"] == {"torch": "2 and 3"}
    assert both["hardware"] == {"processor": "A and B", "cores": 2, "threads": 1}
    again, _ = bench.run("--seeds", "3")
    assert again == both
    assert "torch 2 and 3." in claims_section(again)


def test_a_run_that_diverged_stays_one(bench):
    bench.diverging = ("margin, seed 2",)
    first, _ = bench.run()
    assert row(first, "margin")["diverged"] == {"2": "the loss is not finite"}
    assert row(first, "margin")["values"]["error"]["2"] == 90.0
    again, trained = bench.run()
    assert trained == [] and again == first
    for setting, count in (("0.5", 0), ("null", 1)):
        bench.claim = CLAIM.replace("not_converged: 0.9", f"not_converged: {setting}")
        changed, trained = bench.run()
        assert trained == []
        assert changed["comparisons"][0]["not_converged"] == count
        assert row(changed, "margin")["values"]["error"]["2"] == (None if count else 50.0)
    bench.claim = CLAIM
    assert bench.run()[0] == first
    comparison = json.loads((bench.folder / "here" / "small" / "comparison.json").read_text())
    margin = next(row for row in comparison["rows"] if row["label"] == "margin")
    assert margin["last"][2] is None and margin["not_converged"] == 1
    assert margin["best"][0] == pytest.approx(margin["last"][0] / 2)


def test_a_record_of_before_the_marks_is_read(bench):
    bench.diverging = ("margin, seed 2",)
    bench.claim = CLAIM.replace("not_converged: 0.9", "not_converged: null")
    first, _ = bench.run()
    for one in first["methods"]:
        for key in ("diverged", "last", "best"):
            one.pop(key)
        one["values"] = {"error": {s: v and round(v, 4) for s, v in one["values"]["error"].items()}}
    bench.result.write_text(sealed_text(first))
    again, trained = bench.run()
    assert trained == [] and again["comparisons"] == first["comparisons"]
    assert list(row(again, "margin")["diverged"]) == ["2"]
    assert row(again, "margin")["last"] == row(again, "margin")["best"] == {}
    comparison = json.loads((bench.folder / "here" / "small" / "comparison.json").read_text())
    assert comparison["rows"][0]["best"] == [None] * 5


def test_another_tuning_metric_tunes_again(bench, capsys):
    first, _ = bench.run()
    bench.claim = CLAIM.replace("metric: error\n", "metric: error\ntune_by: loss\n")
    again, trained = bench.run()
    assert sum("optimizer.lr" in name for name in trained) == 6
    assert {trial["metric"] for one in again["methods"] for trial in one["tuning"]} == {"loss"}
    assert [one["chosen"] for one in again["methods"]] == [m["chosen"] for m in first["methods"]]
    assert len(trained) == 6  # the rates are the same ones: so are the seeds
    assert row(again, "margin")["values"] == row(first, "margin")["values"]


def test_a_method_without_a_comparison_is_not_trained_again(bench):
    first, _ = bench.run("--seeds", "2")
    assert list(row(first, "spare")["values"]) == ["error"]
    bench.machine = "there"
    assert bench.run("--seeds", "2") == (first, [])


def test_numbers_are_the_same_after_every_resumption(bench):
    whole, _ = bench.run()
    bench.result.unlink()
    for number in range(1, 6):
        bench.machine = f"machine {number}"
        record, _ = bench.run("--seeds", str(number))
    assert record == whole
    value = row(whole, "margin")["values"]["error"]["0"]
    assert value == pytest.approx(100 * bench.outcome("margin, seed 0").summary["last"]["error"])
    assert value != round(value, 4)


def test_a_metric_that_is_no_longer_asked_for_is_kept_aside(bench):
    bench.claim += "  - {method: margin, baseline: softmax, metric: loss}\n"
    before, _ = bench.run()
    assert set(row(before, "margin")["values"]) == {"error", "loss"}
    bench.claim = CLAIM
    after, trained = bench.run()
    assert set(row(after, "margin")["values"]) == {"error"} and not trained
    assert read_sealed(bench.result.parent / "before" / "small.json") == before


def test_two_at_once_on_one_record(bench, capsys):
    bench.run()
    before = bench.result.read_bytes()
    words = ["run", str(bench.folder / "small.yaml"), "--results", str(bench.result.parent)]
    with FolderLock(bench.result.parent, file="small.json"):
        assert claims.main([*words, "--seeds", "7"]) == 1
    told = capsys.readouterr().err
    assert "small.json is in use: process" in told and "--results" in told
    assert bench.result.read_bytes() == before
    assert [path.name for path in bench.result.parent.iterdir()] == ["small.json"]


def test_two_methods_of_the_same_settings_are_refused(bench, capsys):
    bench.claim = CLAIM.replace("comparisons:", "  same: FOLDER/c.yaml\ncomparisons:")
    with pytest.raises(AssertionError):
        bench.run()
    assert "softmax and same have the same settings" in capsys.readouterr().err
    assert not bench.trained and not bench.result.exists()
