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
    assert code in (0, 3) and len(out.splitlines()) == 20


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
    assert code == 3 and good["same"] and good["score"] > 0.99
    assert bad["source"].endswith("broken.png") and bad["error"]
    code, out, _ = gallery("identify", *words, "--threshold", 1.5)
    assert code == 3 and "0.png: unknown 1.0000" in out
    code, out, _ = gallery("identify", *words, "--threshold", 1.5, "--json")
    good, bad = json.loads(out)
    assert good["matches"] == [] and good["best_score"] > 0.99 and bad["error"]
    code, _, err = gallery("identify", *words, "--threshold", "nan")
    assert code == 1 and "expected a finite number" in err
