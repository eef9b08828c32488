"""A folder of own pictures: where it is, broken files, orientation, single ones, people."""

import json

import numpy as np
import pytest
import torch
from PIL import Image

import hypersphere as hs
from hypersphere.data import DamagedData, MissingData, People, divide_people, read_image

from reference.data_files import save_picture as save


def people(folder, counts, size=(6, 5, 3)):
    for person, count in counts.items():
        (folder / person).mkdir(parents=True, exist_ok=True)
        for i in range(count):
            save(folder / person / f"{i}.png", size, seed=hash_of(person) + i)
    return folder


def hash_of(name):
    return sum(map(ord, name))


def test_root_is_the_folder_and_path_is_looked_for_from_here(tmp_path, monkeypatch):
    faces = people(tmp_path / "faces", {"ada": 4, "bob": 4})
    assert len(hs.data.load("folder", faces).train) == 6
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HYPERSPHERE_DATA", str(tmp_path / "elsewhere"))
    assert hs.data.load("folder", path="faces").classes == ["ada", "bob"]  # C.8
    assert hs.data.load("folder", tmp_path, path="faces").classes == ["ada", "bob"]
    with pytest.raises(MissingData, match="elsewhere"):
        hs.data.load("folder", path="nowhere")
    with pytest.raises(ValueError, match="--data.root"):
        hs.data.load("folder")


@pytest.mark.parametrize("lazy", [False, True])
def test_unreadable_pictures_are_listed_skipped_and_counted(tmp_path, lazy):
    people(tmp_path, {"ada": 20, "bob": 20})
    for name in ("ada/3.png", "bob/7.png"):
        (tmp_path / name).write_bytes(b"no picture")
    with pytest.warns(UserWarning, match=r"(?s)2 of 40 pictures cannot be read.*ada/3\.png"):
        split = hs.data.load("folder", tmp_path, lazy=lazy)
    assert len(split.train) + len(split.test) == 38
    assert [p[-9:] for p in split.notes["unreadable"]] == ["ada/3.png", "bob/7.png"]
    batch = split.train.take(torch.arange(len(split.train)))
    assert len(batch) == len(split.train.labels)
    for share, allowed in ((0.02, 1), (0.0, 0)):
        with pytest.raises(DamagedData, match=rf"2 of 40 .*; {allowed} may be .*unreadable"):
            hs.data.load("folder", tmp_path, lazy=lazy, unreadable=share)


def test_labels_stay_with_their_pictures_when_some_are_left_out(tmp_path):
    people(tmp_path, {"ada": 10, "bob": 10})
    for name in ("ada/0.png", "bob/9.png"):
        (tmp_path / name).write_bytes(b"")
    with pytest.warns(UserWarning, match="cannot be read"):
        split = hs.data.load("folder", tmp_path, unreadable=0.2)
    known = {}
    for k, person in enumerate(("ada", "bob")):
        for i in range(10):
            if f"{person}/{i}" not in ("ada/0", "bob/9"):
                known[read_image(tmp_path / person / f"{i}.png").tobytes()] = k
    for part in (split.train, split.test):
        for image, label in zip(part.images, part.labels.tolist(), strict=True):
            assert known.pop(image.numpy().tobytes()) == label
    assert not known


@pytest.mark.parametrize("orientation", range(1, 9))
def test_pictures_stand_upright(tmp_path, orientation):
    """Each value of the EXIF entry, for a picture stored turned or mirrored accordingly."""
    upright = np.arange(24, dtype=np.uint8).reshape(4, 6) * 10
    turns = {
        1: upright,
        2: upright[:, ::-1],
        3: upright[::-1, ::-1],
        4: upright[::-1],
        5: upright.T,
        6: np.rot90(upright, 1),
        7: np.rot90(upright, 2).T,
        8: np.rot90(upright, -1),
    }
    picture = Image.fromarray(np.ascontiguousarray(turns[orientation]))
    exif = picture.getexif()
    exif[0x0112] = orientation
    picture.save(tmp_path / "a.png", exif=exif)
    np.testing.assert_array_equal(read_image(tmp_path / "a.png")[0], upright)


def test_people_with_one_picture(tmp_path):
    faces = people(tmp_path / "faces", {"ada": 1, "bob": 6, "cy": 1, "dot": 5})
    split = hs.data.load("folder", faces)  # closed set: one picture is trained on, never tested
    assert split.train.counts().tolist() == [1, 4, 1, 4] and split.test.counts()[0] == 0
    alone = people(tmp_path / "alone", {"ada": 1, "bob": 1})
    with pytest.raises(ValueError, match="has a single picture.*open_set"):
        hs.data.load("folder", alone)


