"""`hypersphere export`: the folder, checked in onnxruntime and by its own script."""

import json
import re
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
from hypersphere.evaluation import Gallery, Threshold, model_hash
from hypersphere.training.config import DataConfig
from hypersphere.training.export import bundle, export_run
from hypersphere.training.export.onnx_model import write_onnx
from hypersphere.training.export.predict_script import NEAREST_CLASS, PAIR, SEARCH
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


@pytest.fixture(scope="module")
def conversions():
    """What was written as ONNX here: (network, options) -> the file."""
    return {}


@pytest.fixture(autouse=True)
def converted_once(monkeypatch, conversions):
    """The same network with the same options is converted once, which takes seconds.

    Every export still compares the outputs of its file with those of the run.
    """

    def write(net, shape, path, scores, flips):
        key = (model_hash(net), *shape, scores, flips)
        if key in conversions:
            path.write_bytes(conversions[key])
        else:
            write_onnx(net, shape, path, scores, flips)
            conversions[key] = path.read_bytes()

    monkeypatch.setattr(bundle, "write_onnx", write)


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
        unit = torch.nn.functional.normalize(wanted[:batch])
        np.testing.assert_allclose(found[1], unit, atol=1e-4)
        np.testing.assert_allclose(found[2], scores[:batch], atol=1e-4)
    # the script: same scores, and no torch
    code = (
        f"import sys, numpy; sys.path.insert(0, {str(out)!r}); import predict; "
        f"numpy.save({str(tmp_path / 'f.npy')!r}, [predict.predict(p) for p in {paths!r}]); "
        "assert 'torch' not in sys.modules and 'hypersphere' not in sys.modules"
    )
    subprocess.run([sys.executable, "-W", "error", "-c", code], check=True)
    np.testing.assert_allclose(np.load(tmp_path / "f.npy"), scores, atol=1e-4)
    said = subprocess.check_output([sys.executable, out / "predict.py", *paths], text=True)
    classes = [opened.classes[i] for i in scores.argmax(1).tolist()]
    told = [f"{p}: nearest trained class {c}" for p, c in zip(paths, classes, strict=True)]
    assert said.split("\n")[:4] == told  # no decision: unknown people have one, too
    decision = json.loads((out / "decision.json").read_text())
    kept = json.loads((trained / "threshold.json").read_text())["thresholds"]
    pair = {k: v for k, v in decision["pair"].items() if k != "kind"}
    assert pair in kept and pair["far"] == 0.001
    assert decision["classes"] == opened.classes and decision["flips"] == "unused"
    card = (out / "MODEL_CARD.md").read_text()
    assert "## Data" in card and "## Evaluation" in card and "## Intended use" in card
    assert "verification of people never trained" in card and "versions: hypersphere" in card
    assert "false-accept rate 0.001" in card
    assert "class scores: no decision about unknown people" in card
    assert main(["export", str(trained), str(out)]) == 1
    assert "is not empty" in capsys.readouterr().err


def test_the_card_of_a_run_whose_pairs_were_all_compared(trained, tmp_path):
    run = tmp_path / "run"
    shutil.copytree(trained, run)
    record = str(run / "verification.json")
    assert main(["evaluate", "verification", str(run), "--all-pairs", "--json", record]) == 0
    assert main(["export", str(run), str(tmp_path / "out")]) == 0
    card = (tmp_path / "out/MODEL_CARD.md").read_text()
    assert "- verification of every pair of the test part: EER " in card


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
    assert done.returncode == 1 and done.stderr == "usage: python predict.py PICTURE ...\n"
    # Mirror images are the business of the model file: its features are those of the gallery.
    session = onnxruntime.InferenceSession(tmp_path / "out" / "model.onnx")
    found = session.run(None, {"pictures": opened.transform(images).numpy()})[0]
    wanted = opened.extract(images, cache=False, flips=True).flatten(1)
    np.testing.assert_allclose(found, wanted, atol=1e-4)
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


def test_a_threshold_of_trained_people_is_not_kept(trained, tmp_path, capsys):
    """It took the place of the kept one, and `export` shipped it."""
    source = Path(shutil.copytree(trained, tmp_path / "run"))
    before = (source / "threshold.json").read_bytes()
    words = ["evaluate", "threshold", str(source), "--quiet", "--far", "0.1"]
    for part in ("train", "test"):
        assert main([*words, "--part", part]) == 0
        out, err = capsys.readouterr()
        assert "the run was trained on" in err and "come out too low" in err
        assert "pair (1:1)" in out and "not kept: " in out and str(source) in out
        assert (source / "threshold.json").read_bytes() == before
    assert main([*words, "--part", "train", "--json", str(tmp_path / "own.json")]) == 0
    assert (tmp_path / "own.json").exists() and "too low" in capsys.readouterr().err
    assert main(words) == 0
    out, err = capsys.readouterr()
    assert err == "" and "kept in" in out


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


