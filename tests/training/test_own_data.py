"""A run is opened and resumed with the data it was trained on, or it says so."""

import json
import shutil

import numpy as np
import pytest
import torch
from PIL import Image

from hypersphere.cli import main
from hypersphere.training.run.trained import TrainedRun

SHORT = ["--model.name", "cnn3", "--model.widths", "[2,4,4]", "--model.depths", "[1,1,1]"]
SHORT += ["--train.steps", "2", "--train.test_every", "2", "--data.batch_size", "8"]
SHORT += ["--run.report", "false", "--train.quiet", "true", "--baseline", "false"]


def picture(path, seed):
    path.parent.mkdir(parents=True, exist_ok=True)
    values = np.random.default_rng(seed).integers(0, 255, (12, 12, 3), dtype=np.uint8)
    Image.fromarray(values).save(path)


def people(root, names, count=4):
    for i, name in enumerate(names):
        for j in range(count):
            picture(root / name / f"{j}.png", 100 * i + j)
    return root


def train(root, run, *more):
    given = ["--data.name", "folder", "--data.root", str(root), "--run.folder", str(run)]
    return main(["train", *given, *SHORT, *more])


@pytest.fixture
def open_set(tmp_path):
    root = people(tmp_path / "faces", [f"p{i:03}" for i in range(20)])
    assert train(root, tmp_path / "run", "--data.options.protocol", "open_set") == 0
    return root, tmp_path / "run"


def parts(run):
    split = TrainedRun.open(run).loaders.split
    return [list(p.classes) for p in (split.train, split.pairs.dataset, split.reserved)]


def test_new_people_do_not_move_the_others(open_set):
    root, run = open_set
    kept = json.loads((run / "split.json").read_text())["people"]
    before = parts(run)
    assert before == [kept["train"], kept["calibration"], kept["test"]]
    people(root, ["p005b", "a_newcomer"], 4)
    assert parts(run) == before


def test_other_classes_are_refused_and_nothing_is_lost(tmp_path, capsys):
    root, run = people(tmp_path / "faces", ["a", "b", "c"]), tmp_path / "run"
    assert train(root, run) == 0
    content = (run / "run.json").read_bytes()
    (root / "b").rename(root / "d")
    with pytest.raises(ValueError, match="1 gone, such as 'b'; 1 new, such as 'd'"):
        TrainedRun.open(run).loaders  # noqa: B018 - read when asked for
    assert train(root, run, "--train.steps", "4", "--resume", str(run)) != 0
    assert "trained on 3 classes, and its data have others now" in capsys.readouterr().err
    people(root, ["e"])
    assert train(root, run, "--train.steps", "4", "--resume", str(run)) != 0
    assert "Traceback" not in capsys.readouterr().err
    assert (run / "run.json").read_bytes() == content


def test_more_pictures_are_told(tmp_path, capsys):
    root, run = people(tmp_path / "faces", ["a", "b", "c"]), tmp_path / "run"
    assert train(root, run) == 0
    for i in range(4):
        picture(root / "a" / f"new{i}.png", 900 + i)
    with pytest.warns(UserWarning, match="train part .* 9 samples then, 12 now"):
        TrainedRun.open(run).loaders  # noqa: B018
    assert train(root, run, "--train.steps", "4", "--resume", str(run)) != 0
    assert "--train.init_from" in capsys.readouterr().err


@pytest.mark.parametrize("kind", ["channel", "mean"])
def test_pixels_become_inputs_as_in_training(tmp_path, kind):
    root, run = people(tmp_path / "faces", ["a", "b", "c"]), tmp_path / "run"
    assert train(root, run, "--data.normalize", kind) == 0
    images = TrainedRun.open(run).read([root / "a" / "0.png"])
    before = TrainedRun.open(run).transform(images)
    shutil.rmtree(root)  # deployed without its pictures
    torch.testing.assert_close(TrainedRun.open(run).transform(images), before)


def test_changed_pictures_are_told_on_resume(tmp_path, capsys):
    root, run = people(tmp_path / "faces", ["a", "b", "c"]), tmp_path / "run"
    assert train(root, run, "--data.normalize", "channel") == 0
    for path in root.rglob("*.png"):
        Image.fromarray(np.zeros((12, 12, 3), np.uint8)).save(path)
    more = ["--data.normalize", "channel", "--train.steps", "4", "--resume", str(run)]
    assert train(root, run, *more) != 0
    assert "have changed since it started" in capsys.readouterr().err


