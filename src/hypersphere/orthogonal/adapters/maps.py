"""Maps from options, as an adapter's file has them."""

from __future__ import annotations

from typing import Any

from torch import nn

from ..rotate import _block_shape, _first_map, block_count, rotate
from ..sites import FilterMatrix

__all__ = ["make_map", "rotate_weight"]


def make_map(
    layout: FilterMatrix,
    method: str,
    blocks: int,
    share_blocks: bool = False,
    bandwidth: int = 1,
    learn_lengths: bool = False,
) -> nn.Module:
    """The map that `rotate` makes for one weight, at its start.

    Args:
        layout: how the weight holds its neurons.
        method: as in `rotate`.
        blocks: as in `rotate`.
        share_blocks: as in `rotate`.
        bandwidth: as in `rotate`.
        learn_lengths: as in `rotate`; no part of the map.

    Returns:
        The map.
    """
    shape = _block_shape(layout, blocks, share_blocks)
    return _first_map(method, None, shape, block_count(layout, blocks), bandwidth).float()


def rotate_weight(module: nn.Module, parameter: str, options: dict[str, Any]) -> None:
    """Rotate one weight of one module, from the identity.

    Args:
        module: that has the weight.
        parameter: its name.
        options: further arguments of `rotate`.
    """
    children = tuple(name for name, _ in module.named_children())
    rotate(module, start="identity", normalize=False, skip=children, **options)
