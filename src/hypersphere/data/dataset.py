"""Data sets in memory: samples and labels as tensors, and the parts of a split."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Protocol

import torch
from torch import Tensor

from .labeled import Labeled
from .verification_pairs import Pairs


class Dataset(Protocol):
    """What loaders and splits need of a data set: labels, class names, and samples by their index.

    Anything with these attributes and methods will do; `ArrayDataset` and `ImageFiles` have them.
    """

    @property
    def labels(self) -> Tensor:
        """Class of each sample, (N,) int64."""
        ...

    @property
    def classes(self) -> Sequence[str]:
        """Names of the classes."""
        ...

    @property
    def shape(self) -> torch.Size:
        """Shape of one sample."""
        ...

    def __len__(self) -> int: ...

    def take(self, index: Tensor) -> Tensor:
        """Samples by their index.

        Args:
            index: (B,) int64.

        Returns:
            The samples in that order, (B, *shape).
        """
        ...

    def subset(self, index: Tensor) -> Dataset:
        """Some of the samples, with the same classes.

        Args:
            index: (B,) int64.

        Returns:
            A data set of these samples.
        """
        ...

    def counts(self) -> Tensor:
        """Samples of each class.

        Returns:
            (number of classes,) int64.
        """
        ...


@dataclass(frozen=True)
class ArrayDataset(Labeled):
    """Samples and labels in memory.

    Args:
        images: (N, C, H, W) uint8 in 0..255, or floating point in 0..1; point clouds are (N, P, 3)
            floating point.
        labels: (N,) int64, an index into `classes`; -1 stands for "nobody known" (distractors).
        classes: names of the classes.

    >>> pictures = torch.zeros(3, 1, 2, 2, dtype=torch.uint8)
    >>> data = ArrayDataset(pictures, torch.tensor([0, 1, 1]), ["a", "b"])
    >>> len(data), data.num_classes, data.counts().tolist(), tuple(data.shape)
    (3, 2, [1, 2], (1, 2, 2))
    >>> data
    ArrayDataset(3 of 1x2x2 uint8, 2 classes)
    """

    images: Tensor
    labels: Tensor
    classes: Sequence[str]

    def __post_init__(self) -> None:
        if len(self.images) != len(self.labels) or self.labels.dim() != 1:
            raise ValueError(
                f"ArrayDataset expects one label per sample; got images {tuple(self.images.shape)} "
                f"and labels {tuple(self.labels.shape)}"
            )
        if self.labels.dtype != torch.int64:
            raise ValueError(f"labels are int64 class indices; got {self.labels.dtype}")
        if self.images.dtype != torch.uint8 and not self.images.is_floating_point():
            raise ValueError(
                f"images are uint8 in 0..255 or floating point in 0..1; got {self.images.dtype}"
            )
        if len(self.labels):
            low, high = int(self.labels.min()), int(self.labels.max())
            if low < -1 or high >= len(self.classes):
                raise ValueError(
                    f"labels index the {len(self.classes)} classes (or are -1); "
                    f"got values from {low} to {high}"
                )

    def __repr__(self) -> str:
        kind = str(self.images.dtype).removeprefix("torch.")
        shape = "x".join(map(str, self.shape))
        return f"ArrayDataset({len(self):,} of {shape} {kind}, {self.num_classes:,} classes)"

    def __len__(self) -> int:
        return len(self.labels)

    def __getitem__(self, index: int) -> tuple[Tensor, Tensor]:
        return self.images[index], self.labels[index]

    @property
    def shape(self) -> torch.Size:
        """Shape of one sample, (C, H, W) for pictures."""
        return self.images.shape[1:]

    def take(self, index: Tensor) -> Tensor:
        """Samples by their index.

        Args:
            index: (B,) int64.

        Returns:
            The samples in that order, (B, *shape).
        """
        return self.images.index_select(0, index.to(self.images.device))

    def subset(self, index: Tensor) -> ArrayDataset:
        """Some of the samples, with the same classes.

        Args:
            index: (B,) int64.

        Returns:
            A data set of these samples.
        """
        return replace(self, images=self.take(index), labels=self.labels[index])

    def only(self, classes: Sequence[int]) -> ArrayDataset:
        """The samples of some classes, which are renumbered 0, 1, ... in the order given.

        Args:
            classes: distinct class indices.

        Returns:
            A data set of these classes.

        >>> data = ArrayDataset(torch.zeros(3, 1, 2, 2), torch.tensor([0, 1, 2]), ["a", "b", "c"])
        >>> chosen = data.only([2, 0])
        >>> chosen.labels.tolist(), chosen.classes
        ([1, 0], ['c', 'a'])
        """
        wrong = [c for c in classes if not 0 <= c < self.num_classes]
        if wrong or len(set(classes)) != len(classes):
            raise ValueError(
                f"only() expects distinct class indices in 0..{self.num_classes - 1}; "
                f"got {list(classes)}"
            )
        number = torch.full((self.num_classes + 1,), -1, dtype=torch.int64)  # last place: label -1
        number[list(classes)] = torch.arange(len(classes))
        labels = number[self.labels]
        index = (labels >= 0).nonzero().squeeze(1)
        return ArrayDataset(self.take(index), labels[index], [self.classes[c] for c in classes])

    def to(self, device: torch.device | str) -> ArrayDataset:
        """The same data set with its samples on a device; batches are then made there.

        Args:
            device: where the samples and labels go.

        Returns:
            The data set there.
        """
        return replace(self, images=self.images.to(device), labels=self.labels.to(device))


@dataclass(frozen=True)
class Split:
    """The parts of a data set.

    Args:
        train: what is trained on.
        test: what is tested on; shares its classes with `train` in closed-set work.
        validation: what settings are chosen on, where the publisher gives such a part.
        pairs: verification pairs with the samples they point into (open set: of classes that
            `train` does not have).
        reserved: samples of classes that are in none of the other parts, for the final judgment.
        notes: what the reader decided, for the record of a run: "people" (who is used for what),
            "unreadable" (files that were left out), "alignment" (how faces were aligned).
        name: the name of the data set.
    """

    train: Dataset
    test: Dataset
    validation: Dataset | None = None
    pairs: Pairs | None = None
    reserved: Dataset | None = None
    notes: dict[str, Any] = field(default_factory=dict, compare=False)
    name: str = field(default="", compare=False)

    def __repr__(self) -> str:
        others = {p: getattr(self, p) for p in ("test", "validation", "pairs", "reserved")}
        counts = [f"{p} {len(value):,}" for p, value in others.items() if value is not None]
        name = f"{self.name}: " if self.name else ""
        return f"Split({name}train {self.train!r}, {', '.join(counts)})"

    @property
    def classes(self) -> Sequence[str]:
        """Names of the classes of the training part."""
        return self.train.classes

    @property
    def num_classes(self) -> int:
        """Number of classes of the training part."""
        return len(self.train.classes)