def test_a_split_by_person_is_made_kept_and_taken_again(tmp_path):
    counts = {f"p{i:02d}": 6 for i in range(20)} | {f"q{i:02d}": 1 for i in range(10)}
    faces = people(tmp_path / "faces", counts)
    file = tmp_path / "people.json"
    split = hs.data.load("folder", faces, protocol="open_set", people=str(file))
    kept = People.load(file)
    assert split.notes["people"] == json.loads(file.read_text())
    assert split.train.classes == kept.train and len(kept.train) == 12
    assert split.pairs.dataset.classes == kept.calibration
    assert split.reserved.classes == kept.test
    every = kept.train + kept.calibration + kept.test
    assert sorted(every) == sorted(counts) and not any(n[0] == "q" for n in kept.train)
    several = [sum(counts[n] > 1 for n in part) for part in (kept.calibration, kept.test)]
    assert several == [4, 4]
    again = hs.data.load("folder", faces, protocol="open_set", people=str(file), seed=9)
    assert again.train.classes == split.train.classes
    other = hs.data.load("folder", faces, protocol="open_set", seed=9)
    assert other.train.classes != split.train.classes
    file.write_text(json.dumps({"train": ["p00"], "calibration": ["p00"], "test": []}))
    with pytest.raises(ValueError, match="'p00' is in train and in calibration"):
        hs.data.load("folder", faces, protocol="open_set", people=str(file))
    file.write_text(json.dumps({"train": ["p00", "zoe"], "calibration": ["p01"], "test": []}))
    with pytest.raises(ValueError, match="no pictures, such as 'zoe'"):
        hs.data.load("folder", faces, protocol="open_set", people=str(file))
    with pytest.raises(ValueError, match="leaves 0 to train on"):
        divide_people({"a": 1, "b": 1, "c": 4})


def test_parts_made_by_hand_are_not_divided_again(tmp_path):
    for part in ("train", "test"):
        people(tmp_path / part, {"ada": 2, "bob": 2})
    assert len(hs.data.load("folder", tmp_path).test) == 4
    with pytest.raises(ValueError, match="divided into parts already"):
        hs.data.load("folder", tmp_path, protocol="open_set")


@pytest.mark.parametrize("empty", ["train", "calibration"])
def test_lists_of_people_without_anybody_are_named(tmp_path, empty):
    faces = people(tmp_path / "faces", {f"p{i}": 4 for i in range(8)})
    lists = {"train": ["p0", "p1", "p2"], "calibration": ["p3", "p4", "p5"], "test": ["p6"]}
    file = tmp_path / "people.json"
    file.write_text(json.dumps({**lists, empty: []}))
    with pytest.raises(ValueError, match=rf"people\.json: {empty} names nobody; .*people are"):
        hs.data.load("folder", faces, protocol="open_set", people=str(file))


@pytest.mark.parametrize("lazy", [False, True])
@pytest.mark.parametrize("protocol", ["closed_set", "open_set"])
def test_a_class_without_a_readable_picture_is_no_class(tmp_path, lazy, protocol):
    faces = people(tmp_path / "faces", {f"p{i}": 4 for i in range(10)})
    options = {"protocol": protocol, "lazy": lazy, "unreadable": 0.2}
    whole = hs.data.load("folder", faces, **options)
    lost = whole.classes[1]
    for file in (faces / lost).iterdir():
        file.write_bytes(b"no picture")
    said = pytest.warns(UserWarning, match=rf"'{lost}' .*no class")
    with pytest.warns(UserWarning, match="4 of 40"), said:
        split = hs.data.load("folder", faces, **options)
    assert split.classes == [name for name in whole.classes if name != lost]
    assert split.test.classes == split.classes and int(split.train.counts().min()) > 0
    names = [[w.classes[k] for k in w.labels.tolist()] for w in (whole.test, split.test)]
    assert names[1] == [name for name in names[0] if name != lost]
    if protocol == "open_set":
        assert lost in split.notes["people"]["train"]  # the file of people stays as it is


def test_a_broken_picture_is_told_with_its_reason_alone(tmp_path):
    """The message ended with "A fresh copy: where the picture came from"."""
    people(tmp_path, {"ada": 1})
    whole = next((tmp_path / "ada").iterdir())
    cut = tmp_path / "cut.png"
    cut.write_bytes(whole.read_bytes()[:60])
    (tmp_path / "text.png").write_bytes(b"no picture")
    for path, reason in ((cut, "truncated"), (tmp_path / "text.png", "no format that Pillow")):
        with pytest.raises(DamagedData, match=f"{path.name} is damaged: .*{reason}") as error:
            hs.data.read_image(path)
        assert "fresh copy" not in str(error.value) and str(error.value).count(path.name) == 1
