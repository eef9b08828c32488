"""MegaFace-style lists: gallery, probes, distractors."""

from __future__ import annotations

import json

import pytest

import hypersphere as hs
from hypersphere.data import DamagedData, Identification, MissingData

from reference.data_files import save_picture as save


@pytest.fixture
def lists(tmp_path):
    folder = tmp_path / "megaface"
    names = ["ann/1.png", "ann/2.png", "bob/1.png", "bob/2.png", "bob/3.png", "cyd/1.png"]
    for i, name in enumerate(names):
        save(folder / "faces" / name, (6, 5, 3), i)
    crowd = [f"{i}.png" for i in range(5)]
    for i, name in enumerate(crowd):
        save(folder / "crowd" / name, (6, 5, 3), 50 + i)
    content = {"path": names, "id": [n.split("/")[0] for n in names]}
    (folder / "probes.json").write_text(json.dumps(content))
    (folder / "distractors.json").write_text(json.dumps({"path": crowd}))
    return tmp_path


def load(root, **options) -> Identification:
    places = {"probe_images": "faces", "distractor_images": "crowd"}
    return hs.data.load("megaface", root, **places, **options)


def test_the_first_picture_of_each_person_is_the_gallery(lists):
    data = load(lists)
    assert list(data.gallery.classes) == ["ann", "bob", "cyd"]
    assert data.gallery.labels.tolist() == [0, 1, 2]
    assert data.probes.labels.tolist() == [0, 1, 1]
    assert data.distractors.labels.tolist() == [-1] * 5
    probe = hs.data.read_image(lists / "megaface/faces/bob/3.png")
    assert data.probes.images[2].tolist() == probe.tolist()
    assert len(load(lists, limit=2).distractors) == 2
    assert load(lists, distractors=None).distractors is None
    assert len(load(lists, lazy=True).distractors.paths) == 5


def test_a_gallery_of_its_own_as_text(lists):
    (lists / "megaface" / "gallery.txt").write_text("cyd/1.png cyd\nann/1.png ann\nbob/1.png bob\n")
    data = load(lists, gallery="gallery.txt")
    assert data.gallery.labels.tolist() == [2, 0, 1] and len(data.probes) == 6
    (lists / "megaface" / "gallery.txt").write_text("ann/1.png ann\n")
    with pytest.raises(ValueError, match="2 people of .* are not in the gallery, e.g. 'bob'"):
        load(lists, gallery="gallery.txt")


def test_wrong_lists_are_named(lists):
    with pytest.raises(ValueError, match="6 distractors are wanted; the list has 5"):
        load(lists, limit=6)
    probes = lists / "megaface" / "probes.json"
    for text, message in [
        ('{"path": ["a.png"]}', "1 paths, 0 ids"),
        ('{"path": ', "JSON"),
        ("", "0 paths"),
    ]:
        probes.write_text(text)
        with pytest.raises(DamagedData, match=message):
            load(lists)
    probes.write_text("ann/1.png ann\nbob/1.png bob\n")
    with pytest.raises(ValueError, match="no probe is left"):
        load(lists)
    probes.unlink()
    with pytest.raises(MissingData, match=r"the list probes\.json"):
        load(lists)
