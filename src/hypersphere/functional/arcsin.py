"""arcsin(c) with a finite gradient at its ends, through which activations see the angle."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

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
    if not torch.is_grad_enabled():
        return c.clamp(-1, 1).asin_()
    angle: Tensor = _Arcsin.apply(c, torch.finfo(c.dtype).eps if eps is None else eps)
    return angle


def inverse_sine(c: Tensor, eps: float) -> Tensor:
    """1 / sin(theta) of cosines known up to eps, the derivative of arcsin."""
    # See Note [Gradient of arccos at the ends] in angles.py: sin^2 is floored at the rounding of c.
    return one_minus_square(c).clamp_min(eps).rsqrt()


def one_minus_square(x: Tensor) -> Tensor:
    """1 - x^2 in one pass."""
    return torch.addcmul(x.new_ones(()), x, x, value=-1)


class _Arcsin(torch.autograd.Function):
    generate_vmap_rule = True

    @staticmethod
    def forward(c: Tensor, eps: float) -> Tensor:
        return c.clamp(-1, 1).asin_()

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
        ctx.save_for_backward(inputs[0])
        ctx.save_for_forward(inputs[0])
        ctx.eps = inputs[1]

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None]:  # type: ignore[override]
        (c,) = ctx.saved_tensors
        return grad * inverse_sine(c, ctx.eps), None

    @staticmethod
    def jvp(ctx: Any, tangent: Tensor, _: None) -> Tensor:  # type: ignore[override]
        (c,) = ctx.saved_tensors
        return tangent * inverse_sine(c, ctx.eps)
