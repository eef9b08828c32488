"""The backward pass that a whole layer and an operator by itself have in common."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import wraps
from typing import Any

import torch
from torch import Tensor

from ..backward import takes_saved
from ..convolution import convolution_gradients, correlate
from ..plain import Inputs
from .filters import bits, needed_sums, totals
from .norms import through_norms
from .passes import dense, run_backward

__all__ = ["native_gradients", "without_autocast"]

Gradients = tuple[Tensor | None, ...]


def without_autocast(backward: Callable[[Any, Tensor], Gradients]) -> Callable[..., Gradients]:
    """A backward that autocast leaves alone: it would narrow what the kernels take as float32."""

    @wraps(backward)
    def in_float32(ctx: Any, grad: Tensor) -> Gradients:
        if torch.is_autocast_enabled("cpu"):
            with torch.autocast("cpu", enabled=False):
                return backward(ctx, grad)
        return backward(ctx, grad)

    return in_float32


def native_gradients(
    ctx: Any, grad: Tensor, inputs: Inputs, s: Tensor, needed: Sequence[bool], own_norm: bool
) -> list[Tensor | None]:
    """The gradients in the inputs.

    Args:
        ctx: with the kernels, the operator and its numbers per filter.
        grad: that in the output.
        inputs: as in the forward, with dense norms.
        s: w^T x as the forward has saved it; the gradient in s takes its place.
        needed: which of the gradients are asked for, in the order of Inputs.
        own_norm: whether the norms are those of x, whose gradient takes what comes through them.
    """
    x, norm, kernel, *numbers = inputs
    geometry = ctx.op.geometry
    s = dense(s.data) if takes_saved(ctx) else dense(correlate(x, kernel, geometry))
    need = needed_sums(ctx.op, *needed[3:])
    grad_norm, sums = run_backward(ctx.kernels, grad, s, norm, ctx.filters, bits(need), s)
    grad_x, grad_kernel = convolution_gradients(s, x, kernel, geometry, needed[0], needed[2])
    if own_norm and grad_x is not None:
        grad_x = through_norms(grad_x, grad_norm, norm, x, tuple(kernel.shape[2:]), geometry)
    of_norm = grad_norm if needed[1] and not own_norm else None
    return [grad_x, of_norm, grad_kernel, *totals(sums, need, numbers)]
