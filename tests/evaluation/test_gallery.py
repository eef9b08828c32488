"""Galleries: enrolling, asking, forgetting, and files that survive crashes and refuse strangers."""

import json
import math
import multiprocessing
import time

import numpy as np
import pytest
import torch
from torch import nn

from hypersphere.evaluation import Gallery, GalleryError, faiss_search, model_hash
from hypersphere.evaluation import search as search_rows
from hypersphere.evaluation.gallery.store import locked


def filled(count=5, each=1, dim=8):
    gallery, features = Gallery(threshold=0.5), torch.randn(count * each, dim)
    gallery.enroll_many([f"person {i // each}" for i in range(count * each)], features)
    return gallery, features


def test_identify_verify_remove():
    gallery, features = filled(each=3)
    assert len(gallery) == 15 and len(gallery.people) == 5 and "person 2" in gallery
    best = gallery.identify(features[7], top=3)
    assert best[0].name == "person 2" and best[0].score == pytest.approx(1, abs=1e-5)
    assert len({m.name for m in gallery.identify(features[7], threshold=-1)}) == 5
    assert gallery.verify("person 2", features[7]) == (True, pytest.approx(1, abs=1e-5))
    assert gallery.identify(features[7], threshold=1.1) == []
    assert gallery.remove("person 2") == 3
    assert "person 2" not in gallery and len(gallery) == 12
    assert gallery.identify(features[7], threshold=-1)[0].score < 0.99
    assert gallery.identify(features[14], top=1)[0].name == "person 4"  # the rest is still there
    with pytest.raises(GalleryError, match="nobody is enrolled as 'person 2'"):
        gallery.remove("person 2")
    with pytest.raises(GalleryError, match="did you mean 'person 3'"):
        gallery.verify("persn 3", features[0])


def test_several_features_are_searched_by_their_best():
    gallery, features = filled(count=20, each=4, dim=6)
    query = torch.randn(6)
    scores = nn.functional.cosine_similarity(features, query, dim=1).view(20, 4).amax(1)
    order = scores.argsort(descending=True)[:5].tolist()
    found = gallery.identify(query, threshold=-1)
    assert [m.name for m in found] == [f"person {i}" for i in order]
    assert [m.score for m in found] == pytest.approx(scores[order].tolist(), abs=1e-5)


def test_an_emptied_gallery_takes_another_dimension():
    gallery, _ = filled(count=1)
    gallery.remove("person 0")
    with pytest.raises(GalleryError, match="empty"):
        gallery.identify(torch.randn(3))
    gallery.enroll("ada", torch.randn(3))
    assert gallery.dim == 3


@pytest.mark.parametrize(
    ("sample", "message"),
    [
        (torch.randn(9), "dimension 8; got 9"),
        (torch.full((8,), float("nan")), "row 0 has NaN"),
        (torch.zeros(8), "a feature is zero"),
        (torch.rand(1, 4, 4), "no model"),
    ],
)
def test_bad_samples_leave_the_gallery_as_it_was(sample, message):
    gallery, _ = filled()
    with pytest.raises(ValueError, match=message):
        gallery.enroll("eve", sample)
    assert len(gallery) == 5 and "eve" not in gallery
    with pytest.raises(ValueError, match="name 0 is empty"):
        gallery.enroll(" ", torch.randn(8))


@pytest.mark.parametrize("size", [1e300, 1e-300, 1e-320])
def test_features_of_any_size_count_by_their_direction(tmp_path, size):
    """They became infinite, or zero, in float32; infinite ones were saved and never read again."""
    rows = torch.randn(2, 8, dtype=torch.float64)
    gallery, plain = Gallery(), Gallery()
    for name, row in zip("ab", rows, strict=True):
        gallery.enroll(name, size * row)
        plain.enroll(name, row)
    gallery.save(tmp_path)
    found = Gallery.load(tmp_path)
    assert torch.allclose(found.features, plain.features, atol=1e-2 if size < 1e-310 else 1e-6)
    assert found.verify("a", size * rows[0], threshold=0.99)[0]


