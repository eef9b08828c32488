"""Imbalanced training sets: the numbers of sections 5.5.1, D.1 and D.8."""

from __future__ import annotations

import pytest
import torch

from hypersphere.data import ArrayDataset, grow_linearly, imbalanced, keep_per_class, thin_classes


def balanced(classes: int, each: int) -> ArrayDataset:
    labels = torch.arange(classes * each) % classes
    return ArrayDataset(
        torch.arange(len(labels)).view(-1, 1, 1, 1).float(), labels, ["x"] * classes
    )


@pytest.mark.parametrize(
    ("classes", "each", "kind", "total", "first", "last"),
    [
        (10, 5000, "single", 45500, [500, 5000], 5000),  # D.1: 45,500 of 50,000 pictures
        (10, 5000, "multiple", 27500, [500, 1000], 5000),  # D.1: 500 (c + 1), 27,500 in all
        (100, 500, "single", 45500, [50, 50], 500),  # D.8: 10 % of the classes 0..9
        (100, 500, "multiple", 25250, [5, 10], 500),  # D.8: 5 (c + 1)
        (10, 6000, "mnist", 54100, [100, 6000], 6000),  # 5.5.1: 100 samples of digit 0 stay
        (10, 2000, "multiple", 11000, [200, 400], 2000),  # a smaller set keeps the proportions
    ],
)
def test_the_numbers_of_the_text(classes, each, kind, total, first, last):
    thinned = imbalanced(balanced(classes, each), kind)
    counts = thinned.counts().tolist()
    assert sum(counts) == len(thinned) == total
    assert counts[:2] == first and counts[-1] == last
    if kind == "single" and classes == 100:
        assert counts[:10] == [50] * 10 and counts[10] == 500


def test_the_choice_is_random_seeded_and_keeps_samples_with_their_labels():
    data = balanced(4, 50)
    chosen = thin_classes(data, (1, 2), keep=7, seed=3)
    numbers = chosen.images.flatten().long()
    assert torch.equal(numbers % 4, chosen.labels)
    assert numbers.unique().numel() == len(chosen) == 114
    assert torch.equal(thin_classes(data, (1, 2), keep=7, seed=3).images, chosen.images)
    assert not torch.equal(thin_classes(data, (1, 2), keep=7, seed=4).images, chosen.images)


def test_wrong_wishes_are_named():
    data = balanced(3, 5)
    with pytest.raises(ValueError, match="class 2 has 5 samples; 6 cannot be kept"):
        grow_linearly(data, step=2)
    with pytest.raises(ValueError, match="one number for each of 3 classes"):
        keep_per_class(data, [1])
    with pytest.raises(ValueError, match=r"0\.\.2; got 3"):
        thin_classes(data, (3,))
    with pytest.raises(ValueError, match="'single', 'multiple' or 'mnist'"):
        imbalanced(data, "double")
