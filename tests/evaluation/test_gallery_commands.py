"""`hypersphere gallery` with pictures: who is unknown, what is said, what goes to JSON."""

import json

import numpy as np
import pytest
import torch

from hypersphere.cli import main
from hypersphere.data import load
from hypersphere.training import Config, make_fabric, train
from hypersphere.training.config import DataConfig, TrainConfig

Image = pytest.importorskip("PIL.Image", reason="needs the extra data")
PEOPLE = {"known": (0, 1, 2), "unknown": (5, 6, 7, 8)}


@pytest.fixture(scope="module")
def place(tmp_path_factory):
    """A run on the digits, a folder of known people (digits 0 to 2) and one of unknown people."""
    folder = tmp_path_factory.mktemp("gallery")
    digits = load("digits").test
    for part, people in PEOPLE.items():
        for person in people:
            target = folder / part / f"d{person}"
            target.mkdir(parents=True)
            rows = (digits.labels == person).nonzero().flatten()[:10].tolist()
            for i, pixels in enumerate(digits.images[rows, 0]):
                pixels = pixels if pixels.dtype == torch.uint8 else (255 * pixels).round().byte()
                Image.fromarray(pixels.numpy()).save(target / f"{i}.png")
    config = Config(
        data=DataConfig(batch_size=32, share=0.3, test_share=0.3),
        model={"name": "cnn3", "widths": [4, 4, 4], "features": 8},
        head={"name": "softmax"},
        train=TrainConfig(steps=30, quiet=True),
    )
    train(config, folder / "run", fabric=make_fabric(accelerator="cpu", devices=1))
    words = ["gallery", "enroll", folder / "people", "--run", folder / "run"]
    assert main([*map(str, words), "--images", str(folder / "known")]) == 0
    return folder


@pytest.fixture
def gallery(place, capsys):
    """Calls `hypersphere gallery`; gives exit code, output and complaints."""

    def call(what, *words):
        code = main(["gallery", what, str(place / "people"), *map(str, words)])
        return code, *capsys.readouterr()

    return call


@pytest.fixture
def fitted(monkeypatch):
    """What thresholds are fitted on: (names, number of samples) of each call."""
    from hypersphere.evaluation import Gallery

    calls, real = [], Gallery.calibrate

    def calibrate(self, samples, labels, far):
        calls.append((sorted(set(labels)), len(samples)))
        return real(self, samples, labels, far)

    monkeypatch.setattr(Gallery, "calibrate", calibrate)
    return calls


def test_probes_are_not_the_unknown_people(place, gallery, fitted, tmp_path):
    """The probes were counted as impostors, and with --features nobody else was."""
    unknown = ["--run", place / "run", "--far", 0.1, "--strangers", place / "unknown"]
    probes = sorted((place / "known").rglob("*.png"))
    code, out, err = gallery("identify", *probes, *unknown, "--json")
    assert fitted == [(["d5", "d6", "d7", "d8"], 40)], err
    assert code == 0 and all(answer["matches"] for answer in json.loads(out))
    features = np.asarray(torch.randn(20, 16))
    np.savez(tmp_path / "probes.npz", features=features)
    code, out, err = gallery("identify", "--features", tmp_path / "probes.npz", *unknown)
    assert fitted[1:] == [(["d5", "d6", "d7", "d8"], 40)], err
    assert code in (0, 3) and len(out.splitlines()) == 21  # the last says what decided


def test_unknown_people_of_a_folder_need_a_run(place, gallery, tmp_path):
    np.savez(tmp_path / "probes.npz", features=np.ones((2, 16), np.float32))
    words = ["--features", tmp_path / "probes.npz", "--strangers", place / "unknown"]
    code, _, err = gallery("identify", *words, "--far", 0.1)
    assert code == 1 and "pictures need --run RUN" in err
    code, _, err = gallery("identify", *words, "--run", place / "run")
    assert code == 1 and "--strangers goes with --far" in err


