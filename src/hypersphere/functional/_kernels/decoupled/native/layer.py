"""A whole decoupled convolution as one step: directions of the filters, norms and operator.

The same kernels as in operator.py. What a small layer costs is not arithmetic but steps of autograd
and calls: here there is one of each where there would be three. A radius that depends on the norms
needs them in the graph, and goes the longer way.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from ....angles import normalize
from ..backward import plain_gradients, wants_plain_gradients
from ..convolution import Geometry, correlate, is_traced
from ..numbers import one
from ..patch_norms import plain_patch_norms
from ..plain import Inputs, OperatorSettings, plain_operator
from .filters import Filters
from .gradients import native_gradients, without_autocast
from .norms import measured
from .operator import kernels_of
from .passes import dense, run_forward
from .tensors import is_dense, norms_library, suits, threads_for

__all__ = ["native_layer"]


def native_layer(
    x: Tensor,
    weight: Tensor,
    op: OperatorSettings,
    radius: Tensor | None,
    k: Tensor | None,
    scale: Tensor | None,
    shift: Tensor | None,
) -> Tensor | None:
    """f(w, x) of filters that need not be unit ones, or None where the kernels cannot.

    Args:
        x: (B, C_in, H, W).
        weight: (C, C_in, ...).
        op: the operator.
        radius: as in Inputs; None where h has none.
        k: as in Inputs.
        scale: as in Inputs.
        shift: as in Inputs.
    """
    geometry = op.geometry
    if geometry is None or geometry.groups > 1 or x.ndim != 4 or is_traced():
        return None
    if not (op.angular.is_fused and op.magnitude.is_fused and suits(x) and suits(weight)):
        return None
    if not (is_dense(x) and is_dense(weight)) or x.is_neg() or weight.is_neg():
        return None
    numbers = (radius, k, scale, shift)
    if any(t is not None and t.device.type != "cpu" for t in numbers):
        return None
    kernels = kernels_of(op, radius is not None and radius.ndim > 0)
    if kernels is None:
        return None
    out: Tensor = _NativeLayer.apply(kernels, geometry, op, x, weight, *numbers)  # type: ignore[no-untyped-call]
    return out


class _NativeLayer(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any,
        kernels: Any,
        geometry: Geometry,
        op: OperatorSettings,
        x: Tensor,
        weight: Tensor,
        radius: Tensor | None,
        k: Tensor | None,
        scale: Tensor | None,
        shift: Tensor | None,
    ) -> Tensor:
        count = weight.shape[0]
        unit, lengths = torch.empty_like(weight), weight.new_empty(count)
        places = (weight.data_ptr(), unit.data_ptr(), lengths.data_ptr())
        each = (count, weight.numel() // count)
        norms_library().directions(*places, *each, threads_for(weight))
        norm = measured(x, tuple(weight.shape[2:]), geometry)
        s = dense(correlate(x, unit, geometry))
        filters = Filters.of(
            count, op.k if k is None else k, 1.0 if radius is None else radius, scale, shift
        )
        ctx.kernels, ctx.op, ctx.filters, ctx.spent = kernels, op, filters, False
        ctx.save_for_backward(x, weight, radius, k, scale, shift, unit, lengths, norm, s)
        return run_forward(kernels, s, norm, filters)

    @staticmethod
    @without_autocast
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        x, weight, *numbers, unit, lengths, norm, s = ctx.saved_tensors
        op, needed = ctx.op, ctx.needs_input_grad[3:]
        if wants_plain_gradients(grad):
            plain = plain_gradients(_plain_layer(op), (x, weight, *numbers), needed, grad)
            return None, None, None, *plain
        inputs, asked = Inputs(x, norm, unit, *numbers), (needed[0], False, *needed[1:])
        grad_x, _, of_unit, *others = native_gradients(ctx, grad, inputs, s, asked, own_norm=True)
        if of_unit is not None:
            if of_unit.stride() != unit.stride():
                of_unit = torch.empty_like(unit).copy_(of_unit)
            places = (of_unit.data_ptr(), unit.data_ptr(), lengths.data_ptr())
            each = (unit.shape[0], unit.numel() // unit.shape[0])
            norms_library().through_directions(*places, *each, threads_for(unit))
        return None, None, None, grad_x, of_unit, *others


def _plain_layer(op: OperatorSettings) -> Callable[..., Tensor]:
    """The same function of the tensors in plain operations."""

    def out(x: Tensor, weight: Tensor, radius: Tensor | None, *others: Tensor | None) -> Tensor:
        kernel = normalize(weight.flatten(1)).view_as(weight)
        norm = plain_patch_norms(x, tuple(weight.shape[2:]), op.geometry)
        radius = one(x, x.dtype) if radius is None else radius
        return plain_operator(Inputs(x, norm, kernel, radius, *others), op)

    return out
