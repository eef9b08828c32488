"""torch's own product of matrices, for the kernels in C++."""

from __future__ import annotations

import ctypes
from ctypes import c_void_p
from functools import cache
from pathlib import Path

import torch

__all__ = ["gemm"]


@cache
def gemm() -> int | None:
    """Where the function begins that torch calls for float32, or None."""
    path = Path(torch.__file__).with_name("lib") / "libtorch_cpu.so"
    try:
        return ctypes.cast(ctypes.CDLL(str(path)).sgemm_, c_void_p).value
    except (OSError, AttributeError):
        return None