def test_the_end_of_training_keeps_other_thresholds(open_set):
    root, run = open_set
    path = run / "threshold.json"
    record = json.loads(path.read_text())
    own = {**record["thresholds"][0], "far": 0.33, "gallery_size": 7}
    record["thresholds"].append(own)
    record.pop("checksum", None)
    path.write_text(json.dumps(record))
    more = ["--data.options.protocol", "open_set", "--resume", str(run)]
    assert train(root, run, *more) == 0
    kept = json.loads(path.read_text())["thresholds"]
    assert (7, 0.33) in [(t["gallery_size"], t["far"]) for t in kept]
    assert len(kept) == len(record["thresholds"])


def test_only_the_calibration_people_give_the_kept_thresholds(open_set, capsys):
    """Those of --part reserved took the place of the others, and the card did not know it."""
    root, run = open_set
    path = run / "threshold.json"
    before = path.read_bytes()
    assert {t["part"] for t in json.loads(before)["thresholds"]} == {"calibration"}
    words = ["evaluate", "threshold", str(run), "--quiet", "--far", "0.4"]
    assert main([*words, "--part", "reserved"]) == 0
    out = capsys.readouterr().out
    assert (
        "40 %" in out and "not kept: " in out and "part calibration (these are of reserved)" in out
    )
    assert path.read_bytes() == before
    assert main([*words, "--images", str(people(root.parent / "other", ["x", "y", "z"]))]) == 0
    kept = json.loads(path.read_text())["thresholds"]
    assert [t["part"] for t in kept if t["far"] == 0.4] == ["--images"]
    with pytest.raises(SystemExit):
        main(["evaluate", "threshold", "--help"])
    assert "(default: calibration)" in " ".join(capsys.readouterr().out.split())


@pytest.mark.parametrize(("name", "has"), [("folder", True), ("webdataset", False)])
def test_the_advice_names_options_that_the_data_have(name, has):
    from types import SimpleNamespace

    split = SimpleNamespace(pairs=None, reserved=None)
    run = SimpleNamespace(config=SimpleNamespace(data=SimpleNamespace(name=name)))
    run.loaders = SimpleNamespace(split=split)
    with pytest.raises(ValueError, match="no part 'reserved': .*--images DIR") as told:
        TrainedRun.dataset_samples(run, name, None, "reserved")
    assert ("data.options.protocol open_set" in str(told.value)) is has


def test_open_set_identification_of_people_with_few_pictures(open_set, capsys):
    root, run = open_set
    one = people(root.parent / "one", [f"a{i}" for i in range(6)], 1)
    people(one, ["x", "y"])
    words = ["evaluate", "identification", str(run), "--open-set", "--quiet", "--images", str(one)]
    assert main(words) == 0
    assert "6 known, 6 unknown" in capsys.readouterr().out


@pytest.mark.parametrize("name", ["split.json", "normalize.json", "run.json"])
def test_damaged_records_are_named(open_set, name, capsys):
    root, run = open_set
    path = run / name
    if name == "normalize.json":
        path.write_text('{"mean": "black"}')
        config = json.loads((run / "run.json").read_text())
        config["config"]["data"]["normalize"] = "channel"
        config.pop("checksum")
        (run / "run.json").write_text(json.dumps(config))
    elif name == "split.json":
        path.write_bytes(path.read_bytes()[:20])
    else:
        record = json.loads(path.read_text())
        record["data"]["parts"] = {"train": -1}
        record.pop("checksum")
        path.write_text(json.dumps(record))
    with pytest.raises(ValueError, match=f"{name} is damaged"):
        TrainedRun.open(run).normalize if name == "normalize.json" else parts(run)
    if name != "normalize.json":
        more = ["--data.options.protocol", "open_set", "--train.steps", "4"]
        assert train(root, run, *more, "--resume", str(run)) != 0
        told = capsys.readouterr().err
        assert f"{name} is damaged" in told and "Traceback" not in told
