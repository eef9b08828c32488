"""Letters: the alphabets, unseen letters that are unseen, a task that pixels do not solve."""

import pytest
import torch

from hypersphere.data.letters import letters, load_letters
from hypersphere.evaluation import verification


@pytest.fixture(scope="module")
def split():
    return load_letters(copies=1)


def test_alphabets():
    assert len(letters()) == 172
    assert len(letters(("armenian", "georgian"))) == 110
    with pytest.raises(ValueError, match="unknown alphabet 'klingon'; known: latin, greek"):
        letters(("klingon",))


def test_parts(split):
    assert split.train.images.dtype == torch.uint8
    assert split.train.shape == (1, 28, 28)
    assert len(split.train) == split.num_classes * 12
    alphabets = [name.count(",") + 1 for name in split.classes]
    assert len(set(split.classes)) == len(alphabets) and sum(alphabets) <= 172
    unseen = split.pairs.dataset
    assert len(unseen) == 110 * 12
    seen = {name[0] for name in split.classes}
    assert not seen & set(unseen.classes)
    assert len(split.pairs) == 6000
    assert split.pairs.same.sum() == 3000


def test_lookalikes_share_a_class(split):
    assert "A (Latin, Greek, Cyrillic)" in split.classes
    assert load_letters(copies=1, share_lookalikes=False).num_classes == 172


def test_every_picture_shows_a_letter_inside_its_border(split):
    ink = split.train.images.flatten(1).float().mean(1)
    assert ink.min() > 2
    border = torch.cat(
        [split.train.images[:, 0, [0, -1], :], split.train.images[:, 0, :, [0, -1]].mT], 1
    )
    cut = (border > 128).flatten(1).any(1)
    assert cut.float().mean() < 0.02


def test_same_seed_same_pictures(split):
    again = load_letters(copies=1)
    assert torch.equal(again.train.images, split.train.images)
    assert torch.equal(again.pairs.first, split.pairs.first)
    other = load_letters(copies=1, seed=1)
    assert not torch.equal(other.train.images, split.train.images)


def test_raw_pixels_are_a_poor_measure(split):
    x = split.pairs.dataset.images.flatten(1).float()
    pairs = split.pairs
    result = verification(x[pairs.first], x[pairs.second], pairs.same, protocol="plain")
    assert 0.55 < result.accuracy < 0.75
