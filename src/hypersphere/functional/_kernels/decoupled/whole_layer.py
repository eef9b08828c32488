"""A decoupled layer with learned radii for accelerators without Triton, norms and mean included.

    f = scale h(n; rho m) g(c) + shift,    m = E n, the mean norm of all patches of the batch

Patch norms, their mean and the operator are one function, so that what flows back through all of
them meets in one map of the patches: with N patches,

    dL/dn + (dL/dm) / N,    dL/dm = sum over the filters of (dL/drho) rho / m
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from .backward import plain_gradients, wants_plain_gradients
from .convolution import convolution_gradients, correlate
from .lengths import FLOOR
from .numbers import quotient
from .patch_norms import plain_patch_norms
from .plain import Inputs, OperatorSettings, plain_operator
from .whole import Gradients, Pass
from .whole_norms import norms_to_pixels, whole_norms

__all__ = ["whole_layer"]


def whole_layer(
    inputs: Inputs, mean_norm: Callable[[Tensor], Tensor], op: OperatorSettings
) -> Tensor:
    """f(w, x) of inputs whose norm is to be found and whose radius counts in units of its mean."""
    x, _, *others = inputs
    out: Tensor = _WholeLayer.apply(op, mean_norm, x, *others)  # type: ignore[no-untyped-call]
    return out


class _WholeLayer(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any,
        op: OperatorSettings,
        mean_norm: Callable[[Tensor], Tensor],
        x: Tensor,
        kernel: Tensor,
        rho: Tensor,
        *others: Tensor | None,
    ) -> Tensor:
        norm = whole_norms(x, tuple(kernel.shape[2:]), op.geometry)
        mean = mean_norm(norm)
        radius = rho * mean
        s = correlate(x, kernel, op.geometry)
        parts = Pass(Inputs(x, norm, kernel, radius, *others), s, op)
        out, *kept = parts.forward(s)
        floored = parts.lengths.floored.view_as(norm)
        ctx.op = op
        ctx.save_for_backward(x, kernel, rho, *others, norm, floored, mean, radius, *kept)
        return out

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        x, kernel, rho, *others, norm, floored, mean, radius, c, value, h = ctx.saved_tensors
        op, needed = ctx.op, ctx.needs_input_grad[2:]
        if wants_plain_gradients(grad):
            return None, None, *_plainly(grad, (x, kernel, rho, *others), mean, needed, op)
        parts = Pass(Inputs(x, norm, kernel, radius, *others), c, op)
        parts.lengths.floored = floored.view_as(parts.norm)
        need_x, need_kernel, need_rho, *need_others = needed
        # The mean, and with it every norm, depends on what flows into the radius.
        need: Any = Inputs(need_x, need_x, need_kernel, need_rho or need_x, *need_others)
        found = parts.backward(grad, c, value, h, need)
        grad_x, grad_kernel = convolution_gradients(
            found.s, x, kernel, op.geometry, need_x, need_kernel
        )
        grad_rho, into_norms = _through_mean(found, rho, mean, norm.numel())
        if grad_x is not None and into_norms is not None:
            # Pixels of a zero patch are 0, and so is all that a finite number makes of them; a
            # narrow type would make it infinite, so there the patch counts as infinitely long.
            wide = x.dtype == norm.dtype
            length = floored if wide else torch.threshold(floored, FLOOR, math.inf)
            spread = quotient(into_norms, length, found.norm_factor)
            pixel = norms_to_pixels(spread, x, tuple(kernel.shape[2:]), op.geometry)
            grad_x = torch.addcmul(grad_x, x, pixel)
        grad_rho = grad_rho if need_rho else None
        return None, None, grad_x, grad_kernel, grad_rho, found.k, found.scale, found.shift


def _through_mean(
    found: Gradients, rho: Tensor, mean: Tensor, patches: int
) -> tuple[Tensor | None, Tensor | None]:
    """The gradient in rho, and that in n with the part that comes through the mean."""
    if found.radius is None:
        return None, found.norm
    share = 1 / (max(1, patches) * found.norm_factor)
    if found.radius_is_relative:
        grad_rho = quotient(found.radius, rho, -1.0)
        if found.norm is None:
            return grad_rho, None
        return grad_rho, torch.addcdiv(found.norm, torch.dot(grad_rho, rho), mean, value=share)
    grad_rho = found.radius * mean
    if found.norm is None:
        return grad_rho, None
    return grad_rho, torch.add(found.norm, torch.dot(found.radius, rho), alpha=share)


def _plainly(
    grad: Tensor,
    tensors: tuple[Tensor | None, ...],
    mean: Tensor,
    needed: tuple[bool, ...],
    op: OperatorSettings,
) -> list[Tensor | None]:
    """The gradients by plain operations."""

    def out(x: Tensor, kernel: Tensor, rho: Tensor, *others: Tensor | None) -> Tensor:
        norm = plain_patch_norms(x, tuple(kernel.shape[2:]), op.geometry)
        batch = norm.mean() if norm.numel() else norm.sum()
        used = torch.where(batch > 0, batch, mean)  # as functional/mean_norm.py does
        return plain_operator(Inputs(x, norm, kernel, rho * used, *others), op)

    return plain_gradients(out, tensors, needed, grad)
