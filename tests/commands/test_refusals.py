"""Numbers and names that no command can use: a sentence and an exit code, and nothing written."""

import json
import os
import re
import shutil
from pathlib import Path
from typing import Annotated

import numpy as np
import pytest
import torch

from hypersphere import cli
from hypersphere.evaluation import save_tensors
from hypersphere.training import RunFolder

CONFIG = """\
data: {name: digits, batch_size: 16, share: 0.1, test_share: 0.2}
model: {name: mlp, widths: [4], features: 4}
train: {steps: 1, quiet: true}
run: {report: false}
"""


@pytest.fixture(scope="module")
def world(tmp_path_factory):
    """A run, features of twelve classes, and a config."""
    from hypersphere.commands._yaml import parse_yaml
    from hypersphere.training import Config, make_fabric, train

    place = tmp_path_factory.mktemp("world")
    (place / "a.yaml").write_text(CONFIG)
    config = Config.from_dict(parse_yaml(CONFIG, place / "a.yaml"))
    train(config, place / "run", config_text=CONFIG, fabric=make_fabric(accelerator="cpu"))
    labels = torch.arange(12).repeat_interleave(22)
    arrays = {"features": torch.randn(264, 8), "labels": labels, "logits": torch.randn(264, 12)}
    save_tensors(place / "f.safetensors", arrays)
    np.savez(place / "p.npz", features=np.eye(3, dtype=np.float32), names=np.array(list("abc")))
    for name in ("cat", "dog"):
        from PIL import Image

        (place / "pics" / name).mkdir(parents=True)
        Image.new("L", (8, 8)).save(place / "pics" / name / "1.png")
    return place


def call(words, capsys):
    try:
        code = cli.main(words.split() if isinstance(words, str) else words)
    except SystemExit as stop:  # of argparse
        code = stop.code
    return code, capsys.readouterr().err


