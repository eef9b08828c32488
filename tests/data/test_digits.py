"""The embedded digits: exact pixels, both protocols."""

from __future__ import annotations

import pytest
import torch
from sklearn.datasets import load_digits as published

import hypersphere as hs


def test_closed_set_holds_every_published_digit_once():
    split = hs.data.load("digits")
    assert split.name == "digits" and split.num_classes == 10 and split.pairs is None
    rows = torch.cat([split.train.images, split.test.images]).flatten(1)
    labels = torch.cat([split.train.labels, split.test.labels])
    ours = sorted(
        (*(16 * row).tolist(), label) for row, label in zip(rows, labels.tolist(), strict=True)
    )
    bunch = published()
    theirs = sorted(
        (*row, label) for row, label in zip(bunch.data.tolist(), bunch.target.tolist(), strict=True)
    )
    assert ours == theirs
    assert (split.test.counts() >= 43).all()
    again = hs.data.load("digits")
    assert torch.equal(again.test.images, split.test.images)
    assert not torch.equal(hs.data.load("digits", seed=1).test.images, split.test.images)


def test_open_set_keeps_classes_for_the_pairs():
    split = hs.data.load("digits", protocol="open_set", unseen=[0, 4], per_fold=100)
    assert split.classes == list("12356789")
    assert split.pairs.dataset.classes == ["0", "4"]
    assert len(split.pairs) == 2000 and int(split.pairs.same.sum()) == 1000
    with pytest.raises(ValueError, match="'closed_set' or 'open_set'"):
        hs.data.load("digits", protocol="half_open")


def test_unknown_names_and_options_are_answered_with_the_known():
    with pytest.raises(ValueError, match="did you mean 'mnist'"):
        hs.data.load("mnits")
    with pytest.raises(
        ValueError, match=r"no option 'sed'; did you mean 'seed'\? \(it takes: protocol"
    ):
        hs.data.load("digits", sed=1)
    with pytest.raises(ValueError, match=r"unseen: .* classes in 0\.\.9; got \(7, 11\)"):
        hs.data.load("digits", protocol="open_set", unseen=(7, 11))
    with pytest.raises(ValueError, match="needs root="):
        hs.data.load("folder")
    assert {"digits", "mnist", "cifar100", "lfw", "cora"} <= set(hs.data.list_datasets())


def test_imbalance_through_load():
    split = hs.data.load("digits", imbalance="single")
    counts = split.train.counts().tolist()
    assert counts[0] == round(0.1 * hs.data.load("digits").train.counts()[0].item())
    assert min(counts[1:]) > 100


def test_parts_print_as_one_line():
    split = hs.data.load("digits", protocol="open_set")
    expected = "ArrayDataset(948 of 1x8x8 float32, 7 classes)"
    assert repr(split.train) == expected
    assert repr(split) == f"Split(digits: train {expected}, test {len(split.test)}, pairs 6,000)"
    assert repr(split.pairs).startswith("Pairs(3,000 same of 6,000 in 10 folds, ArrayDataset(")


def test_a_misspelled_name_on_the_command_line(capsys):
    from hypersphere.cli import main

    assert main(["data", "mnst"]) == 2
    assert capsys.readouterr().err.startswith(
        "hypersphere data: unknown data set 'mnst'; did you mean 'mnist'?"
    )


def test_changed_pictures_are_not_those_of_the_next():
    first = hs.data.digits.digits()
    first.images.zero_()
    first.labels.zero_()
    again = hs.data.digits.digits()
    assert again.images.any() and again.labels.any()