@pytest.mark.parametrize(
    "names",
    [
        [math.nan, None],
        torch.tensor([math.nan, 0.5]),
        np.array([0.5, 1.0]),
        ["ada", True],
        ["ada", b"bob"],
        [torch.tensor(0.5), torch.tensor([1, 2])],
        torch.ones(2, 2, dtype=torch.long),
    ],
    ids=repr,
)
def test_a_name_is_a_text_or_a_whole_number(names):
    gallery = Gallery()
    with pytest.raises(TypeError, match="names: expected texts or whole numbers; got .* at place"):
        gallery.enroll_many(names, torch.eye(2, 4))
    assert len(gallery) == 0
    with pytest.raises(TypeError, match="names: expected texts"):
        gallery.enroll(None, torch.ones(4))
    gallery.enroll("eve", torch.ones(4))
    with pytest.raises(TypeError, match="labels: expected texts or whole numbers"):
        gallery.calibrate(torch.eye(2, 4), names, 0.5)


@pytest.mark.parametrize("kind", [list, tuple, np.array, torch.tensor, lambda n: [*map(int, n)]])
def test_whole_numbers_are_names_of_their_digits(kind):
    gallery = Gallery()
    assert gallery.enroll_many(kind(torch.tensor([3, 12]).numpy()), torch.eye(2, 4)) == 2
    assert gallery.enroll_many([torch.tensor(7)], torch.ones(1, 4)) == 1
    gallery.enroll(8, -torch.ones(4))
    assert gallery.people == ["3", "12", "7", "8"]
    assert gallery.verify(8, -torch.ones(4), threshold=0.5)[0] and gallery.remove(8) == 1
    with pytest.raises(GalleryError, match="nobody is enrolled as '9'"):
        gallery.remove(9)
    with pytest.raises(TypeError, match="name: expected texts or whole numbers; got None"):
        gallery.verify(None, torch.ones(4))


def test_pictures_go_through_the_model_and_its_mirror():
    model = nn.Sequential(nn.Flatten(), nn.Linear(12, 4))
    picture = torch.randint(256, (1, 3, 4), dtype=torch.uint8)
    for flips, dim in (("unused", 4), ("concatenate", 8)):
        gallery = Gallery(model, flips=flips, threshold=0.4)
        gallery.enroll("ada", picture)
        assert gallery.dim == dim
        expected = model(picture[None] / 255)
        assert torch.allclose(gallery.features[0, :4] / gallery.features[0, 0],
                              expected[0] / expected[0, 0], rtol=1e-3)  # fmt: skip
        assert gallery.verify("ada", picture)[0]


def test_a_list_of_files_is_enrolled(tmp_path):
    """It ended in a message of torch.as_tensor."""
    image = pytest.importorskip("PIL.Image", reason="needs the extra data")
    paths = [tmp_path / f"{i}.png" for i in range(3)]
    for path in paths:
        pixels = torch.randint(256, (3, 4), dtype=torch.uint8).numpy()
        image.fromarray(pixels).save(path)
    gallery = Gallery(nn.Sequential(nn.Flatten(), nn.Linear(12, 4)), threshold=0.4)
    gallery.enroll("ada", paths)
    gallery.enroll("bob", str(paths[0]))
    assert gallery.names == ["ada", "ada", "ada", "bob"]
    for ask in (gallery.identify, lambda files: gallery.verify("ada", files)):
        with pytest.raises(ValueError, match="expected one sample; got a list of 3 files"):
            ask(paths)
    with pytest.raises(ValueError, match="no model"):
        Gallery().enroll("ada", paths)


def test_saved_galleries_come_back(tmp_path):
    gallery, _ = filled(each=2)
    gallery.save(tmp_path / "g")
    again = Gallery.load(tmp_path / "g")
    assert again.names == gallery.names and again.threshold == 0.5
    assert torch.equal(again.features, gallery.features)
    again.enroll("new", torch.randn(8))
    again.save(tmp_path / "g")
    files = sorted(p.name for p in (tmp_path / "g").iterdir())
    assert len(files) == 2 and files[1] == "gallery.json"  # the old features are gone
    assert "new" in Gallery.load(tmp_path / "g") and "new" not in gallery


def test_features_of_another_model_are_refused(tmp_path):
    one, other = (nn.Sequential(nn.Flatten(), nn.Linear(4, 3)) for _ in range(2))
    gallery = Gallery(one)
    gallery.enroll("ada", torch.rand(1, 2, 2))
    gallery.save(tmp_path)
    assert Gallery.load(tmp_path, one).fingerprint == model_hash(one)
    with pytest.raises(GalleryError, match=f"come from model {model_hash(one)}"):
        Gallery.load(tmp_path, other)
    with pytest.raises(GalleryError, match="enroll again"):
        Gallery.load(tmp_path, fingerprint="something else")


