"""Claims: declarations that can be run, verdicts by rule, a page that agrees with its files."""

import itertools
import json
import shutil
import sys
from pathlib import Path

import pytest

import warm
from hypersphere.commands import claims
from hypersphere.commands._claims import (
    Claim,
    Contrast,
    MethodSpec,
    claim_names,
    compared,
    read_claim,
)
from hypersphere.commands._files import load_file
from hypersphere.commands._yaml import ConfigError
from hypersphere.reports.claims import (
    claims_folder,
    claims_section,
    claims_table,
    interval,
    mean_text,
    read_claims,
    terminal_table,
    verdict_counts,
)
from hypersphere.reports.figures import claim_dots
from hypersphere.training.campaign import Ended

ROOT = Path(__file__).resolve().parents[2]
pytestmark = pytest.mark.usefixtures("warm_workers")
RECORDS = read_claims(claims_folder())

SMALL = """
claim: A-Softmax lowers the error on digits.
source: Table 2.2
protocol: The digits, eight neurons.
metric: error
seeds: 3
tune: {optimizer.lr: [0.01, 0.05]}
not_converged: 0.9
methods:
  softmax: FOLDER/c.yaml
  margin: {recipe: "FOLDER/c.yaml:margin", options: {train.steps: 12}}
  wild: FOLDER/c.yaml:wild
comparisons:
  - {method: margin, baseline: softmax, text: -1.0}
  - {label: chance, claimed: higher, terms: {wild: 1, softmax: -1}}
  - {label: energy, metric: energy_change, terms: {softmax: 1}}
"""
CONFIG = """
data: {name: digits, batch_size: 32, share: 0.3}
model: {name: mlp, widths: [8]}
hooks: {monitor: {every: 10}}
train: {steps: 10, test_every: 10}
variants:
  margin: {head: {name: a_softmax, m: 2}}
  wild: {init: {distribution: normal, std: 1.0e+30}}
"""


def ended(value, other=None):
    return Ended({"last": {"step": 1, "error": value, **({"loss": other} if other else {})}})


def claim(**changes):
    terms = [Contrast("a against b", {"a": 1.0, "b": -1.0}, "error", "lower", -2.0)]
    settings = {"comparisons": terms, "metric": "error", "seeds": 3, **changes}
    return Claim("x", "a beats b.", "Table 1.1", "none", {}, **settings)


@pytest.mark.parametrize(
    ("differences", "verdict"),
    [
        ((-0.010, -0.012, -0.011), "holds"),
        ((0.010, 0.012, 0.011), "reversed"),
        ((-0.010, 0.012, 0.001), "open"),
        ((-0.010, -0.012), "unfinished"),
    ],
)
def test_the_verdict_follows_the_interval(differences, verdict):
    runs = {("b", s): ended(0.2 + 0.01 * s) for s in range(3)}
    runs |= {("a", s): ended(0.2 + 0.01 * s + d) for s, d in enumerate(differences)}
    found = compared(claim(), claim().comparisons[0], runs)
    assert found["verdict"] == verdict
    mean = 100 * sum(differences) / len(differences)
    assert found["mean"] == pytest.approx(mean, abs=1e-3)
    assert found["share_of_text"] == pytest.approx(mean / -2.0, abs=1e-3)
    assert len(found["values"]) == len(differences)


def test_a_run_that_diverges_is_left_out_or_counts_as_chance():
    runs = {("b", s): ended(0.2 + 0.001 * s) for s in range(3)}
    runs |= {("a", s): ended(0.1) for s in range(2)} | {("a", 2): Ended({}, "not finite")}
    without = compared(claim(), claim().comparisons[0], runs)
    assert without["not_converged"] == 1 and list(without["values"]) == ["0", "1"]
    chance = claim(not_converged=0.9)
    counted = compared(chance, chance.comparisons[0], runs)
    assert counted["not_converged"] == 0 and counted["values"]["2"] == pytest.approx(69.8)


def test_terms_may_name_another_metric_of_the_same_runs():
    contrast = Contrast("loss against error", {"a/loss": 1.0, "a/error": -1.0}, "loss", "lower")
    runs = {("a", s): ended(0.5, 0.1 + 0.01 * s) for s in range(3)}
    found = compared(claim(), contrast, runs)
    assert found["verdict"] == "holds" and found["values"]["0"] == pytest.approx(-0.4)


