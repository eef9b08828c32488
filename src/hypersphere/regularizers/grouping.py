"""Cutting neurons into groups of input channels (Eq. 6.9)."""

from __future__ import annotations

import torch
from torch import Tensor

__all__ = ["channel_groups"]


def channel_groups(
    neurons: Tensor, channels: int, groups: int, order: Tensor | None = None
) -> Tensor:
    """Pieces P_c w of neurons (Eq. 6.9).

    Groups differ in size by at most one, smaller ones being padded with zeros, which changes no
    angle.

    Args:
        neurons: (sets, N, d), whose d entries belong to the input channels in order.
        channels: number of input channels.
        groups: number of groups, each of consecutive channels.
        order: (channels,), a permutation applied to the channels first. Default: none.

    Returns:
        (sets * groups, N, piece).

    >>> channel_groups(torch.arange(6.0).reshape(1, 1, 6), channels=3, groups=2)
    tensor([[[0., 1., 2., 3.]],
            [[4., 5., 0., 0.]]])
    """
    sets, n, d = neurons.shape
    if d % channels or not 1 <= groups <= channels:
        raise ValueError(f"cannot cut {d} entries of {channels} channels into {groups} groups")
    split = torch.unflatten(neurons, -1, (channels, d // channels))  # (sets, N, channels, entries)
    if order is not None:
        split = split.index_select(2, order.to(neurons.device))
    size = -(-channels // groups)
    if channels % groups:
        sizes = [len(part) for part in torch.arange(channels).tensor_split(groups)]
        parts = torch.split(split, sizes, dim=2)
        padded = [torch.nn.functional.pad(p, (0, 0, 0, size - p.shape[2])) for p in parts]
        split = torch.cat(padded, 2)
    pieces = split.reshape(sets, n, groups, -1).transpose(1, 2)
    return pieces.reshape(sets * groups, n, -1)