def test_damaged_galleries_say_what_is_wrong(tmp_path):
    with pytest.raises(FileNotFoundError, match="no gallery at"):
        Gallery.load(tmp_path)
    gallery, _ = filled()
    gallery.save(tmp_path)
    record = json.loads((tmp_path / "gallery.json").read_text())
    features = tmp_path / record["features"]
    good = features.read_bytes()
    features.write_bytes(good[: len(good) // 2])
    with pytest.raises(GalleryError, match="damaged"):
        Gallery.load(tmp_path)
    features.unlink()
    with pytest.raises(GalleryError, match="is missing"):
        Gallery.load(tmp_path)
    features.write_bytes(good)
    for change, message in [
        ({"format": 99}, "written in format 99"),
        ({"names": ["a"]}, "1 names but features"),
    ]:
        (tmp_path / "gallery.json").write_text(json.dumps(record | change))
        with pytest.raises(GalleryError, match=message):
            Gallery.load(tmp_path)
    (tmp_path / "gallery.json").write_text("{")
    with pytest.raises(GalleryError, match="not a gallery"):
        Gallery.load(tmp_path)
    (tmp_path / "gallery.json").write_text("{}")
    with pytest.raises(GalleryError, match="it lacks"):
        Gallery.load(tmp_path)


@pytest.mark.parametrize("moment", ["features", "record"])
def test_a_crash_while_saving_leaves_the_old_gallery(tmp_path, monkeypatch, moment):
    gallery, _ = filled()
    gallery.save(tmp_path)
    gallery.enroll("late", torch.randn(8))
    real, calls = __import__("os").replace, []

    def crash(source, target):
        calls.append(target)
        if len(calls) == (1 if moment == "features" else 2):
            raise KeyboardInterrupt
        real(source, target)

    monkeypatch.setattr("os.replace", crash)
    with pytest.raises(KeyboardInterrupt):
        gallery.save(tmp_path)
    monkeypatch.undo()
    assert "late" not in Gallery.load(tmp_path)
    gallery.save(tmp_path)
    assert "late" in Gallery.load(tmp_path)


def _enroll_in_turn(folder, name):
    torch.set_num_threads(1)
    for i in range(3):
        with locked(folder):
            gallery = Gallery.load(folder)
            gallery.enroll(f"{name}{i}", torch.randn(4))
            gallery.save(folder)


@pytest.mark.slow
def test_two_processes_enroll_without_losing_anyone(tmp_path):
    gallery = Gallery()
    gallery.enroll("first", torch.randn(4))
    gallery.save(tmp_path)
    spawn = multiprocessing.get_context("spawn")
    workers = [spawn.Process(target=_enroll_in_turn, args=(tmp_path, n)) for n in "ab"]
    for w in workers:
        w.start()
    for w in workers:
        w.join(60)
    assert [w.exitcode for w in workers] == [0, 0]
    assert len(Gallery.load(tmp_path)) == 7


def test_ten_thousand_people_are_asked_interactively(tmp_path):
    gallery, features = Gallery(threshold=0.4), torch.randn(10_000, 128)
    for i in range(0, 10_000, 100):
        gallery.enroll_many([f"p{j}" for j in range(i, i + 100)], features[i : i + 100])
    start = time.process_time()
    for i in range(20):
        assert gallery.identify(features[i])[0].name == f"p{i}"
    assert (time.process_time() - start) / 20 < 0.1
    gallery.save(tmp_path)
    assert len(Gallery.load(tmp_path).people) == 10_000


def test_two_writers_of_the_same_picture_enroll_it_once(tmp_path):
    first = Gallery()
    first.enroll_many(["a"], torch.eye(1, 4))
    first.save(tmp_path / "g")
    one, two = Gallery.load(tmp_path / "g"), Gallery.load(tmp_path / "g")
    for writer in (one, two):  # the second finds that the first has saved
        assert writer.enroll_many(["b"], torch.eye(4)[1:2]) == 1
        writer.save(tmp_path / "g")
    assert sorted(Gallery.load(tmp_path / "g").names) == ["a", "b"]


def test_an_empty_gallery_is_told():
    query = torch.ones(1, 4)
    for ask in (Gallery().identify_many, lambda q: Gallery().identify(q[0])):
        with pytest.raises(GalleryError, match="the gallery is empty: enroll somebody first"):
            ask(query)
    for search in (search_rows, faiss_search):
        with pytest.raises(ValueError, match="the gallery is empty, so that there is nothing to"):
            search(query, torch.empty(0, 4))
