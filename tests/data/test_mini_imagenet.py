"""mini-ImageNet csv lists."""

from __future__ import annotations

import pytest

import hypersphere as hs
from hypersphere.data import DamagedData, EpisodeSampler, MissingData

from reference.data_files import save_picture as save


@pytest.fixture
def few(tmp_path):
    folder = tmp_path / "mini-imagenet"
    for p, (part, classes) in enumerate({"train": "ab", "val": "c", "test": "de"}.items()):
        rows = ["filename,label"]
        for c in classes:
            for i in range(4):
                # The validation pictures lie in a folder per class, the others all together.
                place = f"n0{c}/{c}{i}.jpg" if part == "val" else f"{c}{i}.jpg"
                save(folder / "images" / place, (9, 8, 3), seed=10 * p + i)
                rows.append(f"{c}{i}.jpg,n0{c}")
        folder.joinpath(f"{part}.csv").write_text("\n".join(rows) + "\n")
    return tmp_path


def test_parts_have_their_own_classes(few):
    split = hs.data.load("mini-imagenet", few)
    assert split.train.images.shape == (8, 3, 84, 84)
    assert [list(p.classes) for p in (split.train, split.validation, split.test)] == [
        ["n0a", "n0b"],
        ["n0c"],
        ["n0d", "n0e"],
    ]
    episode = EpisodeSampler(split.test.labels, ways=2, shots=1, queries=3, episodes=1)[0]
    assert split.test.take(episode.query.flatten()).shape == (6, 3, 84, 84)
    lazy = hs.data.load("mini-imagenet", few, size=16, lazy=True)
    assert lazy.test.shape == (3, 16, 16) and len(lazy.test) == 8


def test_damage_is_named(few):
    folder = few / "mini-imagenet"
    (folder / "val.csv").write_text("filename,label\na0.jpg,n0a\n")
    with pytest.raises(ValueError, match="'n0a' is a training class"):
        hs.data.load("mini-imagenet", few)
    (folder / "val.csv").write_text("file,class\na,b\n")
    with pytest.raises(DamagedData, match="columns filename,label"):
        hs.data.load("mini-imagenet", few)
    (folder / "val.csv").write_text("filename,label\na0.jpg,\n")
    with pytest.raises(DamagedData, match="on every line"):
        hs.data.load("mini-imagenet", few)
    (folder / "val.csv").write_text("filename,label\nzz.jpg,n0c\n")
    with pytest.raises(MissingData, match=r"images/zz\.jpg or .*images/n0c/zz\.jpg.*image-net"):
        hs.data.load("mini-imagenet", few)
    (folder / "val.csv").unlink()
    with pytest.raises(MissingData, match=r"val\.csv is missing.*meta-learning-lstm"):
        hs.data.load("mini-imagenet", few)
