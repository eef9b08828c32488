"""Memory for the temporaries of the fused operators, used over and over.

The fused passes run through a batch a few images at a time. New memory for every temporary of every
tile would cost more than the arithmetic: a C library gives blocks of this size back to the system
when they are freed, and the system hands out empty pages, one fault each, when they are needed
again. So each thread keeps a few blocks, of one megabyte at most; a graphics card's allocator does
that by itself.
"""

from __future__ import annotations

import threading

import torch
from torch import Tensor

from .routes import route

__all__ = ["TILE", "Workspace", "tiles"]

TILE = 1 << 17  # numbers of a tile: what a chain of operations holds stays in the cache


def tiles(x: Tensor) -> list[slice]:
    """Slices of the batch, each of TILE numbers at most if a single image is not more.

    An accelerator takes the batch in one piece: each slice would cost it a launch per operation.
    """
    if route(x) != "tiled":
        return [slice(None)]
    count = len(x)
    each = max(1, x.numel() // max(1, count))
    step = max(1, TILE // each)
    return [slice(start, start + step) for start in range(0, count, step)]


class _Kept(threading.local):
    def __init__(self) -> None:
        self.blocks: dict[torch.dtype, list[Tensor]] = {}


_kept = _Kept()


class Workspace:
    """Call it for a temporary shaped like the tile; `start` a tile, and all before it are free.

    >>> new = Workspace(torch.float32)
    >>> new.start(torch.empty(2, 3))
    >>> torch.sin(torch.zeros(2, 3), out=new()).shape
    torch.Size([2, 3])
    """

    def __init__(self, dtype: torch.dtype) -> None:
        self.dtype, self.used = dtype, 0
        self.blocks = _kept.blocks.setdefault(dtype, [])

    def start(self, tile: Tensor) -> None:
        self.tile, self.used = tile, 0
        self.fresh = tile.device.type != "cpu" or route(tile) != "tiled"
        self.shape, self.stride, self.numel = tile.shape, tile.stride(), tile.numel()
        if self.numel > TILE and self.blocks is _kept.blocks[self.dtype]:
            self.blocks = []  # of large images nothing is kept beyond this call

    def __call__(self) -> Tensor:
        if self.fresh:
            return torch.empty_like(self.tile, dtype=self.dtype)
        if self.used == len(self.blocks):
            with torch.inference_mode(False):  # a block may be used in a mode and out of it
                block = torch.empty(max(self.numel, TILE), dtype=self.dtype, device="cpu")
                self.blocks.append(block)
        self.used += 1
        return self.blocks[self.used - 1].as_strided(self.shape, self.stride)