FEATURES = "--features f.safetensors"
REFUSED = {
    "evaluate classification run --limit -5": "--limit: expected a whole number >= 1; got -5",
    "evaluate geometry run --limit 0": "--limit: expected a whole number >= 1; got 0",
    "evaluate classification run --no-cache --batch-size 0": "--batch-size: expected a whole",
    "evaluate classification run --images pics": "2 of the classes of these samples are none",
    "evaluate robustness run --images pics": "(cat, dog): name them as in the run",
    f"evaluate fewshot {FEATURES} --shot -1": "--shot: expected a whole number >= 1",
    f"evaluate fewshot {FEATURES} --queries 0": "--queries: expected a whole number >= 1",
    f"evaluate classification {FEATURES} --top 0": "--top: expected a whole number >= 1",
    f"evaluate classification {FEATURES} --top 100": "k from 1 to the 12 classes; got 100",
    f"evaluate retrieval {FEATURES} --ks x": "expected a whole number >= 1; got 'x'",
    "points 100000000000": "take 2,400 GB",
    "points 10 --dim 1000000000": "ask for fewer",
    "points 0": "expected a whole number >= 1; got 0",
    "gallery enroll run --features p.npz": "run is a run folder",
    "gallery enroll g --features p.npz --threshold 2": "expected a number in [-1, 1]; got 2.0",
    "gallery identify g --features p.npz --threshold -5": "expected a number in [-1, 1]",
    "compare a.yaml --run.folder foo": "--folder FOLDER",
    "sweep a.yaml --search optimizer.lr=0.1:0.2 --trials 0": "--trials takes a whole number >= 1",
    "sweep a.yaml --search optimizer.lr=0.1:0.2 --folds 1": "--folds takes a whole number >= 2",
    "report run --watch --every nan": "--every: expected a number > 0; got nan",
    **{
        f"sweep a.yaml --trials 1 --folds 2 --search {space}": message
        for space, message in {
            "optimizer.lr=0.1:inf": "'0.1:inf' is no space: give finite numbers, the lower first",
            "optimizer.lr=nan:1.0": "give finite numbers",
            "optimizer.lr=0.2:0.1": "the lower first",
            "optimizer.lr=0:1:log": "> 0 on a logarithmic scale",
            "optimizer.lr=0.1:x": "give low:high, low:high:log, or a,b,c",
            "optimizer.momentum=0.1:5": "optimizer.momentum must be a number in [0, 1); got 5",
            "optimizer.momentum=0.1,5": "optimizer.momentum must be a number in [0, 1); got 5",
            "optimizer.name=sgd,foo": "unknown optimizer.name 'foo'",
            "model.name=mlp,cnn99": "unknown model 'cnn99'",
            "model.features=4:100000000000000000000": "give finite numbers",
            "optimizer.lr=0.1:0.2 --study ../../x": "--study must be a name inside its folder",
            "optimizer.lr=0.1:0.2 --study /x": "with no '..' and no '/' in front",
        }.items()
    },
    "compare a.yaml --holdout 0.1": "--holdout is what tuning holds out of the training samples",
    "train a.yaml --optimizer.lr 1e39": "optimizer.lr must be a number in [0, 1e+30]; got 1e+39",
    "train a.yaml --optimizer.weight_decay 1e39": "weight_decay must be a number in [0, 1e+06]",
    "train a.yaml --fabric.devices 0": "fabric.devices must be auto, a number of processes >= 1",
    "train a.yaml --init.std 0.5": "init.std is of init.distribution normal",
    "compare a.yaml --tune optimizer.lr=1,2 --holdout 5": "--holdout must be a number in [0.01, 1)",
    "evaluate robustness run --attacks fgsm --steps 5": "--steps is of BIM and PGD, and --attacks",
    "evaluate robustness run --attacks none --step 1": "--step is of BIM and PGD, and --attacks",
    f"evaluate retrieval {FEATURES} --ks 1 264": "--ks: expected whole numbers in [1, 263]",
    f"evaluate identification {FEATURES} --ranks 1000000000000": "--ranks: expected whole numbers",
    "export run --far nan": "--far: expected a number in (0, 1); got nan",
    f"evaluate threshold {FEATURES} --far 0.1 1": "--far: expected a number in (0, 1); got 1",
    "align pics out --limit nan": "--limit: expected a number in [0, 1]; got nan",
    "report run -o page.txt": "expected a file that ends in .html; got page.txt",
    "points 4 --out p.xyz": "expected a file that ends in .csv, .npy or .pt; got p.xyz",
    "points 4 --out p.NPY": "expected a file that ends in .csv, .npy or .pt; got p.NPY",
    "report run -o pics": "pics is a folder: give pics/report.html",
    "train a.yaml --hooks.weighted_gradients": "of which the model has none",
    "train --data.options.shift 20": "shift must be a number in [0, 14]; got 20",
    "train --data.options.scaling 5": "scaling must be a number in [0, 0.9]; got 5",
    "train --data.options.rotation -1": "rotation must be a number in [0, 180]; got -1",
    "train --data.options.folds -1": "folds and per_fold are whole numbers >= 1; got -1 and 300",
    "models cnn3 --batch 0": "--batch: expected a whole number >= 1",
}


@pytest.mark.parametrize(("words", "message"), REFUSED.items(), ids=list(REFUSED))
def test_what_cannot_be_done_is_refused(world, monkeypatch, capsys, words, message):
    monkeypatch.chdir(world)
    before = sorted(world.rglob("*"))
    code, said = call(words, capsys)
    assert code in (1, 2) and message in said and "Traceback" not in said
    new = set(world.rglob("*")) - set(before)
    assert {path.name for path in new} <= {"runs", "cache"}  # empty


WRITERS = (
    "evaluate classification run --json",
    f"evaluate identification {FEATURES} --json",
    "evaluate verification run --save",
    "report run -o",
    "inspect run --json",
    "inspect run -o",
    "points 4 --out",
    "points 4 --draw",
    "export run",
    "compare a.yaml --folder",
    "gallery enroll --features p.npz",
    "align pics",
)


