"""The door to the routes of accelerators: Triton where it can, whole tensors where it cannot."""

from __future__ import annotations

from typing import Any

from torch import Tensor

from .convolution import Geometry, is_traced
from .plain import Inputs, OperatorSettings
from .routes import fits_triton, route
from .whole import whole_operator
from .whole_layer import whole_layer
from .whole_norms import WholeNorms

__all__ = [
    "accelerated_layer",
    "accelerated_norms",
    "accelerated_operator",
    "accelerated_rows",
]


def accelerated_layer(inputs: Inputs, mean_norm: Any, op: OperatorSettings) -> Tensor | None:
    """f(w, x) of inputs without norms, if the radius counts in units of their mean.

    None where this is not one function: if Triton computes it, if something traces it, and if
    `mean_norm` is not simply the mean of what it is given, which its `is_batch_mean` tells.
    """
    if (
        is_traced()
        or route(inputs.x) != "whole"
        or inputs.radius.ndim != 1
        or not (op.angular.is_fused and op.magnitude.is_fused and op.magnitude.has_radius)
        or not getattr(mean_norm, "is_batch_mean", False)
    ):
        return None
    return whole_layer(inputs, mean_norm, op)


def accelerated_operator(inputs: Inputs, op: OperatorSettings) -> Tensor:
    """f(w, x) by the kernels of Triton, or in a few passes over whole tensors."""
    if _by_triton(inputs.x):
        from .triton.operator import triton_operator

        out = triton_operator(inputs, op)
        if out is not None:
            return out
    return whole_operator(inputs, op)


def accelerated_norms(
    x: Tensor, size: tuple[int, ...], geometry: Geometry | None
) -> tuple[Tensor, Tensor]:
    """x, and |x| of every patch (B, groups, ...)."""
    result: tuple[Tensor, Tensor]
    if _by_triton(x):
        from .triton.norms import TritonNorms

        result = TritonNorms.apply(x, size, geometry)  # type: ignore[no-untyped-call]
    else:
        result = WholeNorms.apply(x, size, geometry)  # type: ignore[no-untyped-call]
    return result


def accelerated_rows(rows: Tensor) -> Tensor | None:
    """w / |w| in float32 by one kernel, where Triton can."""
    if not _by_triton(rows):
        return None
    from .triton.norms import TritonRows

    unit: Tensor = TritonRows.apply(rows)  # type: ignore[no-untyped-call]
    return unit


def _by_triton(x: Tensor) -> bool:
    return route(x) == "triton" and fits_triton(x)
