"""How kernels are started: on the device of their tensors, and seen by the profiler."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import torch
from torch import Tensor

__all__ = ["block", "launch"]

# Where kernels are only counted: called with the name and the tensors of each in its place.
watcher: Callable[[str, list[Tensor]], None] | None = None


def launch(
    kernel: Any, grid: tuple[int, ...], like: Tensor, *arguments: Any, **constants: Any
) -> None:
    """Start a kernel on the device of `like`; an empty grid starts nothing.

    Args:
        kernel: a function compiled by Triton.
        grid: number of programs in each dimension.
        like: a tensor on the device.
        arguments: tensors and numbers of the kernel.
        constants: its constants.
    """
    if watcher is not None:
        watcher(kernel.__name__, [a for a in arguments if isinstance(a, Tensor)])
        return
    if not all(grid):
        return
    with _device(like), _named(kernel):
        kernel[grid](*arguments, **constants)


def block(size: int, most: int) -> int:
    """The least power of two that holds `size`, and no more than `most`."""
    return min(most, 1 << max(0, size - 1).bit_length())


def _device(like: Tensor) -> AbstractContextManager[object]:
    if like.device.type == "cpu":
        return nullcontext()
    return torch.get_device_module(like.device).device(like.device)


def _named(kernel: Any) -> AbstractContextManager[object]:
    # A profile on a processor shows no kernels of Triton but these names.
    if not torch.autograd.profiler._is_profiler_enabled:
        return nullcontext()
    return torch.profiler.record_function(f"triton::{kernel.__name__}")
