"""`hypersphere export`: the folder, checked in onnxruntime and by its own script."""

import json
import shutil
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image
from small_run import run, small_config

from hypersphere.cli import main
from hypersphere.evaluation import Gallery, Threshold
from hypersphere.training.config import DataConfig
from hypersphere.training.export import export_run
from hypersphere.training.run.trained import TrainedRun

onnxruntime = pytest.importorskip("onnxruntime", reason="needs the extra export")
pytest.importorskip("onnxscript", reason="needs the extra export")


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    """A rotated network, so that there is something to multiply out; a fitted normalization."""
    folder = tmp_path_factory.mktemp("runs") / "digits"
    data = DataConfig(batch_size=32, normalize="mean", options={"protocol": "open_set"})
    run(small_config(data=data, rotate={"method": "cayley"}), folder)
    return folder


def pictures(folder, count=4):
    """PNG files, one of them lying on its side."""
    paths = []
    for i in range(count):
        rng = np.random.default_rng(i)
        image = Image.fromarray(rng.integers(0, 256, (11, 9), dtype=np.uint8))
        exif = image.getexif()
        if i == 1:
            exif[0x0112] = 6
        image.save(folder / f"{i}.png", exif=exif)
        paths.append(str(folder / f"{i}.png"))
    return paths


def test_the_exported_folder_gives_the_features_of_the_run(trained, tmp_path, capsys):
    out = tmp_path / "out"
    assert main(["export", str(trained), str(out), "--scores"]) == 0
    assert "equal to the run to" in capsys.readouterr().out
    names = {"model.onnx", "preprocessing.json", "decision.json", "MODEL_CARD.md", "predict.py"}
    assert {p.name for p in out.iterdir()} == names
    opened = TrainedRun.open(trained)
    paths = pictures(tmp_path)
    wanted = opened.extract(opened.read(paths), cache=False)
    scores = opened.extract(opened.read(paths), cache=False, logits=True)
    session = onnxruntime.InferenceSession(out / "model.onnx")
    prepared = opened.transform(opened.read(paths)).numpy()
    for batch in (1, 3, 4):
        found = session.run(None, {"pictures": prepared[:batch]})
        np.testing.assert_allclose(found[0], wanted[:batch], atol=1e-4)
        np.testing.assert_allclose(found[1], scores[:batch], atol=1e-4)
    # the script: same features, and no torch
    code = (
        f"import sys, numpy; sys.path.insert(0, {str(out)!r}); import predict; "
        f"numpy.save({str(tmp_path / 'f.npy')!r}, [predict.predict(p)[0] for p in {paths!r}]); "
        "assert 'torch' not in sys.modules and 'hypersphere' not in sys.modules"
    )
    subprocess.run([sys.executable, "-W", "error", "-c", code], check=True)
    np.testing.assert_allclose(
        np.load(tmp_path / "f.npy"), torch.nn.functional.normalize(wanted), atol=1e-4
    )
    said = subprocess.check_output([sys.executable, out / "predict.py", *paths], text=True)
    classes = [opened.classes[i] for i in scores.argmax(1).tolist()]
    told = [f"{p}: nearest trained class {c}" for p, c in zip(paths, classes, strict=True)]
    assert said.split("\n")[:4] == told  # no decision: a stranger has a nearest class, too
    decision = json.loads((out / "decision.json").read_text())
    kept = json.loads((trained / "threshold.json").read_text())["thresholds"]
    pair = {k: v for k, v in decision["pair"].items() if k != "kind"}
    assert pair in kept and pair["far"] == 0.001
    assert decision["classes"] == opened.classes and decision["flips"] == "unused"
    card = (out / "MODEL_CARD.md").read_text()
    assert "## Data" in card and "## Evaluation" in card and "## Intended use" in card
    assert "verification of people never trained" in card and "versions: hypersphere" in card
    assert "false-accept rate 0.001" in card
    assert "class scores: no decision about strangers" in card
    assert main(["export", str(trained), str(out)]) == 1
    assert "is not empty" in capsys.readouterr().err


def test_a_gallery_goes_with_it(trained, tmp_path, capsys):
    opened = TrainedRun.open(trained)
    paths = pictures(tmp_path, 6)
    images = opened.read(paths)
    gallery = Gallery(opened.model, transform=opened.transform, flips="concatenate")
    gallery.enroll_many(["ada", "bob", "cy"], images[:3])
    gallery.threshold = Threshold(0.999, 0.01, 0.99, 0.9999, 500, 3)
    made = export_run(opened, tmp_path / "out", gallery=gallery)
    assert made.search.value == 0.999 and made.gap < 1e-5
    script = [sys.executable, tmp_path / "out" / "predict.py"]
    damaged = tmp_path / "damaged.png"
    damaged.write_bytes(b"no picture")
    done = subprocess.run([*script, *paths, damaged], text=True, capture_output=True)
    assert done.returncode == 1 and f"{damaged}: cannot be read" in done.stderr
    said = done.stdout.splitlines()
    for line, path, matches in zip(said, paths, gallery.identify_many(images), strict=True):
        name = matches[0].name if matches else "unknown"
        assert line.startswith(f"{path}: {name} (")
    record = json.loads((tmp_path / "out" / "decision.json").read_text())
    record["search"]["value"] = 2.0  # which nobody reaches
    (tmp_path / "out" / "decision.json").write_text(json.dumps(record))
    assert subprocess.run([*script, *paths], capture_output=True).returncode == 3
    done = subprocess.run(script, text=True, capture_output=True)
    assert done.returncode == 2 and "usage: python predict.py PICTURE" in done.stderr
    other = Gallery(fingerprint="another")
    other.enroll("ada", torch.randn(16))
    with pytest.raises(ValueError, match="another model"):
        export_run(opened, tmp_path / "no", gallery=other)
    assert not (tmp_path / "no").exists()


