"""Gallery folders: checked on load, safe beside other readers and writers, safe to print."""

import errno
import json
import math
import multiprocessing
import os
import threading
import time

import numpy as np
import pytest
import torch
from safetensors import SafetensorError
from safetensors.torch import load_file, save_file

from hypersphere import cli
from hypersphere._terminal import printable
from hypersphere.evaluation import Gallery, GalleryError
from hypersphere.evaluation.gallery import store


def saved(folder, count=4):
    gallery = Gallery(threshold=0.5)
    gallery.enroll_many([f"p{i}" for i in range(count)], torch.eye(max(count, 4))[:count])
    gallery.save(folder)
    return json.loads((folder / "gallery.json").read_text())


def change(folder, **values):
    record = json.loads((folder / "gallery.json").read_text())
    (folder / "gallery.json").write_text(json.dumps(record | values))


def test_swapped_rows_are_noticed(tmp_path):
    record = saved(tmp_path)
    path = tmp_path / record["features"]
    features = load_file(path)["features"]
    save_file({"features": features.flip(0).contiguous()}, path)
    with pytest.raises(GalleryError, match="do not match their checksum"):
        Gallery.load(tmp_path)


def test_swapped_names_are_noticed(tmp_path):
    record = saved(tmp_path)
    change(tmp_path, names=record["names"][::-1])
    with pytest.raises(GalleryError, match="do not match their checksum"):
        Gallery.load(tmp_path)


def test_a_gallery_without_a_checksum_of_names_still_loads(tmp_path):
    record = saved(tmp_path)
    del record["names_hash"]
    (tmp_path / "gallery.json").write_text(json.dumps(record))
    assert Gallery.load(tmp_path).names == record["names"]


def test_a_first_enrollment_that_was_cut_short_is_repeated(tmp_path, capsys):
    """But features whose gallery.json was lost are not thrown away."""
    words = ["gallery", "enroll", str(tmp_path / "g"), "--features", str(tmp_path / "probes.npz")]
    names = [f"p{i}" for i in range(4)]
    np.savez(tmp_path / "probes.npz", features=np.eye(4, dtype="f4"), names=names)
    assert cli.main(words) == 0
    gallery = json.loads((tmp_path / "g/gallery.json").read_text())
    (tmp_path / "g/gallery.json").unlink()
    assert cli.main(words) == 1
    assert "has features" in capsys.readouterr().err
    (tmp_path / "g/.new").touch()  # as it is until the first gallery.json is there
    assert cli.main(words) == 0
    assert json.loads((tmp_path / "g/gallery.json").read_text()) == gallery
    assert sorted(p.name for p in (tmp_path / "g").iterdir()) == [
        gallery["features"],
        "gallery.json",
    ]


@pytest.mark.parametrize("target", ["{victim}", "../victim.safetensors", "sub/x", ".", "", 7, None])
def test_features_are_a_plain_file_of_the_folder(tmp_path, target):
    victim = tmp_path / "victim.safetensors"
    save_file({"features": torch.eye(4)}, victim)
    folder = tmp_path / "g"
    saved(folder)
    name = target.format(victim=victim) if isinstance(target, str) else target
    change(folder, features=name)
    with pytest.raises(GalleryError, match="not a gallery"):
        Gallery.load(folder)
    gallery = Gallery()
    gallery.enroll("ada", torch.ones(4))
    gallery.save(folder)
    assert victim.exists()


@pytest.mark.parametrize(
    "values",
    [
        {"names": "abcd"},
        {"names": [1, 2, 3, 4]},
        {"names": {"a": 1}},
        {"names": ["a", "b", "c", " "]},
        {"threshold": "0.5"},
        {"threshold": []},
        {"calibration": 5},
        {"calibration": {"search": {}}},
        {"threshold": True},
        {"flips": 3},
        {"flips": "sideways"},
        {"model": 5},
        {"format": "1"},
    ],
    ids=str,
)
def test_values_of_another_type_are_refused(tmp_path, values):
    saved(tmp_path)
    change(tmp_path, **values)
    with pytest.raises(GalleryError, match="not a gallery"):
        Gallery.load(tmp_path)