@pytest.mark.parametrize("words", WRITERS)
def test_no_command_writes_over_the_record_of_a_run(world, monkeypatch, capsys, words):
    monkeypatch.chdir(world)
    kept = {p: p.read_bytes() for p in world.rglob("*") if p.is_file()}
    written = [p.relative_to(world) for p in kept if p.parts[len(world.parts)] == "run"]
    assert len(written) > 6
    for file in [*written, Path("run/checkpoints/new.json"), Path("pics/../run/RUN.json")]:
        code, said = call([*words.split(), str(file)], capsys)
        assert code == 2 and f"{file} belongs to the run in " in said, said
    assert {p: p.read_bytes() for p in world.rglob("*") if p.is_file()} == kept


def test_results_and_pages_are_written_beside_the_record(world, monkeypatch, capsys):
    monkeypatch.chdir(world)
    call("evaluate classification run --quiet", capsys)
    before = (world / "run/run.json").read_bytes()
    for _ in range(2):
        words = "evaluate classification run --quiet --json run/classification.json"
        assert call(words, capsys)[0] == 0
    assert (world / "run/run.json").read_bytes() == before
    (world / "run/classification.json").unlink()


@pytest.fixture
def finished(tmp_path, capsys):
    """A run of its own, by the command."""
    (tmp_path / "a.yaml").write_text(CONFIG)
    assert (
        call(["train", str(tmp_path / "a.yaml"), "--run.folder", str(tmp_path / "run")], capsys)[0]
        == 0
    )
    return tmp_path / "run"


@pytest.mark.parametrize("make", [os.mkfifo, os.mkdir])
def test_a_result_that_cannot_be_kept_is_shown(finished, capsys, make):
    make(finished / "classification.json")
    assert cli.main(["evaluate", "classification", str(finished), "--quiet"]) == 0
    said = capsys.readouterr()
    assert "accuracy" in said.out and "the result is not kept: " in said.err


def test_names_are_whole_numbers_of_any_size_or_texts(tmp_path, capsys):
    features = np.eye(2, 4, dtype=np.float32)
    large = np.array([[2**64 - 1], [3]], dtype=np.uint64)
    np.savez(tmp_path / "a.npz", features=features, names=large)
    staff = str(tmp_path / "staff")
    assert call(["gallery", "enroll", staff, "--features", str(tmp_path / "a.npz")], capsys)[0] == 0
    assert json.loads((tmp_path / "staff/gallery.json").read_text())["names"] == [
        str(2**64 - 1),
        "3",
    ]
    np.savez(tmp_path / "b.npz", features=features, names=np.array([b"Zo\xeb", b"Ada"]))
    code, said = call(["gallery", "enroll", staff, "--features", str(tmp_path / "b.npz")], capsys)
    assert code == 1 and "names: expected text in UTF-8; got other bytes" in said


def test_a_gallery_is_not_written_over(world, monkeypatch, capsys, tmp_path):
    monkeypatch.chdir(world)
    staff = tmp_path / "staff"
    assert call(["gallery", "enroll", str(staff), "--features", "p.npz"], capsys)[0] == 0
    words = ["evaluate", "classification", *FEATURES.split(), "--json"]
    code, said = call([*words, str(staff / "gallery.json")], capsys)
    assert code == 2 and "belongs to the gallery in" in said


