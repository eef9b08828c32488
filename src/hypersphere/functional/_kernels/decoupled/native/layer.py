"""A whole decoupled convolution as one step: directions of the filters, norms and operator.

The same kernels as in operator.py. What a small layer costs is not arithmetic but steps of autograd
and calls: here there is one of each where there would be three. A radius that depends on the norms
needs them in the graph, and goes the longer way.
"""

from __future__ import annotations

import threading
from typing import Any

import torch
from torch import Tensor

from ....angles import normalize
from ..convolution import Geometry, convolution_gradients, correlate, is_traced
from ..numbers import one
from ..plain import Inputs, OperatorSettings, differentiable_gradients
from .filters import Filters, bits, needed_sums, totals
from .norms import measured, through_norms
from .operator import kernels_of
from .passes import dense, run_backward, run_forward
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


_taking = threading.Lock()


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
        unit, lengths = torch.empty_like(weight), weight.new_empty(len(weight))
        places = (weight.data_ptr(), unit.data_ptr(), lengths.data_ptr())
        each = (len(weight), weight[0].numel())
        norms_library().directions(*places, *each, threads_for(weight))
        norm = measured(x, tuple(weight.shape[2:]), geometry)
        s = dense(correlate(x, unit, geometry))
        filters = Filters.of(
            len(weight), op.k if k is None else k, 1.0 if radius is None else radius, scale, shift
        )
        ctx.kernels, ctx.op, ctx.filters, ctx.spent = kernels, op, filters, False
        ctx.save_for_backward(x, weight, radius, k, scale, shift, unit, lengths, norm, s)
        return run_forward(kernels, s, norm, filters)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        if torch.is_autocast_enabled("cpu"):  # it would narrow what the kernels take as float32
            with torch.autocast("cpu", enabled=False):
                return _gradients(ctx, grad)
        return _gradients(ctx, grad)


def _gradients(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
    x, weight, *numbers, unit, lengths, norm, s = ctx.saved_tensors
    op, needed = ctx.op, ctx.needs_input_grad[3:]
    size = tuple(weight.shape[2:])
    if torch.is_grad_enabled():  # a second derivative will be asked of the result
        return None, None, None, *_differentiable(grad, x, weight, numbers, needed, op)
    # See operator.py: the gradient in s takes its place.
    with _taking:
        spent, ctx.spent = ctx.spent, True
    s = dense(correlate(x, unit, op.geometry)) if spent else s.data
    need = needed_sums(op, *needed[2:])
    grad_norm, sums = run_backward(ctx.kernels, grad, s, norm, ctx.filters, bits(need), s)
    grad_x, of_unit = convolution_gradients(s, x, unit, op.geometry, needed[0], needed[1])
    if grad_x is not None:
        grad_x = through_norms(grad_x, grad_norm, norm, x, size, op.geometry)
    if of_unit is not None:
        if of_unit.stride() != unit.stride():
            of_unit = torch.empty_like(unit).copy_(of_unit)
        places = (of_unit.data_ptr(), unit.data_ptr(), lengths.data_ptr())
        each = (len(unit), unit[0].numel())
        norms_library().through_directions(*places, *each, threads_for(unit))
    return None, None, None, grad_x, of_unit, *totals(sums, need, numbers)


def _differentiable(
    grad: Tensor,
    x: Tensor,
    weight: Tensor,
    numbers: list[Tensor | None],
    needed: tuple[bool, ...],
    op: OperatorSettings,
) -> tuple[Tensor | None, ...]:
    """The gradients in plain operations, which have gradients of their own."""
    kernel = normalize(weight.flatten(1)).view_as(weight)
    radius, k, scale, shift = numbers
    # The norms are measured there, from x.
    inputs = Inputs(x, x, kernel, one(x, x.dtype) if radius is None else radius, k, scale, shift)
    of_inputs = (needed[0], False, needed[1], *needed[2:])
    found = list(differentiable_gradients(grad, inputs, of_inputs, op, own_norm=True))
    if found[2] is not None:
        (found[2],) = torch.autograd.grad(kernel, [weight], found[2], create_graph=True)
    return found[0], found[2], *found[3:]
