"""Pictures: decoding, class folders, and pictures that stay in their files."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from PIL import Image

import hypersphere as hs
from hypersphere.data import (
    BatchLoader,
    DamagedData,
    ImageFiles,
    MissingData,
    Normalize,
    read_image,
    read_images,
)

from reference.data_files import save_picture as save


def test_modes_and_sizes(tmp_path):
    color = save(tmp_path / "c.png")
    grey = save(tmp_path / "g.png", (5, 4))
    np.testing.assert_array_equal(read_image(tmp_path / "c.png"), color.transpose(2, 0, 1))
    np.testing.assert_array_equal(read_image(tmp_path / "g.png"), grey[None])
    assert read_image(tmp_path / "g.png", mode="RGB").shape == (3, 5, 4)
    assert read_image(tmp_path / "c.png", size=(7, 9), mode="L").shape == (1, 7, 9)
    Image.fromarray(grey > 99).save(tmp_path / "bit.png")
    assert set(np.unique(read_image(tmp_path / "bit.png"))) == {0, 255}
    Image.fromarray(grey.astype(np.uint16) * 200).save(tmp_path / "deep.png")
    with pytest.raises(DamagedData, match="I;16 pixels, not 8 bits"):
        read_image(tmp_path / "deep.png")


def test_many_pictures_keep_their_order(tmp_path):
    paths = [str(tmp_path / f"{i}.png") for i in range(150)]
    expected = [save(tmp_path / f"{i}.png", seed=i).transpose(2, 0, 1) for i in range(150)]
    assert torch.equal(read_images(paths), torch.from_numpy(np.stack(expected)))
    save(tmp_path / "77.png", (6, 4, 3))
    with pytest.raises(ValueError, match=r"77\.png is 6x4, .*0\.png is 5x4: give size"):
        read_images(paths)
    assert read_images(paths, size=4).shape == (150, 3, 4, 4)


def test_broken_and_missing_pictures_are_named(tmp_path):
    save(tmp_path / "a.jpg", (40, 40, 3))
    whole = (tmp_path / "a.jpg").read_bytes()
    for content in (b"", b"no picture", whole[: len(whole) // 2]):
        (tmp_path / "b.jpg").write_bytes(content)
        with pytest.raises(DamagedData, match=r"b\.jpg is damaged: expected a picture"):
            read_images([str(tmp_path / "a.jpg"), str(tmp_path / "b.jpg")])
    with pytest.raises(MissingData, match=r"the picture is missing: expected at .*c\.jpg"):
        read_image(tmp_path / "c.jpg")


def folders(root, parts, classes=("ant", "bee", "cow"), each=4):
    for part in parts:
        for c, name in enumerate(classes):
            for i in range(each):
                save(root / part / name / f"{i}.png", seed=100 * c + i)
    return root


def test_a_picture_that_unpacks_to_far_more_than_it_is_is_refused(tmp_path):
    Image.new("1", (9000, 9000)).save(tmp_path / "a.png")  # 10 kB that would become 81 MB
    with pytest.raises(DamagedData, match="at most 200 times the file's"):
        read_image(tmp_path / "a.png", size=8)
    Image.new("1", (900, 900)).save(tmp_path / "b.png")
    assert read_image(tmp_path / "b.png", size=8).shape == (1, 8, 8)


def test_parts_with_class_folders(tmp_path):
    root = folders(tmp_path, ["pets/train", "pets/val", "pets/test"])
    (root / "pets/train/empty").mkdir()
    (root / "pets/train/ant/notes.txt").write_text("no picture")
    split = hs.data.load("folder", root, path="pets")
    assert list(split.classes) == ["ant", "bee", "cow"]
    assert len(split.train) == len(split.test) == len(split.validation) == 12
    assert split.train.labels.tolist() == [0] * 4 + [1] * 4 + [2] * 4
    excluded = hs.data.load("folder", root, path="pets", exclude=["bee"])
    assert list(excluded.classes) == ["ant", "cow"] and len(excluded.test) == 8


def test_val_alone_is_the_test_part_and_numbers_follow_the_training_part(tmp_path):
    root = folders(tmp_path, ["train"])
    folders(tmp_path, ["val"], classes=("cow",))
    split = hs.data.load("folder", root)
    assert split.validation is None and split.test.labels.tolist() == [2] * 4
    folders(tmp_path, ["val"], classes=("dog",))
    with pytest.raises(ValueError, match="'dog'"):
        hs.data.load("folder", root)


def test_bare_class_folders_are_divided(tmp_path):
    split = hs.data.load("folder", folders(tmp_path, ["."]), test_fraction=0.25)
    assert split.train.counts().tolist() == [3, 3, 3] and split.test.counts().tolist() == [1, 1, 1]


def test_missing_folders_are_named(tmp_path):
    with pytest.raises(MissingData, match=r"the image folder is missing: expected at .*pets"):
        hs.data.load("folder", tmp_path, path="pets")
    (tmp_path / "empty" / "ada").mkdir(parents=True)
    with pytest.raises(MissingData, match=r"a folder for each class .* with pictures in it.*\.jpg"):
        hs.data.load("folder", tmp_path, path="empty")
    (tmp_path / "train").mkdir()
    with pytest.raises(MissingData, match="the test part is missing"):
        hs.data.load("folder", tmp_path)


@pytest.mark.parametrize("prefetch", [0, 2])
def test_pictures_in_their_files_give_the_same_batches(tmp_path, prefetch):
    root = folders(tmp_path, ["train", "val"])
    memory = hs.data.load("folder", root).train
    files = hs.data.load("folder", root, lazy=True).train
    assert isinstance(files, ImageFiles) and files.shape == memory.shape == (3, 5, 4)
    ours = BatchLoader(files, 5, seed=3, prefetch=prefetch)
    theirs = BatchLoader(memory, 5, seed=3)
    for (x, y), (a, b) in zip(ours, theirs, strict=True):
        assert torch.equal(x, a) and torch.equal(y, b)
    assert torch.equal(files.load().images, memory.images)
    some = torch.tensor([7, 2])
    assert torch.equal(files.subset(some).load().images, memory.subset(some).images)
    assert files.counts().tolist() == [4, 4, 4]
    ours, theirs = (Normalize.fit(data, "mean")(memory.images) for data in (files, memory))
    assert torch.equal(ours, theirs)
    thinned = hs.data.load("folder", root, lazy=True, imbalance="single").train
    assert thinned.counts().tolist() == [0, 4, 4]


@pytest.mark.parametrize("parts", [[""], ["train", "val"]])
def test_the_largest_classes(tmp_path, parts):
    sizes = {"ant": 4, "bee": 8, "cow": 12, "doe": 8}
    for part in parts:
        for name, count in sizes.items():
            for i in range(count):
                save(tmp_path / part / name / f"{i}.png")
    split = hs.data.load("folder", tmp_path, largest=2)
    assert split.classes == ["bee", "cow"]  # bee before doe: the same size, in order of names
    assert len(split.train) + len(split.test) == 20 * len(parts)
    assert set(split.test.labels.tolist()) == {0, 1}
    with pytest.raises(ValueError, match="has 4 classes; largest=5 are wanted"):
        hs.data.load("folder", tmp_path, largest=5)
    with pytest.raises(ValueError, match="largest is a number of classes, 1 or more; got 0"):
        hs.data.load("folder", tmp_path, largest=0)
