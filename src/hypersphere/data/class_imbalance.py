"""Class-imbalanced training sets of sections 5.5.1, D.1 and D.8."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from ._random import generator
from .dataset import Dataset


def keep_per_class(dataset: Dataset, counts: Sequence[int], seed: int = 0) -> Dataset:
    """Keep some randomly chosen samples of each class; the order of the samples stays.

    Args:
        dataset: the samples.
        counts: how many of each class.
        seed: seed of the choice.

    Returns:
        The data set of those.
    """
    have = dataset.counts().tolist()
    if len(counts) != len(have):
        raise ValueError(
            f"counts has one number for each of {len(have)} classes; got {len(counts)}"
        )
    chosen: list[Tensor] = []
    for label, (count, most) in enumerate(zip(counts, have, strict=True)):
        if not 0 <= count <= most:
            raise ValueError(f"class {label} has {most} samples; {count} cannot be kept")
        members = (dataset.labels == label).nonzero().squeeze(1)
        random = generator(seed, "imbalance", label)
        chosen.append(members[torch.randperm(most, generator=random)[:count]])
    return dataset.subset(torch.cat(chosen).sort().values)


def thin_classes(
    dataset: Dataset, classes: Sequence[int] = (0,), keep: float | int = 0.1, seed: int = 0
) -> Dataset:
    """Throw away most samples of some classes, keep all others ("single class imbalance").

    Section D.1 keeps 10 % of class 0 of CIFAR-10: 45,500 pictures stay. Section D.8 keeps 10 % of
    the classes 0..9 of CIFAR-100.

    Args:
        dataset: the samples.
        classes: indices of the classes to thin.
        keep: a fraction (float), or a number of samples (int).
        seed: seed of the choice.

    Returns:
        The data set of what is kept.

    >>> from hypersphere.data import ArrayDataset
    >>> data = ArrayDataset(torch.rand(40, 1, 2, 2), torch.arange(40) % 4, list("abcd"))
    >>> thin_classes(data, keep=0.2).counts().tolist()
    [2, 10, 10, 10]
    """
    counts = dataset.counts().tolist()
    for label in classes:
        if not 0 <= label < len(counts):
            raise ValueError(f"classes are in 0..{len(counts) - 1}; got {label}")
        counts[label] = keep if isinstance(keep, int) else round(keep * counts[label])
    return keep_per_class(dataset, counts, seed)


def grow_linearly(dataset: Dataset, step: int | None = None, seed: int = 0) -> Dataset:
    """Class c keeps step x (c + 1) samples ("multiple class imbalance").

    Section D.1: step 500 for the 10 classes of CIFAR-10 (27,500 pictures); section D.8: step 5 for
    the 100 classes of CIFAR-100.

    Args:
        dataset: the samples.
        step: samples of class 0. Default: the largest that the data allow, these numbers for the
            full sets.
        seed: seed of the choice.

    Returns:
        The data set of what is kept.

    >>> from hypersphere.data import ArrayDataset
    >>> data = ArrayDataset(torch.rand(40, 1, 2, 2), torch.arange(40) % 4, list("abcd"))
    >>> grow_linearly(data).counts().tolist()
    [2, 4, 6, 8]
    """
    have = dataset.counts().tolist()
    if step is None:
        step = min(count // (label + 1) for label, count in enumerate(have))
    return keep_per_class(dataset, [step * (label + 1) for label in range(len(have))], seed)


def imbalanced(dataset: Dataset, kind: str, seed: int = 0) -> Dataset:
    """One of the dissertation's settings by name.

    - "single": 10 % of the first tenth of the classes (class 0 of 10, D.1; classes 0..9 of 100,
      D.8), everything of the others;
    - "multiple": a number of samples that grows linearly with the class index;
    - "mnist": 100 samples of digit 0, everything of the others (section 5.5.1).

    Args:
        dataset: the training part.
        kind: one of these.
        seed: seed of the samples that are kept.

    Returns:
        The data set of what is kept.
    """
    if kind == "single":
        return thin_classes(dataset, range(max(1, len(dataset.classes) // 10)), 0.1, seed)
    if kind == "multiple":
        return grow_linearly(dataset, seed=seed)
    if kind == "mnist":
        return thin_classes(dataset, (0,), 100, seed)
    raise ValueError(f"imbalance is 'single', 'multiple' or 'mnist'; got {kind!r}")