@pytest.mark.parametrize(
    "words",
    [
        ["compare", "a.yaml", "--folder", ""],
        ["gallery", "enroll", "", "--features", "p.npz"],
        ["gallery", "enroll", " ", "--features", "p.npz"],
        ["sweep", "a.yaml", "--search", "optimizer.lr=0.1:0.2", "--study", ""],
        ["report", "run", "-o", ""],
        *(["evaluate", "classification", "run", f, ""] for f in ("--features", "--images")),
        *(["evaluate", "classification", "run", f, ""] for f in ("--data", "--json", "--part")),
        ["evaluate", "classification", ""],
        ["evaluate", "identification", *FEATURES.split(), "--distractors", ""],
        ["evaluate", "verification", "run", "--pairs", ""],
        ["evaluate", "robustness", "run", "--source", ""],
        ["inspect", "run", "--json", ""],
        ["points", "4", "--out", ""],
        ["export", "run", ""],
        ["export", "run", "--gallery", ""],
        ["gallery", "enroll", "g", "--features", "p.npz", "--name", ""],
        ["gallery", "enroll", "g", "--features", ""],
        ["align", "pics", ""],
        ["compare", "a.yaml", "--metric", ""],
        ["compare", "a.yaml", "--baseline", " "],
        ["compare", "a.yaml", "--tune", ""],
        ["sweep", "a.yaml", "--search", "optimizer.lr=0.1:0.2", "--metric", ""],
        ["data", "digits", "--root", ""],
        ["data", ""],
    ],
    ids=" ".join,
)
def test_an_empty_name_is_no_folder(world, monkeypatch, capsys, words):
    monkeypatch.chdir(world)
    before = sorted(world.rglob("*"))
    assert call(words, capsys)[0] == 2
    assert sorted(world.rglob("*")) == before


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--run.baseline", "true"], "task gan does not use the setting 'run.baseline'"),
        (["--schedule.name", "plateau"], "the test of task gan has neither"),
    ],
    ids=lambda value: value[0] if isinstance(value, list) else "",
)
def test_a_gan_refuses_what_it_has_no_use_for(tmp_path, monkeypatch, capsys, words, message):
    monkeypatch.chdir(tmp_path)
    Path("gan.yaml").write_text(
        "task: gan\ndata: {name: digits, batch_size: 16, share: 0.1}\n"
        "model: {name: sngan_discriminator, widths: [4, 8]}\n"
        "gan: {generator: {name: sngan_generator, widths: [8, 4], features: 6}}\n"
    )
    code, said = call(["train", "gan.yaml", *words], capsys)
    assert code in (1, 2) and message in said


def test_pictures_are_judged_by_the_names_of_their_folders(world, tmp_path, capsys):
    from PIL import Image

    for name in ("7", "3"):
        (tmp_path / name).mkdir()
        Image.new("L", (8, 8)).save(tmp_path / name / "1.png")
    words = ["evaluate", "classification", str(world / "run"), "--images", str(tmp_path)]
    assert call([*words, "--json", str(tmp_path / "r.json")], capsys)[0] == 0
    confusion = json.loads((tmp_path / "r.json").read_text())["confusion"]
    assert [i for i, row in enumerate(confusion) if sum(row)] == [3, 7]


def test_the_direction_of_a_sweep_is_that_of_its_metric(tmp_path, monkeypatch):
    pytest.importorskip("optuna")
    from hypersphere.commands import _study, sweep

    asked = []

    def open_study(name, storage, minimize, settings):
        asked.append(minimize)
        raise ValueError("enough")

    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(_study, "open_study", open_study)
    Path("a.yaml").write_text(CONFIG)
    for words in ([], ["--metric", "error"], ["--metric", "x", "--minimize"]):
        sweep.main(["a.yaml", "--search", "optimizer.lr=0.1:0.2", *words])
    assert asked == [False, True, True]


def test_a_pipe_is_not_replaced_by_a_file(world, monkeypatch, capsys, tmp_path):
    """As root, a rename would replace even /dev/null."""
    from hypersphere.orthogonal.adapters.adapter_files import replace_file
    from hypersphere.training.run.checkpoint import RunError, save_weights, write_atomically

    one = {"x": torch.zeros(1)}
    writes = [(write_atomically, ""), (save_weights, one), (save_tensors, one), (replace_file, b"")]
    monkeypatch.chdir(world)
    pipe = tmp_path / "pipe.json"
    os.mkfifo(pipe)
    (tmp_path / "link.json").symlink_to(pipe)
    for path in (pipe, tmp_path / "link.json"):
        code, said = call(f"evaluate classification {FEATURES} --json {path}", capsys)
        assert code == 2 and f"{path} is a pipe or a device; expected a file" in said
        for write, content in writes:
            with pytest.raises((OSError, RunError), match="is a pipe or a device; expected a file"):
                write(path, content)
    assert pipe.is_fifo() and sorted(p.name for p in tmp_path.iterdir()) == ["link.json", pipe.name]


