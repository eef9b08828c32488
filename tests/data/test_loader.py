"""BatchLoader: every sample once, the same on every machine, resumable bit for bit."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from hypersphere.data import ArrayDataset, BatchLoader, Normalize, augmentation


def numbered(n: int, size: int = 4) -> ArrayDataset:
    """Pictures whose every pixel is the sample's number."""
    images = torch.arange(n).view(n, 1, 1, 1).expand(n, 1, size, size).float()
    return ArrayDataset(images, torch.arange(n) % 3, list("abc"))


@settings(max_examples=60, deadline=None)
@given(
    n=st.integers(1, 60),
    batch_size=st.integers(1, 9),
    world_size=st.integers(1, 5),
    epoch=st.integers(0, 3),
    shuffle=st.booleans(),
)
def test_ranks_share_every_sample_exactly_once(n, batch_size, world_size, epoch, shuffle):
    if n < world_size:
        with pytest.raises(ValueError, match="a batch each"):
            BatchLoader(numbered(n), batch_size, world_size=world_size)
        return
    loaders = [
        BatchLoader(numbered(n), batch_size, rank=r, world_size=world_size, shuffle=shuffle)
        for r in range(world_size)
    ]
    served = [loader.indices(epoch) for loader in loaders]
    assert {len(batches) for batches in served} == {len(loaders[0])}
    assert sorted(torch.cat([b for batches in served for b in batches]).tolist()) == list(range(n))
    sizes = [len(b) for batches in served for b in batches]
    assert min(sizes) >= 1
    # Left-over samples that are fewer than the processes make a last batch longer by one at most.
    assert max(sizes) <= batch_size + 1
    assert all(len(b) <= batch_size for batches in served for b in batches[:-1])
    if world_size == 1:
        assert max(sizes) <= batch_size


def test_drop_last_gives_only_whole_batches_and_drops_others_each_epoch():
    loaders = [BatchLoader(numbered(23), 3, drop_last=True, rank=r, world_size=2) for r in range(2)]
    assert [len(loader) for loader in loaders] == [3, 3]
    seen = []
    for epoch in range(2):
        batches = [b for loader in loaders for b in loader.indices(epoch)]
        assert {len(b) for b in batches} == {3}
        seen.append(set(torch.cat(batches).tolist()))
        assert len(seen[-1]) == 18
    assert seen[0] != seen[1]


def test_without_shuffling_the_order_is_kept():
    x, y = next(iter(BatchLoader(numbered(10), 10, shuffle=False, normalize=None)))
    assert x[:, 0, 0, 0].tolist() == list(range(10))
    assert y.tolist() == [i % 3 for i in range(10)]


@pytest.mark.parametrize("prefetch", [0, 2])
@pytest.mark.parametrize("stop", [0, 1, 3, 4])
def test_resume_is_bit_for_bit(stop, prefetch):
    def make():
        return BatchLoader(
            numbered(13, size=12), 4, seed=5, augment=augmentation("cifar"), prefetch=prefetch
        )

    whole = make()
    expected = [batch for _ in range(3) for batch in whole]
    first = make()
    batches = iter(first)
    for _ in range(stop):
        next(batches)
    state = first.state_dict()
    second = make()
    second.load_state_dict(state)
    rest = [batch for _ in range(3 - state["epoch"]) for batch in second]
    assert len(rest) == len(expected) - stop
    for (x, y), (a, b) in zip(rest, expected[stop:], strict=True):
        assert torch.equal(x, a) and torch.equal(y, b)


def test_epochs_differ_and_an_epoch_left_early_starts_again():
    loader = BatchLoader(numbered(32), 8, seed=3)
    first = [y for _, y in loader]
    second = [y for _, y in loader]
    assert loader.epoch == 2
    assert not torch.equal(torch.cat(first), torch.cat(second))
    assert torch.equal(next(iter(loader))[0], next(iter(loader))[0])
    assert len(list(loader)) == 4


def test_the_state_of_an_epoch_left_early_is_the_place_after_its_last_batch():
    loader, again = (BatchLoader(numbered(32), 8, seed=3) for _ in range(2))
    expected = [y.tolist() for _, y in BatchLoader(numbered(32), 8, seed=3)]
    for number, _ in enumerate(loader):
        if number == 1:
            break
    state = loader.state_dict()
    assert (state["epoch"], state["batch"]) == (0, 2)
    again.load_state_dict(state)
    assert [y.tolist() for _, y in again] == expected[2:]
    assert [y.tolist() for _, y in loader] == expected  # it starts again
    loader.load_state_dict(state)
    assert [y.tolist() for _, y in loader] == expected[2:]  # with its own state it goes on


def test_seed_and_rank_change_the_augmentation():
    def first(**options):
        return next(
            iter(BatchLoader(numbered(8, 12), 4, augment=augmentation("cifar"), **options))
        )[0]

    assert torch.equal(first(seed=1), first(seed=1))
    assert not torch.equal(first(seed=1), first(seed=2))


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"seed": 9}, "seed=9"),
        ({"samples": 7}, "samples=7"),
        ({"batch_size": 2}, "batch_size=2"),
        ({"world_size": 4}, "world_size=4"),
    ],
)
def test_a_foreign_state_is_refused(change, message):
    loader = BatchLoader(numbered(12), 3)
    with pytest.raises(ValueError, match=message):
        loader.load_state_dict({**loader.state_dict(), **change})
    with pytest.raises(ValueError, match="no 'batch'"):
        loader.load_state_dict({"epoch": 1})


def test_wrong_arguments_are_named():
    with pytest.raises(ValueError, match="batch_size is at least 1"):
        BatchLoader(numbered(4), 0)
    with pytest.raises(ValueError, match="rank 2 of 2"):
        BatchLoader(numbered(4), 1, rank=2, world_size=2)
    with pytest.raises(ValueError, match="drop_last=True"):
        BatchLoader(numbered(4), 5, drop_last=True)
    with pytest.raises(ValueError, match="'unit' or 'symmetric'"):
        BatchLoader(numbered(4), 2, normalize="mean")


def test_normalization_happens_after_augmentation_and_gives_float():
    data = ArrayDataset(
        torch.full((4, 3, 8, 8), 255, dtype=torch.uint8), torch.zeros(4).long(), ["a"]
    )
    x, _ = next(iter(BatchLoader(data, 4, augment=augmentation("cifar"), normalize="symmetric")))
    assert x.dtype == torch.float32
    # Padding is black before the normalization, so it becomes -127.5 / 128 like any black pixel.
    torch.testing.assert_close(x.unique(), torch.tensor([-127.5 / 128, 127.5 / 128]))
    raw, _ = next(iter(BatchLoader(data, 4, normalize=None)))
    assert raw.dtype == torch.uint8
    fitted, _ = next(iter(BatchLoader(data, 4, normalize=Normalize.fit(data, "mean"))))
    assert fitted.abs().max() < 1e-6


def test_an_error_while_prefetching_reaches_the_caller():
    def broken(images, generator):
        raise RuntimeError("no such transform")

    with pytest.raises(RuntimeError, match="no such transform"):
        list(BatchLoader(numbered(4), 2, augment=broken, prefetch=2))