@pytest.mark.parametrize("name", claim_names())
def test_every_claim_is_equally_tuned_and_seeded(name):
    read = read_claim(name)
    assert read.seeds >= 5
    assert all(len(values) == 3 for values in read.tune.values())
    for values in read.tune.values():  # a factor 3 apart
        ratios = [b / a for a, b in itertools.pairwise(values)]
        assert ratios == pytest.approx([3.16, 3.16], rel=0.06)
    text = (ROOT / "recipes" / "claims" / f"{name}.yaml").read_text()
    assert text.startswith(f"# hypersphere claims run {name}\n")


@pytest.mark.slow
def test_the_configs_of_every_claim_are_read(tmp_path):
    for name in claim_names():
        test = claims.ClaimTest(read_claim(name), tmp_path / name, tmp_path / f"{name}.json")
        assert len(test.configs) == len(test.methods)


def test_wrong_claims_are_refused(tmp_path):
    with pytest.raises(ConfigError, match="did you mean 'opt-mlp'"):
        read_claim("opt-mpl")
    good = SMALL.replace("FOLDER", str(tmp_path))
    for old, new, message in [
        ("seeds: 3", "sead: 3", "unknown key of a claim 'sead'"),
        ("metric: error\n", "", "a claim needs 'metric'"),
        ("method: margin", "method: margine", "did you mean 'margin'"),
    ]:
        (tmp_path / "x.yaml").write_text(good.replace(old, new, 1))
        with pytest.raises(ConfigError, match=message):
            read_claim(tmp_path / "x.yaml")


