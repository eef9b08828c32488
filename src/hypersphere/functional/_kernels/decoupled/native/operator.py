"""The decoupled operator by the kernels of operator.cpp: forward and backward."""

from __future__ import annotations

import threading
from typing import Any
from weakref import WeakKeyDictionary

import torch
from torch import Tensor

from ..convolution import convolution_gradients, correlate
from ..formulas import Untranslatable
from ..patch_norms import plain_patch_norms
from ..plain import Inputs, OperatorSettings, differentiable_gradients
from .filters import SUMS, Filters, declared
from .libraries import library
from .norms import spread_over_pixels
from .tensors import Sizes, is_dense, norms_library, suits, threads_for
from .translate import operator_source
from .verify import agrees

__all__ = ["native_operator"]

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
    kernels = _kernels(op, inputs.radius.ndim > 0)
    if kernels is None or not is_dense(inputs.x):
        return None
    out: Tensor = _NativeOperator.apply(kernels, own_norm and geometry is not None, op, *inputs)  # type: ignore[no-untyped-call]
    return out


def _kernels(op: OperatorSettings, radius_per_filter: bool) -> Any:
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
        filters = Filters.of(inputs, op)
        out, c = _forward(kernels, inputs, filters, op)
        ctx.kernels, ctx.own_norm, ctx.op, ctx.spent = kernels, own_norm, op, False
        ctx.filters = filters
        ctx.save_for_backward(*tensors, c)
        return out

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        *tensors, c = ctx.saved_tensors
        op, inputs, needed = ctx.op, Inputs(*tensors), ctx.needs_input_grad[3:]
        if torch.is_grad_enabled():  # a second derivative will be asked of the result
            if ctx.own_norm:
                norm = plain_patch_norms(inputs.x, tuple(inputs.kernel.shape[2:]), op.geometry)
                inputs, needed = inputs._replace(norm=norm), (needed[0], False, *needed[2:])
            return None, None, None, *differentiable_gradients(grad, inputs, needed, op)
        # The gradient in s takes the place of c, which spares an output-sized tensor. Should a
        # retained graph come here again, or another thread at the same time, c is computed again.
        with _taking:
            spent, ctx.spent = ctx.spent, True
        # Of the data, whose version is not that of the saved tensor: a second visit finds it valid.
        c = _forward(ctx.kernels, inputs, ctx.filters, op)[1] if spent else c.data
        need = dict(zip(Inputs._fields, needed, strict=True))
        found = _backward(ctx.kernels, grad, inputs, ctx.filters, c, need, ctx.own_norm, op)
        return None, None, None, *found


def _forward(
    kernels: Any, inputs: Inputs, filters: Filters, op: OperatorSettings
) -> tuple[Tensor, Tensor]:
    """f, and the cosines."""
    c = correlate(inputs.x, inputs.kernel, op.geometry)
    c = c if is_dense(c) else c.contiguous()
    out, norm = torch.empty_like(c), inputs.norm.resolve_neg().contiguous()
    places = (c.data_ptr(), norm.data_ptr(), filters, out.data_ptr())
    kernels.forward(*places, Sizes.of(c), threads_for(c))
    return out, c


def _backward(
    kernels: Any,
    grad: Tensor,
    inputs: Inputs,
    filters: Filters,
    c: Tensor,
    need: dict[str, bool],
    own_norm: bool,
    op: OperatorSettings,
) -> tuple[Tensor | None, ...]:
    """The gradients; with `own_norm` the one through the norms of x joins that of x here."""
    x, norm, geometry = inputs.x, inputs.norm.resolve_neg().contiguous(), op.geometry
    if grad.stride() != c.stride() or grad.is_neg():
        grad = torch.empty_like(c).copy_(grad)
    grad_norm = torch.empty_like(norm)
    need["radius"] &= op.magnitude.has_radius
    sums = torch.zeros(len(SUMS), c.shape[1], dtype=torch.float64, device="cpu")
    asked = sum(need[name] << place for place, name in enumerate(SUMS))
    kernels.backward(
        *(grad.data_ptr(), c.data_ptr(), norm.data_ptr(), filters, grad_norm.data_ptr()),
        *(sums.data_ptr(), asked, Sizes.of(c), threads_for(c)),
    )
    totals: dict[str, Tensor] = {}
    for name, total in zip(SUMS, sums, strict=True):
        if need[name]:
            like: Tensor = getattr(inputs, name)
            totals[name] = (total.view(like.shape) if like.ndim else total.sum()).to(like.dtype)
    grad_x, grad_kernel = convolution_gradients(
        c, x, inputs.kernel, geometry, need["x"], need["kernel"]
    )
    if own_norm and grad_x is not None and geometry is not None:
        pixel = spread_over_pixels(grad_norm, norm, x, tuple(inputs.kernel.shape[2:]), geometry)
        out = grad_x if grad_x.stride() == x.stride() else torch.empty_like(x)
        grad_x = torch.addcmul(grad_x, x, pixel, out=out)
    return (
        grad_x,
        grad_norm if need["norm"] and not own_norm else None,
        grad_kernel,
        *(totals.get(name) for name in ("radius", "k", "scale", "shift")),
    )
