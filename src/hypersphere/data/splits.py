"""Closed-set and open-set splits of one labeled data set."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from ._random import generator
from .dataset import ArrayDataset, Split
from .verification_pairs import draw_pairs


def closed_set(dataset: ArrayDataset, test_fraction: float = 0.25, seed: int = 0) -> Split:
    """Put some samples of every class aside for testing.

    Args:
        dataset: the samples.
        test_fraction: share of every class (at least one sample) for testing, in (0, 1).
        seed: seed of the choice.

    Returns:
        Training and test part, with the same classes.

    >>> data = ArrayDataset(torch.rand(40, 1, 2, 2), torch.arange(40) % 4, list("abcd"))
    >>> split = closed_set(data, test_fraction=0.2)
    >>> split.train.counts().tolist(), split.test.counts().tolist()
    ([8, 8, 8, 8], [2, 2, 2, 2])
    """
    test = choose_test(dataset.labels, test_fraction, seed)
    return Split(
        dataset.subset((~test).nonzero().squeeze(1)), dataset.subset(test.nonzero().squeeze(1))
    )


def choose_test(labels: Tensor, test_fraction: float, seed: int) -> Tensor:
    """Which samples are for testing, (N,) bool: `test_fraction` of every class, at least one.

    A class with a single sample stays in the training part.
    """
    if not 0 < test_fraction < 1:
        raise ValueError(f"test_fraction is between 0 and 1; got {test_fraction}")
    if bool((labels < 0).any()):
        raise ValueError("a split by class needs a class for every sample; some labels are -1")
    # Sorting once instead of searching each class keeps this fast for thousands of classes.
    order = torch.argsort(labels, stable=True)
    test = torch.zeros(len(labels), dtype=torch.bool)
    for label, members in enumerate(order.split(torch.bincount(labels).tolist())):
        if len(members) > 1:
            shuffled = torch.randperm(len(members), generator=generator(seed, "test", label))
            count = min(max(1, round(test_fraction * len(members))), len(members) - 1)
            test[members[shuffled[:count]]] = True
    return test


def open_set(
    dataset: ArrayDataset,
    unseen: Sequence[int],
    test_fraction: float = 0.25,
    folds: int = 10,
    per_fold: int = 300,
    seed: int = 0,
) -> Split:
    """Keep some classes out of training: they appear in verification pairs only.

    So the pairs measure what section 2.3.1 calls open-set: telling apart what was never trained.

    Args:
        dataset: the samples.
        unseen: indices of the classes to keep out, at least two.
        test_fraction: share of every other class for testing, in (0, 1).
        folds: folds of the pairs.
        per_fold: pairs of one class, and of two, in each fold.
        seed: seed of the choice.

    Returns:
        `train` and `test` of the other classes, renumbered from 0; `pairs.dataset` holds the unseen
        ones.

    >>> data = ArrayDataset(torch.rand(40, 1, 2, 2), torch.arange(40) % 4, list("abcd"))
    >>> split = open_set(data, unseen=(1, 3), folds=2, per_fold=5)
    >>> split.train.classes, split.pairs.dataset.classes, len(split.pairs)
    (['a', 'c'], ['b', 'd'], 20)
    """
    if not set(unseen) <= set(range(dataset.num_classes)) or len(set(unseen)) != len(unseen):
        raise ValueError(
            f"unseen: expected distinct classes in 0..{dataset.num_classes - 1}; "
            f"got {tuple(unseen)}"
        )
    seen = [c for c in range(dataset.num_classes) if c not in set(unseen)]
    if not seen or len(unseen) < 2:
        raise ValueError(
            f"an open-set split needs at least two unseen classes and one seen; got "
            f"{len(unseen)} unseen of {dataset.num_classes}"
        )
    split = closed_set(dataset.only(seen), test_fraction, seed)
    pairs = draw_pairs(dataset.only(list(unseen)), folds, per_fold, seed)
    return Split(split.train, split.test, pairs=pairs)