def test_the_command_line(capsys):
    assert claims.main(["walk"]) == 2 and "unknown claim 'walk'" in capsys.readouterr().err
    for words in (["--result", "x"], ["run", "angles", "--result", "x"]):
        assert claims.main(words) == 2 and "did you mean '--results'?" in capsys.readouterr().err
    assert claims.main(["run", "angles", "--seed", "1"]) == 2
    assert "did you mean '--seeds'?" in capsys.readouterr().err
    assert claims.main(["run", "angles", "--seeds"]) == 2
    assert "--seeds needs a value" in capsys.readouterr().err
    assert claims.main(["run", "--jobs", "no"]) == 2 and "--jobs" in capsys.readouterr().err
    assert claims.main(["--help"]) == 0 and "usage" in capsys.readouterr().out
    assert claims.main(["--results", "nowhere"]) == 1 and "nowhere" in capsys.readouterr().err
    assert claims.main([]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert max(map(len, lines)) <= 80
    for record in RECORDS:
        first = record["comparisons"][0]
        (line,) = [line for line in lines if line.startswith(f"{record['name']} ")]
        assert first["verdict"] in line and f"{first['mean']:+.2f}"[:4] in line
        there = len(first["values"]) + first["not_converged"]
        seeds = str(there) if there == record["seeds"] else f"{there} of {record['seeds']}"
        assert line.endswith(f"  {seeds}")


def test_the_table_names_what_was_not_run(tmp_path, capsys):
    shutil.copy(claims_folder() / "angles.json", tmp_path)
    assert claims.main(["--results", str(tmp_path)]) == 0
    told = " ".join(capsys.readouterr().out.partition("Claims without a record yet: ")[2].split())
    assert told == ", ".join(name for name in claim_names() if name != "angles") + "."


def test_single_claims_are_shown_with_all_their_comparisons(tmp_path, capsys):
    names = ["open-set-depth", "angles"]
    assert claims.main(names) == 0
    text = capsys.readouterr().out
    assert max(map(len, text.splitlines())) <= 80
    words = " ".join(text.split())
    for name in names:
        record = next(r for r in RECORDS if r["name"] == name)
        assert record["claim"] in words and record["found"] in words and record["command"] in words
        for one in record["comparisons"]:
            assert interval(one) in words and one["verdict"] in words
    shutil.copy(claims_folder() / "angles.json", tmp_path)
    assert claims.main(["angles", "margin", "--results", str(tmp_path)]) == 1
    seen = capsys.readouterr()
    assert "Angles alone" in seen.out and "margin has no record" in seen.err


def test_a_damaged_file_hides_no_other(tmp_path, capsys):
    shutil.copy(claims_folder() / "angles.json", tmp_path)
    (tmp_path / "margin.json").write_text("{")
    (tmp_path / "mhe.json").write_text('{"name": "mhe"}')
    assert claims.main(["--results", str(tmp_path)]) == 1
    seen = capsys.readouterr()
    assert "Angles alone" in seen.out
    assert "margin.json is damaged" in seen.err and "mhe.json is no result" in seen.err
    assert seen.err.count("delete it or name another folder (--results)") == 2
    words = ["run", "margin", "--results", str(tmp_path), "--folder", str(tmp_path / "runs")]
    for text in ("{", '{"methods": [{"name": "softmax"}]}', '{"methods": 3}'):
        (tmp_path / "margin.json").write_text(text)
        assert claims.main(words) == 1
        told = capsys.readouterr().err
        assert "margin.json is damaged" in told and "delete it or name another folder" in told
        assert (tmp_path / "margin.json").read_text() == text


@pytest.mark.parametrize("flag", ["--results", "--folder"])
def test_a_folder_that_cannot_be_made(tmp_path, capsys, flag):
    (tmp_path / "file").write_text("")
    places = {"--results": str(tmp_path / "results"), "--folder": str(tmp_path / "runs")}
    places[flag] = str(tmp_path / "file" / "x")
    words = [word for pair in places.items() for word in pair]
    assert claims.main(["run", "angles", "--seeds", "1", *words]) == 2
    told = capsys.readouterr().err
    assert f"{flag} {places[flag]}" in told and "cannot be made (not a directory)" in told
    assert "Errno" not in told


def test_page_and_files_agree():
    page = (ROOT / "docs" / "results.md").read_text()
    assert claims_table(RECORDS) in page
    for record in RECORDS:
        assert claims_section(record) in page
        assert (ROOT / "docs" / "figures" / "claims" / f"{record['name']}.svg").exists()
    check = [sys.executable, str(ROOT / "docs" / "generate.py"), "--check"]
    result = warm.run(check, capture_output=True, text=True)
    assert result.returncode == 0, result.stdout
    counts = verdict_counts(RECORDS)
    assert f"{counts['holds']} hold" in (ROOT / "README.md").read_text()


@pytest.mark.parametrize("record", RECORDS, ids=lambda record: record["name"])
def test_a_record_says_all_that_is_needed_to_repeat_it(record):
    assert {"config", "changes", "versions", "hardware", "commit", "minutes"} <= set(record)
    assert record["command"] == f"hypersphere claims run {record['name']}"
    assert record["hardware"]["threads"] == 1
    for one in record["comparisons"]:
        if one["verdict"] != "unfinished":
            assert 5 <= len(one["values"]) + one["not_converged"] <= record["seeds"]
            inside = one["low"] <= 0 <= one["high"]
            assert (one["verdict"] == "open") == inside
    read = read_claim(record["name"])
    assert list(read.methods) == [row["name"] for row in record["methods"]]
    assert [one.label for one in read.comparisons] == [c["label"] for c in record["comparisons"]]
    # The page shows the record: its words and grid are those of the file that repeats it.
    assert record["tune"] == {key: list(values) for key, values in read.tune.items()}
    for key in ("claim", "source", "protocol", "found"):
        assert record[key] == " ".join(getattr(read, key).split())


def test_a_picture_has_a_dot_per_seed():
    record = RECORDS[0]
    axes = claim_dots(record).axes[0]
    dots = [line for line in axes.lines if line.get_marker() == "o"]
    assert [len(line.get_xdata()) for line in dots] == [
        len(one["values"]) for one in record["comparisons"]
    ]


def test_a_picture_of_several_metrics_names_each_beside_its_row():
    for record in RECORDS:
        axes = claim_dots(record).axes[0]
        names = [one["metric"].replace("_", " ") for one in record["comparisons"]]
        if len(set(names)) == 1:
            assert names[0] in axes.get_xlabel()
            continue
        assert not any(name in axes.get_xlabel() for name in names)
        for label, name in zip(axes.get_yticklabels(), names, strict=True):
            assert name in label.get_text().replace("\n", " ")


def test_means_have_two_digits_of_their_deviation():
    assert mean_text([0.0411, 0.0431]) == "0.0421 ± 0.0014"
    assert mean_text([-0.0011, -0.0014]) == "-0.00125 ± 0.00021"
    assert mean_text([91.2, 92.9]) == "92.05 ± 1.20"
    assert mean_text([0.5]) == "0.50" and mean_text([0.0, 0.0]) == "0.00 ± 0.00"


def test_a_variant_may_change_a_later_one(tmp_path):
    (tmp_path / "c.yaml").write_text(
        "model: {name: cnn9}\nvariants:\n"
        "  wide: {model: {name: cnn3}, variants: {small: {model: {widths: [8, 8, 8]}}}}\n"
        "  small: {model: {widths: [2, 2, 2]}}\n"
    )
    assert load_file(tmp_path / "c.yaml", ["small"])["model"]["widths"] == [2, 2, 2]
    both = load_file(tmp_path / "c.yaml", ["wide", "small"])
    assert both["model"] == {"name": "cnn3", "widths": [8, 8, 8]} and "variants" not in both


def test_widths_differ_in_the_small_variants_of_the_width_tables():
    for table in ("ch5/table-5.2", "ch6/table-6.4"):
        seen = set()
        for t in (1, 2, 4, 8, 16):
            settings = load_file(ROOT / f"recipes/{table}.yaml", [f"t{t}_mhe", "cpu"])
            assert settings["model"]["widths"] == [4 * t, 8 * t, 16 * t]
            seen.add(tuple(settings["model"]["widths"]))
        assert len(seen) == 5


@pytest.mark.slow
def test_a_claim_is_run_and_goes_on(tmp_path, capsys):
    (tmp_path / "c.yaml").write_text(CONFIG)
    (tmp_path / "small.yaml").write_text(SMALL.replace("FOLDER", str(tmp_path)))
    command = ["run", str(tmp_path / "small.yaml"), "--folder", str(tmp_path / "runs")]
    command += ["--results", str(tmp_path / "results")]
    assert claims.main(command) == 0
    seen = capsys.readouterr().err
    assert "run 15 of 15" in seen
    record = json.loads((tmp_path / "results" / "small.json").read_text())
    first, second, third = record["comparisons"]
    assert first["verdict"] in ("holds", "open", "reversed") and len(first["values"]) == 3
    assert second["verdict"] == "holds"  # what diverges is at chance
    assert third["metric"] == "energy_change" and len(third["values"]) == 3
    margin = record["methods"][1]
    assert len(margin["tuning"]) == 2 and margin["chosen"]["optimizer.lr"] in (0.01, 0.05)
    assert record["changes"]["margin"]["train"] == {"steps": 12}
    assert "A-Softmax lowers" in terminal_table([record])
    assert claims.main(command) == 0
    assert "run " not in capsys.readouterr().err.replace("run_", "")  # nothing is trained again
    assert json.loads((tmp_path / "results" / "small.json").read_text()) == record


@pytest.mark.slow
def test_a_claim_goes_on_from_its_record_on_another_machine(tmp_path, capsys):
    """The runs of the record are not trained again, though their folders are elsewhere."""
    (tmp_path / "c.yaml").write_text(CONFIG)
    (tmp_path / "small.yaml").write_text(SMALL.replace("FOLDER", str(tmp_path)))
    command = ["run", str(tmp_path / "small.yaml"), "--results", str(tmp_path / "results")]
    assert claims.main([*command, "--folder", str(tmp_path / "here"), "--seeds", "2"]) == 0
    before = json.loads((tmp_path / "results" / "small.json").read_text())
    capsys.readouterr()
    assert claims.main([*command, "--folder", str(tmp_path / "there")]) == 0
    trained = [line for line in capsys.readouterr().err.splitlines() if line.startswith("run ")]
    assert len(trained) == 3 and all("seed 2" in line for line in trained)
    after = json.loads((tmp_path / "results" / "small.json").read_text())
    for old, new in zip(before["methods"], after["methods"], strict=True):
        assert new["chosen"] == old["chosen"] and new["tuning"] == old["tuning"]
        for metric, values in old["values"].items():
            assert values.items() <= new["values"][metric].items()
    assert after["minutes"] >= before["minutes"]
    # Other settings are another test: nothing is taken over.
    (tmp_path / "c.yaml").write_text(CONFIG.replace("widths: [8]", "widths: [9]"))
    assert claims.main([*command, "--folder", str(tmp_path / "there"), "--seeds", "1"]) == 0
    trained = [line for line in capsys.readouterr().err.splitlines() if line.startswith("run ")]
    assert len(trained) == 9


@pytest.mark.slow
def test_a_short_claim_run_again_lands_in_its_interval(tmp_path):
    """The letters need no download: softmax and A-Softmax, two of the seeds, the chosen rates."""
    name = "open-set-margin"
    record = next(r for r in RECORDS if r["name"] == name)
    read = read_claim(name)
    chosen = {row["name"]: row["chosen"] for row in record["methods"]}
    methods = {
        label: MethodSpec(method.recipe, {**method.options, **chosen[label]})
        for label, method in read.methods.items()
    }
    settings = {**vars(read), "methods": methods, "tune": {}, "seeds": 2}
    again = claims.ClaimTest(Claim(**settings), tmp_path / name, tmp_path / "x.json", 1, seeds=2)
    again.run()
    first, before = again.record()["comparisons"][0], record["comparisons"][0]
    spread = max(before["values"].values()) - min(before["values"].values())
    assert before["low"] - spread / 2 <= first["mean"] <= before["high"] + spread / 2
    for seed, value in first["values"].items():
        # The same seed on the same arithmetic; another CPU may round, hence diverge, a little.
        assert value == pytest.approx(before["values"][seed], abs=2.0)
