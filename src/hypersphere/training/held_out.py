"""Parts of a data set: a share of what is trained, and what is held out to choose settings by."""

from __future__ import annotations

import dataclasses
from typing import Any

import torch

__all__ = ["hold_out", "share_of"]


def share_of(dataset: Any, share: float) -> Any:
    """The first `share` of each class, so that classes keep their proportions."""
    if share >= 1:
        return dataset
    if not share > 0:
        raise ValueError(f"data.share must be in (0, 1]; got {share}")
    labels = dataset.labels
    keep = torch.zeros(len(labels), dtype=torch.bool)
    for label in labels.unique():
        members = (labels == label).nonzero().flatten()
        keep[members[: max(1, round(share * len(members)))]] = True
    return dataset.subset(keep.nonzero().flatten())


def hold_out(split: Any, share: float, classes: bool = False) -> Any:
    """A split whose test part is a share of its training part; unseen classes stay unseen.

    The samples are those of a fixed draw, so that every setting is judged by the same ones.

    Args:
        split: a `hypersphere.data.Split`.
        share: the part of each class that is held out; 0 for none.
        classes: hold out a share of the classes instead, with all their samples: for a test on
            classes that are not trained.

    Returns:
        The split.
    """
    if share == 0:
        return split
    labels, generator = split.train.labels, torch.Generator().manual_seed(0)
    held = torch.zeros(len(labels), dtype=torch.bool)
    known = labels.unique()
    if classes:
        chosen = torch.randperm(len(known), generator=generator)[: round(share * len(known))]
        held = torch.isin(labels, known[chosen])
    for label in () if classes else known:
        members = (labels == label).nonzero().flatten()
        chosen = torch.randperm(len(members), generator=generator)[: round(share * len(members))]
        held[members[chosen]] = True
    if not held.any():
        what = "class" if classes else "sample"
        raise ValueError(f"data.holdout={share:g} holds out no {what}: take a larger share")
    train, test = (split.train.subset(part.nonzero().flatten()) for part in (~held, held))
    validation = None if classes else split.validation
    return dataclasses.replace(split, train=train, test=test, validation=validation, pairs=None)
