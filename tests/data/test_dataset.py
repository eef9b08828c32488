"""ArrayDataset, splits and pairs: what goes in comes out, and nothing is in two parts."""

from __future__ import annotations

import pytest
import torch

from hypersphere.data import ArrayDataset, Pairs, closed_set, draw_pairs, open_set


def labeled(counts: list[int]) -> ArrayDataset:
    labels = torch.repeat_interleave(torch.arange(len(counts)), torch.tensor(counts))
    images = torch.arange(len(labels)).view(-1, 1, 1, 1).float()
    return ArrayDataset(images, labels, [f"class {c}" for c in range(len(counts))])


@pytest.mark.parametrize(
    ("images", "labels", "message"),
    [
        (torch.zeros(3, 1, 2, 2), torch.zeros(4).long(), "one label per sample"),
        (torch.zeros(3, 1, 2, 2), torch.zeros(3, 1).long(), "one label per sample"),
        (torch.zeros(3, 1, 2, 2), torch.zeros(3), "int64"),
        (torch.zeros(3, 1, 2, 2).int(), torch.zeros(3).long(), "uint8 in 0..255"),
        (torch.zeros(3, 1, 2, 2), torch.tensor([0, 1, 2]), "from 0 to 2"),
        (torch.zeros(3, 1, 2, 2), torch.tensor([0, 1, -2]), "from -2 to 1"),
    ],
)
def test_wrong_tensors_are_named(images, labels, message):
    with pytest.raises(ValueError, match=message):
        ArrayDataset(images, labels, ["a", "b"])


def test_subset_only_and_take():
    data = labeled([2, 3, 1])
    assert data.take(torch.tensor([5, 0])).flatten().tolist() == [5, 0]
    assert data.subset(torch.tensor([4, 5])).labels.tolist() == [1, 2]
    chosen = data.only([2, 1])
    assert chosen.labels.tolist() == [1, 1, 1, 0]
    assert chosen.images.flatten().tolist() == [2, 3, 4, 5]
    assert chosen.classes == ["class 2", "class 1"]
    with pytest.raises(ValueError, match=r"distinct class indices in 0\.\.2"):
        data.only([3])
    image, label = data[3]
    assert image.item() == 3 and label.item() == 1


def test_nobody_stays_out_of_counts_and_classes():
    data = ArrayDataset(torch.zeros(3, 1, 1, 1), torch.tensor([0, -1, 1]), ["a", "b"])
    assert data.counts().tolist() == [1, 1]
    assert len(data.only([0, 1])) == 2
    with pytest.raises(ValueError, match="some labels are -1"):
        draw_pairs(data, 1, 1)
    with pytest.raises(ValueError, match="some labels are -1"):
        closed_set(data)


def test_closed_set_divides_every_class_and_keeps_single_samples_for_training():
    data = labeled([8, 4, 1])
    split = closed_set(data, test_fraction=0.25, seed=1)
    assert split.train.counts().tolist() == [6, 3, 1]
    assert split.test.counts().tolist() == [2, 1, 0]
    together = torch.cat([split.train.images, split.test.images]).flatten()
    assert sorted(together.tolist()) == list(range(13))
    assert not torch.equal(closed_set(data, seed=2).test.images, split.test.images)
    with pytest.raises(ValueError, match="between 0 and 1"):
        closed_set(data, test_fraction=1.0)


def test_open_set_pairs_show_only_unseen_classes():
    data = labeled([20, 20, 20, 20])
    split = open_set(data, unseen=[1, 3], folds=2, per_fold=10)
    assert split.classes == ["class 0", "class 2"]
    assert split.pairs.dataset.classes == ["class 1", "class 3"]
    trained = set(split.train.images.flatten().tolist()) | set(split.test.images.flatten().tolist())
    assert trained.isdisjoint(split.pairs.dataset.images.flatten().tolist())
    with pytest.raises(ValueError, match="at least two unseen"):
        open_set(data, unseen=[1])


@pytest.mark.parametrize("size", [12, 1500])  # few: without replacement; many: by rejection
def test_pairs_are_distinct_true_and_balanced(size):
    data = labeled([size] * 2)
    pairs = draw_pairs(data, folds=3, per_fold=20, seed=4)
    assert len(pairs) == 120
    assert torch.equal(pairs.same, data.labels[pairs.first] == data.labels[pairs.second])
    for fold in range(3):
        assert int(pairs.same[pairs.fold == fold].sum()) == 20
        assert int((pairs.fold == fold).sum()) == 40
    unordered = {
        tuple(sorted(p)) for p in zip(pairs.first.tolist(), pairs.second.tolist(), strict=True)
    }
    assert len(unordered) == 120
    assert torch.equal(draw_pairs(data, 3, 20, seed=4).first, pairs.first)
    assert not torch.equal(draw_pairs(data, 3, 20, seed=5).first, pairs.first)


def test_too_many_pairs_are_refused_with_the_numbers():
    with pytest.raises(ValueError, match="6 pairs of one class and 9 of two"):
        draw_pairs(labeled([3, 3]), folds=1, per_fold=7)
    with pytest.raises(ValueError, match="one entry per pair"):
        none = torch.zeros(0).long()
        Pairs(labeled([1]), none, none, torch.zeros(1).bool(), none)
