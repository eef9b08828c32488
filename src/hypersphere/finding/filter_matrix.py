"""How a weight tensor becomes a matrix of neurons, one per row, and back."""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor

__all__ = ["FilterMatrix"]


@dataclass(frozen=True)
class FilterMatrix:
    """How a weight tensor holds its neurons.

    A neuron is an output unit: its filter flattened as (input channels, *kernel), the order in
    which PyTorch stores it, so that a range of input channels is a range of the vector (F.5.1).

    Args:
        shape: of the weight tensor.
        channels: input channels that one neuron sees (after division by the groups).
        groups: of a convolution. Neurons of different groups see different channels.
        transposed: whether inputs come first, as in a transposed convolution, whose weight is
            (in, out / groups, *kernel), and in the Conv1D of Hugging Face, (in, out).
        sets: independent layers stacked in one tensor, as in the in_proj_weight of attention and
            in the gates of a recurrent cell.

    >>> import torch
    >>> rows = FilterMatrix((3, 5), 3, transposed=True).rows(torch.zeros(3, 5))
    >>> tuple(rows.shape)
    (5, 3)
    """

    shape: tuple[int, ...]
    channels: int
    groups: int = 1
    transposed: bool = False
    sets: int = 1

    @property
    def dim(self) -> int:
        """d, the length of a neuron."""
        kernel = 1
        for size in self.shape[2:]:
            kernel *= size
        return self.channels * kernel

    @property
    def neurons(self) -> int:
        """n, the number of neurons of one set."""
        total = 1
        for size in self.shape:
            total *= size
        return total // self.dim // self.sets

    def rows(self, weight: Tensor) -> Tensor:
        """The neurons of a weight tensor.

        Args:
            weight: of :attr:`shape`.

        Returns:
            (sets * n, d), one neuron per row; those of a group, or of a set, follow one another.
        """
        if self.transposed:
            split = weight.reshape(self.groups, self.channels, *weight.shape[1:])
            weight = split.transpose(1, 2)
        return weight.reshape(-1, self.dim)

    def weight(self, rows: Tensor) -> Tensor:
        """The weight tensor whose :meth:`rows` are given.

        Args:
            rows: (sets * n, d).

        Returns:
            A tensor of :attr:`shape`.
        """
        if self.transposed:
            split = rows.reshape(self.groups, self.shape[1], self.channels, *self.shape[2:])
            rows = split.transpose(1, 2)
        return rows.reshape(self.shape)
