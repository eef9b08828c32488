"""Tensors as the kernels see them: how large, how they lie, how many threads work on them."""

from __future__ import annotations

import ctypes
from ctypes import c_bool, c_int, c_long, c_void_p
from functools import cache
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from ...libraries import library, switched_off
from ..routes import allows_native, route

__all__ = ["Sizes", "Windows", "is_dense", "is_rows", "norms_library", "suits", "threads_for"]

HERE = Path(__file__).parent
FEW = 1 << 15  # numbers that one thread is through with before a second one has started


class Sizes(ctypes.Structure):
    """Images, channels and pixels, and whether the channels of a pixel lie side by side."""

    _fields_ = [*((name, c_long) for name in ("images", "channels", "pixels")), ("rows", c_bool)]

    @classmethod
    def of(cls, x: Tensor) -> Sizes:
        if x.ndim == 2:  # rows of a linear layer are the pixels of one image
            return cls(1, x.shape[1], x.shape[0], True)
        return cls(x.shape[0], x.shape[1], x.shape[2] * x.shape[3], is_rows(x))


class Windows(ctypes.Structure):
    """How the windows of a convolution lie on an image, as in norms.cpp."""

    _fields_ = [
        *((name, c_long) for name in ("height", "width", "out_height", "out_width")),
        *((name, c_long * 2) for name in ("size", "step", "pad", "gap")),
    ]


def suits(x: Tensor) -> bool:
    """Whether the kernels work on tensors like this one: plain float32 on a processor."""
    return (
        type(x) in (Tensor, torch.nn.Parameter)
        and x.dtype == torch.float32
        and x.device.type == "cpu"
        and x.numel() > 0
        and route(x) == "tiled"
        and allows_native()
        and not switched_off()
    )


def is_rows(x: Tensor) -> bool:
    """Whether the channels of (B, C, H, W) lie side by side, and not in planes."""
    return not x.is_contiguous() and x.is_contiguous(memory_format=torch.channels_last)


def is_dense(x: Tensor) -> bool:
    """Whether (B, C, H, W) or (B, C) lies in one of the two ways, without gaps."""
    return x.is_contiguous() or (x.ndim == 4 and is_rows(x))


def threads_for(x: Tensor) -> int:
    return torch.get_num_threads() if x.numel() > FEW else 1


@cache
def norms_library() -> Any:
    """The functions of norms.cpp, or None."""
    found = library(HERE.joinpath("norms.cpp").read_text(), headers=HERE)
    if found is None:
        return None
    found.squares.argtypes = [c_void_p, c_void_p, Sizes, c_int]
    found.window_norms.argtypes = [c_void_p, c_void_p, Windows, c_long, c_int]
    found.spread.argtypes = [c_void_p, c_void_p, c_void_p, Windows, c_long, c_int]
    places = [c_void_p, c_void_p, c_void_p, c_void_p]
    found.add_through_norms.argtypes = [*places, Windows, Sizes, c_int]
    found.directions.argtypes = [*places[:3], c_long, c_long, c_int]
    found.through_directions.argtypes = [*places[:3], c_long, c_long, c_int]
    functions = (found.squares, found.window_norms, found.spread, found.add_through_norms)
    for function in (*functions, found.directions, found.through_directions):
        function.restype = None
    return found
