"""The decoupled operator by the kernels of operator.cpp: forward and backward."""

from __future__ import annotations

import threading
from typing import Any
from weakref import WeakKeyDictionary

import torch
from torch import Tensor

from ..convolution import convolution_gradients, correlate
from ..formulas import Untranslatable
from ..plain import Inputs, OperatorSettings, differentiable_gradients
from .filters import Filters, bits, declared, needed_sums, totals
from .libraries import library
from .norms import through_norms
from .passes import dense, run_backward, run_forward
from .tensors import is_dense, norms_library, suits
from .translate import operator_source
from .verify import agrees

__all__ = ["kernels_of", "native_operator"]

MOST = 8  # libraries of one pair of g and h, which differ in their constants


def native_operator(inputs: Inputs, op: OperatorSettings, own_norm: bool) -> Tensor | None:
    """f(w, x), or None where the kernels cannot; `own_norm` as in `apply_operator`."""
    geometry = op.geometry
    if not suits(inputs.x) or not suits(inputs.kernel) or inputs.norm.dtype != torch.float32:
        return None
    if geometry is not None and (geometry.groups > 1 or inputs.x.ndim != 4):
        return None
    if any(t is not None and t.device != inputs.x.device for t in inputs):
        return None
    kernels = kernels_of(op, inputs.radius.ndim > 0)
    if kernels is None or not is_dense(inputs.x):
        return None
    out: Tensor = _NativeOperator.apply(kernels, own_norm and geometry is not None, op, *inputs)  # type: ignore[no-untyped-call]
    return out


def kernels_of(op: OperatorSettings, radius_per_filter: bool) -> Any:
    """The two passes of an operator, made once; None if g or h has a state or no such form."""
    g, h = op.angular, op.magnitude
    # An object with attributes of its own may change; named formulas have none but the name.
    if (vars(g).keys() | vars(h).keys()) - {"name"} or norms_library() is None:
        return None
    known = _made.setdefault(g, {})
    key = (h, op.alpha, op.beta, radius_per_filter and h.has_radius)
    if key not in known:
        if sum(other[0] is h for other in known) >= MOST:  # constants that change at every step
            return None
        known[key] = _made_of(op, key[3])
    return known[key]


def _made_of(op: OperatorSettings, radius_per_filter: bool) -> Any:
    try:
        text = operator_source(op, radius_per_filter, torch.finfo(torch.float32).eps)
    except Untranslatable:
        return None
    found = declared(library(text))
    return found if found is not None and agrees(found, op, radius_per_filter) else None


_made: WeakKeyDictionary[Any, dict[Any, Any]] = WeakKeyDictionary()


_taking = threading.Lock()


class _NativeOperator(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, kernels: Any, own_norm: bool, op: OperatorSettings, *tensors: Tensor | None
    ) -> Tensor:
        inputs = Inputs(*(t if t is None else t.detach() for t in tensors))  # type: ignore[arg-type]
        k = op.k if inputs.k is None else inputs.k
        filters = Filters.of(len(inputs.kernel), k, inputs.radius, inputs.scale, inputs.shift)
        s = dense(correlate(inputs.x, inputs.kernel, op.geometry))
        ctx.kernels, ctx.own_norm, ctx.op, ctx.spent = kernels, own_norm, op, False
        ctx.filters = filters
        ctx.save_for_backward(*tensors, s)
        return run_forward(kernels, s, inputs.norm.resolve_neg().contiguous(), filters)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        if torch.is_autocast_enabled("cpu"):  # it would narrow what the kernels take as float32
            with torch.autocast("cpu", enabled=False):
                return _gradients(ctx, grad)
        return _gradients(ctx, grad)


def _gradients(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
    *tensors, s = ctx.saved_tensors
    op, inputs, needed = ctx.op, Inputs(*tensors), ctx.needs_input_grad[3:]
    if torch.is_grad_enabled():  # a second derivative will be asked of the result
        plain = differentiable_gradients(grad, inputs, needed, op, ctx.own_norm)
        return None, None, None, *plain
    # The gradient in s takes its place, which spares an output-sized tensor. Should a retained
    # graph come here again, or another thread at the same time, s is computed again.
    with _taking:
        spent, ctx.spent = ctx.spent, True
    # Of the data, whose version is not that of the saved tensor: a second visit finds it valid.
    s = dense(correlate(inputs.x, inputs.kernel, op.geometry)) if spent else s.data
    need = needed_sums(op, *needed[3:])
    norm, geometry = inputs.norm.resolve_neg().contiguous(), op.geometry
    grad_norm, sums = run_backward(ctx.kernels, grad, s, norm, ctx.filters, bits(need), s)
    grad_x, grad_kernel = convolution_gradients(
        s, inputs.x, inputs.kernel, geometry, needed[0], needed[2]
    )
    if ctx.own_norm and grad_x is not None and geometry is not None:
        size = tuple(inputs.kernel.shape[2:])
        grad_x = through_norms(grad_x, grad_norm, norm, inputs.x, size, geometry)
    given = grad_norm if needed[1] and not ctx.own_norm else None
    return None, None, None, grad_x, given, grad_kernel, *totals(sums, need, inputs[3:])
