"""arcsin(c) with a finite gradient at its ends, through which activations see the angle."""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor
from torch.autograd import forward_ad

from ._kernels.autograd import runs_eagerly

__all__ = ["arcsin", "inverse_sine", "one_minus_square"]


def arcsin(c: Tensor, eps: float | None = None) -> Tensor:
    """arcsin(c) = pi / 2 - theta, exact to float precision, with a finite gradient at c = +-1.

    Values beyond +-1 by rounding count as +-1. Derivatives of any order and mode exist.

    Args:
        c: cosines, any shape, values in [-1, 1].
        eps: rounding error of c, if c was computed in a narrower type than it has; the gradient
            takes no angle for smaller than that error. Default: the rounding error of its type.

    Returns:
        The angles in radians, in [-pi / 2, pi / 2], shaped like c.

    >>> c = torch.tensor([-1.0, 0.0, 1.0], requires_grad=True)
    >>> arcsin(c).sum().backward()
    >>> c.grad.isfinite().all()
    tensor(True)
    """
    eps = torch.finfo(c.dtype).eps if eps is None else eps
    transformed = (
        torch._C._are_functorch_transforms_active()
        or forward_ad._current_level >= 0
        or runs_eagerly()
    )
    if transformed or torch.jit.is_tracing():  # type: ignore[attr-defined, no-untyped-call]
        return _transformed(c, eps)
    if not torch.is_grad_enabled():
        return c.clamp(-1, 1).asin_()
    angle: Tensor = _Arcsin.apply(c, eps)  # type: ignore[no-untyped-call]
    return angle


def inverse_sine(c: Tensor, eps: float) -> Tensor:
    """1 / sin(theta) of cosines known up to eps, the derivative of arcsin."""
    # See Note [Gradient of arccos at the ends] in angles.py: sin^2 is floored at the rounding of c.
    return one_minus_square(c).clamp_min(eps).rsqrt()


def one_minus_square(x: Tensor) -> Tensor:
    """1 - x^2 in one pass."""
    return torch.addcmul(x.new_ones(()), x, x, value=-1)


def _transformed(c: Tensor, eps: float) -> Tensor:
    """The same in plain operations, which forward mode, torch.func and graphs that run eagerly
    differentiate to any order.

    Up to the smallest angle that c resolves it is arcsin, from there a line of the slope reached.
    """
    end = math.sqrt(1 - eps)
    inside = c.clamp(-end, end)
    # Chosen, not added: a steep slope that comes and goes again would leave its rounding behind.
    beyond = torch.where(c.abs() > end, (c - inside.detach()) * eps**-0.5, 0.0)
    line: Tensor = inside.asin() + beyond
    return line + (c.clamp(-1, 1).asin() - line).detach()  # the value is exact


class _Arcsin(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, c: Tensor, eps: float) -> Tensor:
        ctx.save_for_backward(c)
        ctx.eps = eps
        return c.clamp(-1, 1).asin_()

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None]:
        (c,) = ctx.saved_tensors
        return grad * inverse_sine(c, ctx.eps), None
