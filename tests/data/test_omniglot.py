"""Omniglot folders."""

from __future__ import annotations

import numpy as np
import pytest
from PIL import Image

import hypersphere as hs
from hypersphere.data import MissingData


@pytest.fixture
def characters(tmp_path):
    random = np.random.default_rng(0)
    for part, alphabets in (("background", ("Greek", "Latin")), ("evaluation", ("Tengwar",))):
        for alphabet in alphabets:
            for character in ("character01", "character02"):
                folder = tmp_path / "omniglot" / f"images_{part}" / alphabet / character
                folder.mkdir(parents=True)
                for drawer in range(3):
                    glyph = Image.fromarray(random.random((105, 105)) > 0.1)
                    glyph.convert("1").save(folder / f"0001_{drawer:02d}.png")
    return tmp_path


def test_characters_of_two_alphabets_are_different_classes(characters):
    split = hs.data.load("omniglot", characters)
    assert split.train.images.shape == (12, 1, 105, 105) and len(split.test) == 6
    assert split.classes[1:3] == ["Greek/character02", "Latin/character01"]
    assert split.train.counts().tolist() == [3] * 4
    assert set(split.classes).isdisjoint(split.test.classes)
    assert set(split.train.images.unique().tolist()) == {0, 255}
    dark = hs.data.load("omniglot", characters, invert=True)
    assert (dark.train.images == 255 - split.train.images).all()
    assert hs.data.load("omniglot", characters, size=28).train.shape == (1, 28, 28)


def test_alphabets_numbered_in_each_part_are_different_classes(characters):
    folder = characters / "omniglot/images_evaluation"
    (folder / "Tengwar").rename(folder / "Greek")
    split = hs.data.load("omniglot", characters)
    assert split.test.classes[0] == "images_evaluation/Greek/character01"
    assert split.train.classes[0] == "Greek/character01"
    assert split.test.labels.unique().tolist() == [0, 1]


def test_missing_parts_are_named(characters):
    for path in sorted((characters / "omniglot/images_evaluation").rglob("*.png")):
        path.unlink()
    with pytest.raises(MissingData, match="Omniglot characters"):
        hs.data.load("omniglot", characters)
    with pytest.raises(MissingData, match=r"Omniglot.*brendenlake"):
        hs.data.load("omniglot", characters / "elsewhere")
