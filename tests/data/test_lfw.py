"""LFW layout: people folders, pairs.txt, and the two protocols."""

from __future__ import annotations

import pytest
import torch

import hypersphere as hs
from hypersphere.data import DamagedData, MissingData

from reference.data_files import save_picture as save

PAIRS = "2\t2\nAnn\t1\t2\nBob\t1\t3\nAnn\t1\tBob\t2\nBob\t1\tCyd_Elf\t1\n" + (
    "Ann\t2\t3\nBob\t2\t3\nCyd_Elf\t1\tAnn\t3\nAnn\t1\tBob\t3\n"
)


@pytest.fixture
def people(tmp_path):
    seed = 0
    for name, count in (("Ann", 3), ("Bob", 3), ("Cyd_Elf", 1), ("Dee", 2), ("Eve", 1)):
        for i in range(1, count + 1):
            seed += 1
            save(tmp_path / "lfw" / name / f"{name}_{i:04d}.png", (6, 5), seed)
    (tmp_path / "lfw" / "pairs.txt").write_text(PAIRS)
    return tmp_path


def test_published_pairs(people):
    split = hs.data.load("lfw", people)
    pairs = split.pairs
    assert pairs.dataset is split.test and len(pairs) == 8
    assert pairs.same.tolist() == [True, True, False, False] * 2
    assert pairs.fold.tolist() == [0] * 4 + [1] * 4
    labels = split.test.labels
    assert torch.equal(labels[pairs.first] == labels[pairs.second], pairs.same)
    assert list(split.test.classes) == ["Ann", "Bob", "Cyd_Elf"]
    # Line 5: Bob 1 against Cyd_Elf 1, pixel by pixel.
    bob = hs.data.read_image(people / "lfw/Bob/Bob_0001.png")
    assert split.test.images[pairs.first[3]].tolist() == bob.tolist()
    # Nobody of the pairs may be trained on.
    assert list(split.train.classes) == ["Dee", "Eve"] and len(split.train) == 3


def test_one_fold_lists_and_other_file_names(people):
    (people / "lfw" / "dev.txt").write_text("1\nAnn\t1\tAnn\t2\nAnn\t1\tEve\t1\n")
    split = hs.data.load("lfw", people, pairs_file="dev.txt")
    assert split.pairs.fold.tolist() == [0, 0] and len(split.test) == 3
    assert split.pairs.same.tolist() == [True, False]  # by the names, not by the columns


@pytest.mark.parametrize(
    ("text", "error", "message"),
    [
        ("", DamagedData, "a first line like '10 300'"),
        ("ten 300\n", DamagedData, "a first line like '10 300'"),
        (PAIRS[:-5], DamagedData, r"'NAME i j'"),
        ("\n".join(PAIRS.splitlines()[:-1]), DamagedData, "2 x 2 x 2 pairs, found 7"),
        (PAIRS.replace("Ann\t1\t2", "Ann\t1"), DamagedData, "line 2"),
        (PAIRS.replace("Bob\t1\t3", "Bob\t1\t4"), MissingData, r"line 3 .*Bob/Bob_0004\.jpg"),
    ],
)
def test_wrong_lists_are_named_with_the_line(people, text, error, message):
    (people / "lfw" / "pairs.txt").write_text(text)
    with pytest.raises(error, match=message):
        hs.data.load("lfw", people)


def test_missing_parts_are_named(people, tmp_path_factory):
    with pytest.raises(DamagedData, match="the checksum sha256:ea42330c"):
        hs.data.load("lfw", people, verify=True)
    (people / "lfw" / "pairs.txt").unlink()
    with pytest.raises(MissingData, match=r"pairs\.txt"):
        hs.data.load("lfw", people)
    with pytest.raises(MissingData, match=r"LFW \(NAME/NAME_0001.jpg\).*figshare"):
        hs.data.load("lfw", tmp_path_factory.mktemp("empty"))


def test_open_set_separates_people(people):
    split = hs.data.load(
        "lfw", people, protocol="open_set", min_images=2, unseen_fraction=0.67, folds=1, per_fold=2
    )
    assert len(split.train.classes) == 1 and len(split.pairs.dataset.classes) == 2
    assert set(split.train.classes).isdisjoint(split.pairs.dataset.classes)
    assert len(split.train) + len(split.test) + len(split.pairs.dataset) == 8
    with pytest.raises(ValueError, match="lower min_images"):
        hs.data.load("lfw", people, protocol="open_set", min_images=9)
    with pytest.raises(ValueError, match="'pairs' or 'open_set'"):
        hs.data.load("lfw", people, protocol="views")