def test_mistakes_are_one_line(trained, tmp_path, capsys):
    for words, message in [
        ([str(tmp_path / "none")], "is not a run folder"),
        ([str(trained), str(tmp_path / "x"), "--far", "0.123"], "not at 0.123"),
        ([str(trained), str(tmp_path / "x"), "--gallery", str(tmp_path)], "no gallery at"),
    ]:
        assert main(["export", *words]) == 1
        err = capsys.readouterr().err
        assert message in err and err.count("\n") == 1
    assert not (tmp_path / "x").exists()


def test_a_threshold_belongs_to_its_weights(trained, tmp_path, capsys):
    """The best weights went out with the threshold of the last ones."""
    source = Path(shutil.copytree(trained, tmp_path / "run"))
    opened = {weights: TrainedRun.open(source, weights) for weights in ("last", "best")}
    if opened["last"].step == opened["best"].step:  # as if an earlier test had been the best
        summary = json.loads((source / "summary.json").read_text())
        summary["best"]["step"] = opened["last"].step - 4
        del summary["checksum"]
        (source / "summary.json").write_text(json.dumps(summary))
    out = tmp_path / "best"
    words = [str(source), str(out), "--weights", "best"]
    assert main(["export", *words]) == 1
    err = capsys.readouterr().err
    assert "thresholds of the last weights (step 12), none of the best weights" in err
    assert f"hypersphere evaluate threshold {source} --weights best" in err
    last = (source / "threshold.json").read_bytes()
    assert main(["evaluate", "threshold", str(source), "--weights", "best", "--quiet"]) == 0
    assert (source / "threshold.json").read_bytes() == last
    assert main(["export", *words]) == 0
    fitted = json.loads((source / "threshold-best.json").read_text())
    pair = json.loads((out / "decision.json").read_text())["pair"]
    assert fitted["weights"] == "best"
    assert pair["value"] in [entry["value"] for entry in fitted["thresholds"]]
    # What is measured of the last weights is not said of the best.
    assert "verification of people never trained" not in (out / "MODEL_CARD.md").read_text()
    # An older version wrote those of the best weights to threshold.json.
    (source / "threshold-best.json").replace(source / "threshold.json")
    assert main(["export", str(source), str(tmp_path / "old"), "--weights", "best"]) == 0
    assert json.loads((tmp_path / "old" / "decision.json").read_text())["pair"] == pair


def test_thresholds_are_kept_side_by_side(trained, tmp_path, capsys):
    """A try at another rate, or for a search, took the place of what `export` deploys."""
    source = Path(shutil.copytree(trained, tmp_path / "run"))

    def kept():
        return json.loads((source / "threshold.json").read_text())["thresholds"]

    before = kept()
    for more in (["--far", "0.5"], ["--far", "0.2", "--gallery-size", "3"], ["--far", "0.5"]):
        assert main(["evaluate", "threshold", str(source), "--quiet", *more]) == 0
    assert [entry for entry in kept() if entry in before] == before
    added = [(e["gallery_size"], e["far"]) for e in kept() if e not in before]
    assert added == [(1, 0.5), (3, 0.2)]
    capsys.readouterr()
    for rate, words in ((0.001, []), (0.5, ["--far", "0.5"])):
        out = tmp_path / f"out-{rate}"
        assert main(["export", str(source), str(out), *words]) == 0
        assert capsys.readouterr().err == ""
        assert json.loads((out / "decision.json").read_text())["pair"]["far"] == rate
    record = json.loads((source / "threshold.json").read_text())
    record["thresholds"] = [entry for entry in record["thresholds"] if entry["far"] == 0.5]
    (source / "threshold.json").write_text(json.dumps(record))
    assert main(["export", str(source), str(tmp_path / "nearest")]) == 0
    assert "the nearest, at 0.5, goes with it" in capsys.readouterr().err


def test_a_gallery_that_has_grown_is_told(trained, tmp_path, capsys):
    """The card said "search among 3" of a gallery of 9, and nobody was warned."""
    opened = TrainedRun.open(trained)
    gallery = Gallery(opened.model, transform=opened.transform)
    images = opened.read(pictures(tmp_path, 9))
    gallery.enroll_many([f"p{i}" for i in range(9)], images)
    gallery.threshold = Threshold(0.999, 0.01, 0.99, 0.9999, 500, 3)
    gallery.save(tmp_path / "people")
    out = tmp_path / "out"
    assert main(["export", str(trained), str(out), "--gallery", str(tmp_path / "people")]) == 0
    assert "fitted for 3 people and the gallery has 9" in capsys.readouterr().err
    card = (out / "MODEL_CARD.md").read_text()
    assert "the gallery has 9: expect a false-accept rate of 0.03 in place of 0.01" in card
    gallery.threshold = Threshold(0.999, 0.01, 0.99, 0.9999, 500, 9)
    gallery.save(tmp_path / "people")
    words = [str(trained), str(tmp_path / "right"), "--gallery", str(tmp_path / "people")]
    assert main(["export", *words]) == 0 and capsys.readouterr().err == ""
