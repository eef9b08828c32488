"""What every data set with labels can say of its classes."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

__all__ = ["Labeled"]


class Labeled:
    """Counts of a data set that has `labels`, (N,) int64, and the names of its `classes`.

    >>> data = Labeled()
    >>> data.labels, data.classes = torch.tensor([0, 2, 2, -1]), ["a", "b", "c"]
    >>> data.num_classes, data.counts().tolist()
    (3, [1, 0, 2])
    """

    labels: Tensor
    classes: Sequence[str]

    @property
    def num_classes(self) -> int:
        """Number of classes."""
        return len(self.classes)

    def counts(self) -> Tensor:
        """Samples of each class; those with the label -1 do not count.

        Returns:
            (num_classes,) int64.
        """
        return torch.bincount(self.labels[self.labels >= 0], minlength=self.num_classes)