def test_answers_say_the_score_and_what_failed(place, gallery, tmp_path):
    """`verify --json` left failures out, and "unknown" stood without a score."""
    (tmp_path / "broken.png").write_bytes(b"no picture")
    words = [place / "known" / "d0" / "0.png", tmp_path / "broken.png", "--run", place / "run"]
    code, out, _ = gallery("verify", "d0", *words, "--threshold", 0.5, "--json")
    good, bad = json.loads(out)
    assert code == 1 and good["same"] and good["score"] > 0.99
    assert bad["source"].endswith("broken.png") and bad["error"]
    words[0] = next((place / "unknown").rglob("*.png"))
    code, out, _ = gallery("identify", *words, "--threshold", 1.0)
    assert code == 1 and f"{words[0].name}: unknown 0." in out
    code, out, _ = gallery("identify", *words, "--threshold", 1.0, "--json")
    good, bad = json.loads(out)
    assert good["matches"] == [] and 0 < good["best_score"] < 1 and bad["error"]
    with pytest.raises(SystemExit):
        gallery("identify", *words, "--threshold", "nan")
    code, _, err = gallery("identify", tmp_path / "broken.png", "--run", place / "run")
    assert code == 1 and "none of 1 pictures can be read" in err and "no format" in err


def test_exit_codes_and_what_was_decided_by(place, gallery):
    """0 if every picture is somebody, 3 if one is nobody; which threshold it was stood nowhere."""
    known, unknown = (
        place / part / name / "0.png" for part, name in (("known", "d0"), ("unknown", "d7"))
    )
    run = ["--run", place / "run"]
    code, out, _ = gallery("identify", known, *run, "--threshold", 0.9999)
    assert code == 0 and out.splitlines()[-1] == "accepted from 0.9999 on, chosen by hand"
    code, out, _ = gallery("identify", known, unknown, *run, "--threshold", 0.9999, "--json")
    assert code == 3 and {a["threshold"] for a in json.loads(out)} == {0.9999}
    fit = ["--far", 0.1, "--strangers", place / "unknown"]
    code, out, _ = gallery("identify", known, *run, *fit)
    last = out.splitlines()[-1]
    assert (
        code == 0
        and last.startswith("accepted from 0.")
        and last.endswith(
            ": false-accept rate 10 % of a search among 3 people, fitted on 40 impostors"
        )
    )
    (answer,) = json.loads(gallery("identify", known, *run, *fit, "--json")[1])
    assert (answer["far"], answer["impostors"]) == (0.1, 40) and answer["low"] <= answer[
        "threshold"
    ]


def test_people_who_are_enrolled_are_no_impostors(place, gallery, tmp_path):
    import shutil

    mixed = shutil.copytree(place / "unknown", tmp_path / "mixed")
    shutil.copytree(place / "known" / "d0", mixed / "d0")
    code, out, err = gallery("calibrate", "--run", place / "run", "--images", mixed, "--far", 0.1)
    assert code == 0 and "40 impostors of 4 people" in out
    assert "1 of 5 people to calibrate with are enrolled (d0): " in err and "left out" in err


def test_a_picture_is_enrolled_once(place, gallery):
    run = ["--run", place / "run", "--images", place / "known"]
    code, out, _ = gallery("enroll", *run)
    assert code == 0 and "enrolled 0 pictures of 3 people (30 more were there already)" in out


def test_folders_of_people_in_a_folder_are_told(place, gallery):
    """`--images TOP` of TOP/part/PERSON/1.jpg made one person of all of a part."""
    code, _, err = gallery("enroll", "--run", place / "run", "--images", place)
    assert code == 1 and f"give {place / 'known'} in place of {place}" in err


def test_crops_that_are_turned_by_exif_are_crops(tmp_path):
    from hypersphere.commands._gallery import are_crops

    tags = Image.Exif()
    tags[0x0112] = 6
    Image.new("RGB", (112, 96)).save(tmp_path / "turned.jpg", exif=tags)
    Image.new("RGB", (112, 96)).save(tmp_path / "wide.jpg")
    assert are_crops([str(tmp_path / "turned.jpg")]) and not are_crops([str(tmp_path / "wide.jpg")])
