"""Which parts of a compiled layer are kernels in C++, see Note [Compiled layers] in opaque.py."""

from __future__ import annotations

import torch
from torch import Tensor

from ..convolution import Geometry, correlate
from ..plain import Inputs, OperatorSettings
from ..routes import allows_native, route

__all__ = ["compiled_native_norms", "compiled_native_operator"]

# The compiler calls operator_library with the formulas; older ones take numbers and text alone.
_CAN_NAME = torch.__version__ >= "2.13"


def compiled_native_norms(x: Tensor, size: tuple[int, ...], geometry: Geometry) -> Tensor | None:
    """|x| of every patch for a compiler, or None where the kernels cannot."""
    if not _suits(x) or geometry.groups > 1 or x.ndim != 4:
        return None
    from .opaque import has_norms, opaque_norms

    if not has_norms():
        return None
    norm: Tensor = opaque_norms(x, list(size), *(list(part) for part in geometry[:3]))
    return norm


def compiled_native_operator(inputs: Inputs, op: OperatorSettings) -> Tensor | None:
    """f(w, x) for a compiler, or None where the kernels cannot."""
    x, geometry = inputs.x, op.geometry
    if not _CAN_NAME or not _suits(x) or inputs.norm.dtype != torch.float32:
        return None
    if geometry is not None and (geometry.groups > 1 or x.ndim != 4):
        return None
    each = inputs.radius.ndim > 0 and op.magnitude.has_radius
    if op.angular.is_cosine and not each:
        return None  # one product per output, which the compiler joins to what lies around it
    from .opaque import opaque_operator, operator_library

    constants = (float(op.alpha).hex(), float(op.beta).hex())
    library = operator_library(op.magnitude, op.angular, *constants, each)
    if not library:
        return None
    s = correlate(x, inputs.kernel, geometry)
    k = inputs.k
    if k is None and op.k is not None:
        k = torch.full((), op.k, dtype=torch.float32, device=x.device)
    out: Tensor = opaque_operator(
        s, inputs.norm, inputs.radius, k, inputs.scale, inputs.shift, library
    )
    return out


def _suits(x: Tensor) -> bool:
    return (
        type(x) in (Tensor, torch.nn.Parameter)
        and x.dtype == torch.float32
        and x.device.type == "cpu"
        and route(x) == "tiled"
        and allows_native()
    )