def test_a_run_can_be_exported_twice(trained, tmp_path):
    """The rotations were multiplied out in the caller's model, whose hash then was another."""
    opened = TrainedRun.open(trained)
    before = model_hash(opened.model)
    gallery = Gallery(opened.model, transform=opened.transform, threshold=0.5)
    gallery.enroll_many(["ada", "bob"], opened.read(pictures(tmp_path, 2)))
    for name in ("a", "b"):
        export_run(opened, tmp_path / name, gallery=gallery)
    assert model_hash(opened.model) == before
    assert opened.extract(opened.read(pictures(tmp_path, 2)), cache=False).shape == (2, 8)


def test_a_gallery_of_unknown_origin_is_checked(trained, tmp_path, capsys):
    """Features of another dimension went out, and predict.py failed at a matrix product."""
    opened = TrainedRun.open(trained)
    for flips, dim, fits in (("unused", 8, True), ("concatenate", 8, False), ("unused", 5, False)):
        gallery = Gallery(flips=flips, threshold=0.5)
        gallery.enroll("ada", torch.randn(dim))
        out = tmp_path / f"{flips}-{dim}"
        if fits:
            with pytest.warns(UserWarning, match="does not say which model"):
                export_run(opened, out, gallery=gallery)
            assert "does not say which model" in (out / "MODEL_CARD.md").read_text()
        else:
            with pytest.raises(ValueError, match=f"has features of dimension {dim}; .* this run"):
                export_run(opened, out, gallery=gallery)
            assert not out.exists()
    with pytest.raises(ValueError, match="the gallery is empty"):
        export_run(opened, tmp_path / "empty", gallery=Gallery(opened.model))


@pytest.fixture(scope="module")
def deployed(trained, tmp_path_factory):
    """An export without gallery and scores: pairs are compared."""
    return export_run(trained, tmp_path_factory.mktemp("deployed") / "out", far=0.1).folder


def predict(folder, *paths):
    """(exit code, lines, complaints) of the exported script."""
    words = [sys.executable, folder / "predict.py", *paths]
    done = subprocess.run(words, text=True, capture_output=True)
    return done.returncode, done.stdout.splitlines(), done.stderr


def test_two_pictures_are_compared(trained, deployed, tmp_path):
    """With the threshold of a pair, and the false-accept rate it was fitted at."""
    opened, paths = TrainedRun.open(trained), pictures(tmp_path)
    record = json.loads((deployed / "decision.json").read_text())
    least = record["pair"]["value"]
    unit = torch.nn.functional.normalize(opened.extract(opened.read(paths), cache=False))
    for path, score in zip(paths, (unit @ unit[0]).tolist(), strict=True):
        code, (line,), err = predict(deployed, paths[0], path)
        answer = "the same" if score >= least else "different"
        assert line.startswith(f"{answer} (") and code == (0 if score >= least else 3) and not err
        assert line.endswith(f"; same from {least:.4f} on, at FAR 0.1)")
        assert float(line.split("(")[1].split(";")[0]) == pytest.approx(score, abs=2e-4)
    copy = Path(shutil.copytree(deployed, tmp_path / "copy"))
    for pair in (None, record["pair"] | {"value": 2.0}):
        changed = record | {"pair": pair, "in_words": "other words"}
        (copy / "decision.json").write_text(json.dumps(changed))
        assert predict(copy, paths[0], paths[0]) == (3, ["different (1.0000; other words)"], "")
    for wrong in ((), paths[:1], paths[:3]):
        assert predict(deployed, *wrong) == (1, [], "usage: python predict.py FIRST SECOND\n")


def test_the_script_obeys_its_files_and_refuses_16_bits(trained, deployed, tmp_path):
    (a, b, *_) = pictures(tmp_path)
    Image.fromarray(np.full((9, 9), 40_000, np.uint16)).save(tmp_path / "deep.png")
    code, lines, err = predict(deployed, a, tmp_path / "deep.png")
    assert code == 1 and lines == [] and err.count("\n") == 1
    assert "deep.png cannot be read as 8 bits ('I;16')" in err
    assert predict(deployed, tmp_path / "deep.png", a)[0] == 1
    copy = Path(shutil.copytree(deployed, tmp_path / "copy"))
    how = json.loads((copy / "preprocessing.json").read_text())
    assert set(how) == {*how["about"], "about"}

    def feature():
        code = f"import predict; print(predict.predict({b!r}).tolist())"
        return subprocess.check_output([sys.executable, "-c", code], cwd=copy, text=True)

    before = feature()
    for change in (
        {"modes": dict.fromkeys(how["modes"], "1")},
        {"resampling": 0},
        {"std": 25.0},
        {"mean": 200.0},
    ):
        (copy / "preprocessing.json").write_text(json.dumps(how | change))
        assert feature() != before, change