@pytest.mark.parametrize("threshold", [None, 0.1], ids=str)
def test_a_threshold_that_was_changed_is_refused(tmp_path, threshold):
    saved(tmp_path)
    change(tmp_path, threshold=threshold)
    with pytest.raises(GalleryError, match="the threshold does not match its checksum"):
        Gallery.load(tmp_path)


def test_what_could_not_be_read_is_not_written(tmp_path):
    saved(tmp_path)
    before = {path.name: path.read_bytes() for path in tmp_path.iterdir()}
    with pytest.raises(ValueError, match="features: row 0 has NaN or infinite"):
        store.write_gallery(tmp_path, torch.full((1, 4), math.inf), ["a"], "", {})
    assert before == {path.name: path.read_bytes() for path in tmp_path.iterdir()}


@pytest.mark.parametrize("part", ["features", "record"])
def test_a_full_disk_is_told_with_the_file_and_leaves_the_old_gallery(
    tmp_path, monkeypatch, capsys, part
):
    """safetensors has an error of its own for it, which no command knew."""
    folder = tmp_path / "g"
    saved(folder)
    np.savez(
        tmp_path / "f.npz", features=np.eye(2, 4, dtype=np.float32), names=np.array(["x", "y"])
    )

    def full(*_):
        text = os.strerror(errno.ENOSPC)
        if part == "features":
            raise SafetensorError(f"I/O error: {text} (os error {errno.ENOSPC})")
        raise OSError(errno.ENOSPC, text)

    monkeypatch.setattr(
        *(("safetensors.torch.save_file", full) if part == "features" else ("os.fsync", full))
    )
    before = {path.name: path.read_bytes() for path in folder.iterdir()}
    assert cli.main(["gallery", "enroll", str(folder), "--features", str(tmp_path / "f.npz")]) == 1
    err = capsys.readouterr().err
    assert "No space left on device: '" + str(folder) in err and err.count("\n") == 1
    assert before == {path.name: path.read_bytes() for path in folder.iterdir()}


def test_a_threshold_that_is_no_number_is_refused(tmp_path):
    saved(tmp_path)
    text = (tmp_path / "gallery.json").read_text()
    (tmp_path / "gallery.json").write_text(text.replace("0.5", "NaN"))
    with pytest.raises(GalleryError, match="not a gallery"):
        Gallery.load(tmp_path)


def test_readers_beside_a_writer_see_one_state_or_the_next(tmp_path):
    saved(tmp_path)
    stop, errors, seen = threading.Event(), [], []

    def read():
        while not stop.is_set():
            try:
                gallery = Gallery.load(tmp_path)
                assert len(gallery.names) == len(gallery.features)
                seen.append(len(gallery))
            except Exception as error:
                errors.append(error)

    readers = [threading.Thread(target=read) for _ in range(2)]
    for reader in readers:
        reader.start()
    writer = Gallery.load(tmp_path)
    for i in range(60):
        writer.enroll(f"new{i}", torch.randn(4))
        writer.save(tmp_path)
    stop.set()
    for reader in readers:
        reader.join(30)
    assert errors == [] and seen
    assert len(list(tmp_path.glob("features-*"))) <= 2  # old generations do not pile up


def test_a_reader_that_is_overtaken_reads_again(tmp_path, monkeypatch):
    """The features that gallery.json named are replaced before the reader opens them."""
    from hypersphere.evaluation.gallery import store

    saved(tmp_path)
    other = Gallery.load(tmp_path)
    real, once = store._read_record, []

    def overtaken(folder):
        record = real(folder)
        if not once:
            once.append(1)
            for i in range(3):
                other.enroll(f"late{i}", torch.randn(4))
                other.save(tmp_path)
        return record

    monkeypatch.setattr(store, "_read_record", overtaken)
    assert len(Gallery.load(tmp_path)) == 7


def _add(folder, name, start):
    torch.set_num_threads(1)
    start.wait(60)
    for i in range(5):
        gallery = Gallery.load(folder)
        gallery.enroll(f"{name}{i}", torch.randn(4))
        gallery.save(folder)


@pytest.mark.slow
def test_two_writers_in_python_lose_nobody(tmp_path):
    saved(tmp_path)
    spawn = multiprocessing.get_context("spawn")
    start = spawn.Barrier(2)
    workers = [spawn.Process(target=_add, args=(tmp_path, n, start)) for n in "ab"]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join(120)
    assert [w.exitcode for w in workers] == [0, 0]
    assert len(Gallery.load(tmp_path)) == 4 + 10


