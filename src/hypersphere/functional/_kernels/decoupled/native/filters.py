"""The functions of operator.cpp as Python calls them, and the numbers per filter."""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from ctypes import c_int, c_void_p
from typing import Any

import torch
from torch import Tensor

from ..numbers import shared_number
from ..plain import OperatorSettings
from .tensors import Sizes

__all__ = ["SUMS", "Filters", "bits", "declared", "needed_sums", "totals"]

CPU = torch.device("cpu")
SUMS = ("shift", "scale", "radius", "k")  # in the order of operator.cpp


class Filters(ctypes.Structure):
    """Where the numbers per filter start; the memory stays as long as this object."""

    _fields_ = [(name, c_void_p) for name in ("k", "radius", "scale", "shift")]

    @classmethod
    def of(
        cls,
        filters: int,
        k: Tensor | float | None,
        radius: Tensor | float,
        scale: Tensor | None = None,
        shift: Tensor | None = None,
    ) -> Filters:
        def each(value: Tensor | float | None) -> Tensor | None:
            if value is None:
                return None
            if not isinstance(value, Tensor):
                return shared_number(value, CPU, torch.float32, (filters,))
            value = value.detach().to(torch.float32).resolve_neg().reshape(-1)
            return value.expand(filters).contiguous()

        kept = [each(k), each(radius), each(scale), each(shift)]
        found = cls(*(0 if t is None else t.data_ptr() for t in kept))
        found.kept = kept
        return found


def needed_sums(
    op: OperatorSettings, radius: bool, k: bool, scale: bool, shift: bool
) -> dict[str, bool]:
    """Which sums over the pixels are asked for."""
    return {"shift": shift, "scale": scale, "radius": radius and op.magnitude.has_radius, "k": k}


def bits(need: dict[str, bool]) -> int:
    """The same as a number for the kernels."""
    return sum(need[name] << place for place, name in enumerate(SUMS))


def totals(
    sums: Tensor, need: dict[str, bool], likes: Sequence[Tensor | None]
) -> list[Tensor | None]:
    """The gradients in radius, k, scale and shift, shaped like these."""
    found: list[Tensor | None] = []
    for name, like in zip(("radius", "k", "scale", "shift"), likes, strict=True):
        if not need[name] or like is None:
            found.append(None)
            continue
        total = sums[SUMS.index(name)]
        found.append((total.view(like.shape) if like.ndim else total.sum()).to(like.dtype))
    return found


def declared(found: Any) -> Any:
    """The library with the types of its arguments; None stays None."""
    if found is not None:
        found.forward.argtypes = [c_void_p, c_void_p, Filters, c_void_p, Sizes, c_int]
        tensors = [c_void_p, c_void_p, c_void_p, Filters, c_void_p, c_void_p, c_void_p]
        found.backward.argtypes = [*tensors, c_int, Sizes, c_int]
        found.forward.restype = found.backward.restype = None
    return found
