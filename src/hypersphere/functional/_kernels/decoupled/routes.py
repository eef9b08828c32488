"""Which form of the decoupled operators runs: chosen by the device, never by an option.

=========  ==========================================  =============================================
route      chosen for                                  how
=========  ==========================================  =============================================
native     processors with a compiler, float32 images  one pass forward, one backward, in C++ built
           and linear maps                             at first use: native/
tiled      processors                                  a few images at a time: tiled.py
whole      accelerators                                the same passes over whole tensors: a launch
                                                       costs more there than memory between passes
triton     accelerators for which Triton compiles,     one kernel forward, one backward: triton/
           float32, float16 and bfloat16
=========  ==========================================  =============================================

What traces the operations (torch.compile, export, torch.func) sees none of these routes, but for
torch.compile on a processor, which calls the passes in C++: native/opaque.py.
"""

from __future__ import annotations

import importlib.util
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from typing import Literal, TypeAlias

import torch
from torch import Tensor

__all__ = ["Route", "allows_native", "force", "route"]

Route: TypeAlias = Literal["native", "tiled", "whole", "triton"]

_forced: Route | None = None


def route(x: Tensor) -> Route:
    """The form for tensors that lie where x lies and have its type.

    "native" is never returned: it is taken for what of "tiled" it can do, see `allows_native`.
    """
    if _forced is not None:
        return "tiled" if _forced == "native" else _forced
    kind = x.device.type
    if kind in ("cpu", "meta"):
        return "tiled"
    return "triton" if kind in ("cuda", "xpu") and has_triton() and fits_triton(x) else "whole"


def allows_native() -> bool:
    """Whether kernels in C++ may take the place of tiles."""
    return _forced in (None, "native")


def fits_triton(x: Tensor) -> bool:
    """Whether the kernels compute in a type that is wide enough for x."""
    return x.dtype in (torch.float32, torch.float16, torch.bfloat16)


@cache
def has_triton() -> bool:
    """Whether Triton, which comes with torch's builds for accelerators, is installed."""
    return importlib.util.find_spec("triton") is not None


@contextmanager
def force(name: Route | None) -> Iterator[None]:
    """Take a route whatever the device, for tests and for counting launches on a processor.

    >>> with force("whole"):
    ...     route(torch.zeros(1))
    'whole'
    """
    global _forced
    before, _forced = _forced, name
    try:
        yield
    finally:
        _forced = before