def test_changes_of_two_galleries_of_one_folder_are_joined(tmp_path):
    saved(tmp_path)
    one, two = Gallery.load(tmp_path), Gallery.load(tmp_path)
    one.enroll("ada", torch.randn(4))
    one.remove("p0")
    one.save(tmp_path)
    two.enroll("bob", torch.randn(4))
    two.remove("p1")
    two.save(tmp_path)
    found = Gallery.load(tmp_path)
    assert sorted(found.people) == ["ada", "bob", "p2", "p3"] == sorted(two.people)
    assert torch.equal(found.features, two.features)
    new = Gallery()
    new.enroll("eve", torch.randn(4))
    new.save(tmp_path)  # never read from here: it replaces what there was
    assert Gallery.load(tmp_path).people == ["eve"]


def test_editing_holds_the_folder(tmp_path):
    with Gallery.edit(tmp_path / "g") as gallery:
        gallery.enroll("ada", torch.randn(4))
    with Gallery.edit(tmp_path / "g") as gallery:
        gallery.enroll("bob", torch.randn(4))
        gallery.save(tmp_path / "g")  # the lock is already held: no waiting for oneself
    assert Gallery.load(tmp_path / "g").people == ["ada", "bob"]
    with pytest.raises(RuntimeError), Gallery.edit(tmp_path / "g") as gallery:
        gallery.enroll("eve", torch.randn(4))
        raise RuntimeError
    assert Gallery.load(tmp_path / "g").people == ["ada", "bob"]


def test_a_hundred_thousand_people_are_listed_in_seconds(tmp_path, capsys):
    gallery = Gallery()
    gallery.enroll_many([f"p{i}" for i in range(100_000)], torch.randn(100_000, 4))
    gallery.save(tmp_path)
    start = time.process_time()
    assert cli.main(["gallery", "list", str(tmp_path)]) == 0
    assert time.process_time() - start < 10
    assert capsys.readouterr().out.count("\n") == 100_000


def test_control_characters_never_reach_a_terminal(tmp_path, capsys):
    evil = "\x1b]0;owned\x07\x1b[2Jeve\r\n\x9b31m\u202eada\ud800"
    assert printable(evil).isprintable()
    assert printable("Łukasz 山田 zoë") == "Łukasz 山田 zoë"
    assert printable("a\nb\x1b", newlines=True) == "a\nb\\x1b"
    gallery, feature = Gallery(threshold=-1.0), torch.ones(4)
    gallery.enroll(evil.replace("\ud800", ""), feature)
    gallery.save(tmp_path / "g\x1b[1m")
    save_file({"features": feature[None], "labels": torch.tensor([0])}, tmp_path / "q.safetensors")
    name = evil.replace("\ud800", "")
    folder = str(tmp_path / "g\x1b[1m")
    query = ["--features", str(tmp_path / "q.safetensors")]
    for arguments in (
        ["list", folder],
        ["identify", folder, *query],
        ["verify", folder, name, *query],
        ["verify", folder, "nobody\x1b[0m", *query],
        ["enroll", folder, *query],
        ["remove", folder, name],
        ["list", folder + "\x1b[3m"],
    ):
        cli.main(["gallery", *arguments])
        shown = capsys.readouterr()
        assert shown.out + shown.err
        for line in (shown.out + shown.err).splitlines():
            assert line.isprintable(), line


def test_a_gallery_says_whether_its_pictures_were_aligned(tmp_path):
    gallery = Gallery(aligned=True)
    gallery.enroll("ada", torch.randn(8))
    assert Gallery.load(gallery.save(tmp_path)).aligned is True
    path = tmp_path / "gallery.json"
    record = json.loads(path.read_text())
    path.write_text(json.dumps(record | {"aligned": "yes"}))
    with pytest.raises(GalleryError, match="aligned: expected true, false or null, got 'yes'"):
        Gallery.load(tmp_path)
    del record["aligned"]  # of an older version
    path.write_text(json.dumps(record))
    assert Gallery.load(tmp_path).aligned is None