def test_choices_may_have_colons_and_names_too():
    from hypersphere.commands.sweep import parse_space
    from hypersphere.ranges import Inside, check

    assert parse_space("none,group:4").ends == ("none", "group:4")
    check("run.name", "s:64", Annotated[str, Inside()])
    for name in ("../x", "/x", "a/../../x", "\\x", "..\\x"):
        with pytest.raises(ValueError, match="a name inside its folder"):
            check("run.name", name, Annotated[str, Inside()])


def test_ends_of_two_spaces_that_fit_in_some_trials_are_searched(tmp_path):
    from hypersphere.commands.sweep import _check_ends

    path = tmp_path / "s.yaml"
    path.write_text("data: {name: digits}\nmodel: {name: mlp}\n")
    begin, end = (f"regularizers.mhe.{key}" for key in ("begin", "end"))
    _check_ends(str(path), [], {begin: (0, 50), end: (20, 100)})
    with pytest.raises(ValueError, match="begin"):
        _check_ends(str(path), [], {begin: (0, 150), end: (20, 100)})


def test_a_sweep_stops_if_its_config_cannot_be_read_any_more(tmp_path, monkeypatch, capsys):
    pytest.importorskip("optuna")
    from hypersphere.commands import sweep

    monkeypatch.chdir(tmp_path)
    Path("a.yaml").write_text(CONFIG)

    def cross_validate(*_):
        Path("a.yaml").write_text(CONFIG.replace("train: {", "train: "))  # half saved
        return 0.5

    monkeypatch.setattr(sweep, "cross_validate", cross_validate)
    words = ["sweep", "a.yaml", "--trials", "3", "--search", "optimizer.lr=0.1:0.2"]
    code, said = call(words, capsys)
    assert code == 2 and "a.yaml is not readable as YAML" in said
    Path("a.yaml").write_text(CONFIG)
    monkeypatch.setattr(sweep, "cross_validate", lambda *_: 0.6)
    assert cli.main(words) == 0
    said = capsys.readouterr().out
    assert "1 of 3 trials are finished" in said and "refused" not in said


def test_an_option_may_come_near_to_its_end(tmp_path):
    from hypersphere.commands.sweep import _check_spaces, parse_space

    path = tmp_path / "s.yaml"
    path.write_text("data: {name: digits}\nmodel: {name: mlp}\n")
    below_one = {"optimizer.momentum": parse_space("0.5:1.0")}
    _check_spaces(str(path), [], below_one)
    for text in ("0.5:1.5", "1.0:1.0", "0,1"):  # the last is a choice
        with pytest.raises(ValueError, match=r"momentum must be a number in \[0, 1\); got 1"):
            _check_spaces(str(path), [], {"optimizer.momentum": parse_space(text)})


def test_a_trial_whose_values_do_not_go_together_is_told_and_counted(tmp_path, monkeypatch, capsys):
    pytest.importorskip("optuna")
    monkeypatch.chdir(tmp_path)
    Path("a.yaml").write_text(CONFIG)
    words = ["sweep", "a.yaml", "--trials", "6", "--folds", "2"]
    words += ["--search", "regularizers.mhe.begin=0,60", "--search", "regularizers.mhe.end=50,100"]
    assert cli.main(words) == 0
    said = capsys.readouterr().out
    refused = [line for line in said.splitlines() if "mhe.end must be after begin" in line]
    assert refused and all("begin 60" in line and "end 50" in line for line in refused)
    assert "trial 6 of 6: " in said and "\nbest accuracy" in said
    assert cli.main(words) == 0  # nothing left to do


