"""The functions of operator.cpp as Python calls them, and the numbers per filter."""

from __future__ import annotations

import ctypes
from ctypes import c_int, c_void_p
from typing import Any

import torch
from torch import Tensor

from ..numbers import shared_number
from ..plain import Inputs, OperatorSettings
from .tensors import Sizes

__all__ = ["SUMS", "Filters", "declared"]

SUMS = ("shift", "scale", "radius", "k")  # in the order of operator.cpp


class Filters(ctypes.Structure):
    """Where the numbers per filter start; the memory stays as long as this object."""

    _fields_ = [(name, c_void_p) for name in ("k", "radius", "scale", "shift")]

    @classmethod
    def of(cls, inputs: Inputs, op: OperatorSettings) -> Filters:
        filters = inputs.kernel.shape[0]
        k = inputs.k if inputs.k is not None else op.k

        def each(value: Tensor | float | None) -> Tensor | None:
            if value is None:
                return None
            if not isinstance(value, Tensor):
                return shared_number(value, inputs.x.device, torch.float32, (filters,))
            value = value.detach().to(torch.float32).resolve_neg().reshape(-1)
            return value.expand(filters).contiguous()

        kept = [each(k), each(inputs.radius), each(inputs.scale), each(inputs.shift)]
        found = cls(*(0 if t is None else t.data_ptr() for t in kept))
        found.kept = kept
        return found


def declared(found: Any) -> Any:
    """The library with the types of its arguments; None stays None."""
    if found is not None:
        found.forward.argtypes = [c_void_p, c_void_p, Filters, c_void_p, Sizes, c_int]
        tensors = [c_void_p, c_void_p, c_void_p, Filters, c_void_p, c_void_p]
        found.backward.argtypes = [*tensors, c_int, Sizes, c_int]
        found.forward.restype = found.backward.restype = None
    return found
