"""The decoupled operator by the kernels of operator.cpp: forward and backward."""

from __future__ import annotations

from typing import Any
from weakref import WeakKeyDictionary

import torch
from torch import Tensor

from ...libraries import library
from ..backward import wants_plain_gradients
from ..convolution import correlate
from ..formulas import Untranslatable
from ..plain import Inputs, OperatorSettings, differentiable_gradients
from .filters import Filters, declared
from .gradients import native_gradients, without_autocast
from .passes import dense, run_forward
from .tensors import HERE, is_dense, norms_library, suits
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
    found = declared(library(text, headers=HERE))
    return found if found is not None and agrees(found, op, radius_per_filter) else None


_made: WeakKeyDictionary[Any, dict[Any, Any]] = WeakKeyDictionary()


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
    @without_autocast
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        *tensors, s = ctx.saved_tensors
        inputs, needed = Inputs(*tensors), ctx.needs_input_grad[3:]
        if wants_plain_gradients(grad):
            plain = differentiable_gradients(grad, inputs, needed, ctx.op, ctx.own_norm)
            return None, None, None, *plain
        inputs = inputs._replace(norm=inputs.norm.resolve_neg().contiguous())
        return None, None, None, *native_gradients(ctx, grad, inputs, s, needed, ctx.own_norm)