@pytest.mark.parametrize("name", ["folder", "name"])
def test_a_sweep_refuses_a_folder_that_it_would_not_use(tmp_path, monkeypatch, capsys, name):
    pytest.importorskip("optuna")
    monkeypatch.chdir(tmp_path)
    Path("a.yaml").write_text(CONFIG)
    words = ["sweep", "a.yaml", "--search", "optimizer.lr=0.1:0.2", f"--run.{name}", "x"]
    code, said = call(words, capsys)
    assert code == 2 and f"--run.{name} would change nothing" in said
    code, said = call([*words[:2], "--search", f"run.{name}=x,y"], capsys)
    assert code == 2 and f"--run.{name} would change nothing" in said
    assert [path.name for path in tmp_path.iterdir()] == ["a.yaml"]


def test_a_comparison_is_not_put_into_a_run(world, monkeypatch, capsys):
    monkeypatch.chdir(world)
    (world / "b.yaml").write_text("base: a.yaml\n")
    before = sorted(world.rglob("*"))
    code, said = call("compare a.yaml b.yaml --folder run --seeds 0", capsys)
    assert code == 2 and "run is the folder of a run: name another one" in said
    assert sorted(world.rglob("*")) == before


def test_a_finished_run_without_checkpoints_is_not_begun_anew(finished, capsys):
    shutil.rmtree(finished / "checkpoints")
    kept = {p: p.read_bytes() for p in finished.rglob("*") if p.is_file()}
    code, said = call(["train", "--resume", str(finished), "--train.steps", "4"], capsys)
    assert code == 1 and "is a finished run whose checkpoints are gone" in said
    assert {p: p.read_bytes() for p in finished.rglob("*") if p.is_file()} == kept


def test_a_run_that_ended_between_a_test_and_its_first_checkpoint_is_begun_anew(finished, capsys):
    shutil.rmtree(finished / "checkpoints")
    record = json.loads((finished / "summary.json").read_text())
    RunFolder(finished).json("summary.json", {key: record[key] for key in ("last", "best")})
    assert cli.main(["train", "--resume", str(finished)]) == 0
    said = capsys.readouterr().out
    assert "no checkpoint yet: starting from the beginning" in said
    assert "seconds" in json.loads((finished / "summary.json").read_text())


def test_the_advice_for_damaged_checkpoints_can_be_followed(finished, capsys):
    for path in finished.rglob("model.safetensors"):
        path.write_bytes(b"")
    code, said = call(["train", "--resume", str(finished)], capsys)
    assert code == 1 and "start again in another folder, without --resume" in said


def test_a_report_shows_the_settings_that_the_run_had(finished):
    from hypersphere.commands._yaml import parse_yaml
    from hypersphere.reports.run_data import read_run

    file = finished / "config.yaml"
    file.write_text(re.sub(r"batch_size: 16\b", "batch_size: 17", file.read_text()))
    run = read_run(finished, lambda text: parse_yaml(text, file))
    assert "batch_size: 17" in run.config_text and run.config["data"]["batch_size"] == 16
    assert any("the settings shown are those of run.json" in line for line in run.missing)


def test_who_trains_in_a_folder_is_told_to_a_second_command(finished, tmp_path, capsys):
    from hypersphere.training.run.lock import FolderLock

    words = ["train", str(tmp_path / "a.yaml"), "--run.folder", str(finished)]
    assert "holds a run: continue it with --resume" in call(words, capsys)[1]
    with FolderLock(finished):
        code, said = call(words, capsys)
    assert code == 75 and f"is in use: process {os.getpid()}" in said


def test_only_what_changes_is_told_when_a_run_goes_on(finished, capsys):
    assert cli.main(["train", "--resume", str(finished), "--train.steps", "2"]) == 0
    said = capsys.readouterr().out
    assert "resumed with train.steps 1 -> 2\n" in said and "run.folder" not in said
    assert cli.main(["train", "--resume", str(finished)]) == 0
    assert "resumed with" not in capsys.readouterr().out