def test_exit_codes_of_several_pictures(trained, tmp_path, capsys):
    """One known person among unknown ones gave 0, and an unreadable picture ended everything."""
    opened, paths = TrainedRun.open(trained), pictures(tmp_path)
    unit = torch.nn.functional.normalize(opened.extract(opened.read(paths), cache=False))
    scores = (unit @ unit[:2].T).amax(1)
    a, b, c = *paths[:2], paths[int(scores.argmin())]
    least = (1 + float(scores.min())) / 2
    gallery = Gallery(opened.model, transform=opened.transform, threshold=least)
    gallery.enroll_many(["ada", "bob"], opened.read([a, b]))
    (tmp_path / "no.png").write_bytes(b"no picture")
    folder = export_run(opened, tmp_path / "out", gallery=gallery).folder
    assert predict(folder, a, b)[0] == 0
    code, lines, err = predict(folder, a, c, b)
    assert code == 3 and len(lines) == 3 and ": unknown (" in lines[1] and not err
    code, lines, err = predict(folder, a, tmp_path / "no.png", c)
    assert code == 1 and len(lines) == 2 and "no.png: cannot be read as 8 bits (" in err
    gallery.threshold = None
    place = gallery.save(tmp_path / "people")
    words = ["export", str(trained), str(tmp_path / "without"), "--gallery", str(place)]
    assert main(words) == 0
    said = f"`hypersphere gallery calibrate {place} --run {trained} --far 0.01` fits one"
    assert said in capsys.readouterr().err.replace("\n", " ")
    code, lines, _ = predict(tmp_path / "without", a)
    assert code == 3 and lines[0].endswith("; no threshold: nobody is accepted)")
    assert "gallery calibrate" in (tmp_path / "without" / "MODEL_CARD.md").read_text()
    scored = export_run(opened, tmp_path / "scored", scores=True).folder
    code, lines, err = predict(scored, tmp_path / "no.png", a)
    assert code == 1 and len(lines) == 1 and "cannot be read" in err


def test_the_script_is_short():
    for script in (NEAREST_CLASS, PAIR, SEARCH):
        lines = [line for line in script.splitlines() if line.strip()]
        assert len(lines) <= 20 and max(map(len, lines)) <= 100 and ";" not in code_of(script)


def code_of(script):
    """Without what is between quotes."""
    return re.sub(r"\"[^\"]*\"|'[^']*'", "", script)


def test_a_gallery_at_another_rate(trained, tmp_path, capsys):
    """The threshold of a pair stayed at the old rate, and the interval forgot the people."""
    opened = TrainedRun.open(trained)
    gallery = Gallery(opened.model, transform=opened.transform, aligned=True)
    gallery.enroll_many(["ada", "bob", "cy"], opened.read(pictures(tmp_path, 3)))
    people = torch.arange(20).repeat_interleave(10)
    unknown = torch.randn(20, 8)[people] + 0.2 * torch.randn(200, 8)
    gallery.calibrate(unknown, people, far=0.05)
    gallery.save(tmp_path / "people")
    words = [str(trained), str(tmp_path / "out"), "--gallery", str(tmp_path / "people")]
    assert main(["export", *words, "--far", "0.1"]) == 0
    assert capsys.readouterr().err == ""
    record = json.loads((tmp_path / "out" / "decision.json").read_text())
    wanted = gallery.calibrate(unknown, people, far=0.1)
    assert record["search"] == wanted.to_dict() and record["search"]["people"] == 20
    assert record["pair"] == gallery.decision.pair.to_dict() and record["pair"]["far"] == 0.1
    how = json.loads((tmp_path / "out" / "preprocessing.json").read_text())
    assert how["alignment"].startswith("faces aligned to the template of 112 x 96")
    card = (tmp_path / "out" / "MODEL_CARD.md").read_text()
    assert "pictures: faces aligned to the template" in card
    # Of a gallery without scores of pairs (earlier versions) their threshold was silently missing.
    gallery.decision.impostor_pairs = None
    gallery.save(tmp_path / "people")
    words[1] = str(tmp_path / "old")
    assert main(["export", *words, "--far", "0.2"]) == 0
    err = capsys.readouterr().err
    assert "no threshold of a pair goes with it" in err and "gallery calibrate" in err
    assert "no threshold of a pair" in (tmp_path / "old" / "MODEL_CARD.md").read_text()
    gallery.enroll_many(["ada"] * 6, opened.read(pictures(tmp_path, 6)))
    with pytest.warns(UserWarning, match="fitted for 3 features of 3 people .* has 8 of 3"):
        export_run(opened, tmp_path / "grown", gallery=gallery)
