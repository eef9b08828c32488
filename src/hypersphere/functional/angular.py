"""Angular activations g(theta), Eq. 4.11-4.14, as functions of cos(theta).

A neuron answers with g of the angle between its direction and the input's. All four fall from
g(0) = 1 through g(pi / 2) = 0 to g(pi) = -1. With c = cos(theta), arcsin(c) = pi / 2 - theta:

==============  =====  ==============================================
kind            Eq.    g
==============  =====  ==============================================
linear          4.11   (2 / pi) arcsin(c)
cosine          4.12   c
sigmoid         4.13   tanh(arcsin(c) / 2k) / tanh(pi / 4k)
square_cosine   4.14   c |c|
==============  =====  ==============================================

The quotient of exponentials in Eq. 3.4 and 4.13 is that quotient of hyperbolic tangents, which
neither overflows for small k nor cancels for large k.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Literal, TypeAlias

import torch
from torch import Tensor

__all__ = [
    "ANGULAR_KINDS",
    "Angular",
    "AngularKind",
    "angular",
    "angular_derivative",
    "angular_derivative_k",
    "arcsin",
]

AngularKind: TypeAlias = Literal["linear", "cosine", "sigmoid", "square_cosine"]
Angular: TypeAlias = AngularKind | Callable[[Tensor], Tensor]

ANGULAR_KINDS: tuple[str, ...] = ("linear", "cosine", "sigmoid", "square_cosine")
DEFAULT_K = 0.5  # where the learnable k starts (3.4.3)


class _Arcsin(torch.autograd.Function):
    generate_vmap_rule = True

    @staticmethod
    def forward(c: Tensor, eps: float) -> Tensor:
        return c.clamp(-1, 1).asin_()

    @staticmethod
    def setup_context(ctx, inputs, output) -> None:  # type: ignore[no-untyped-def]
        ctx.save_for_backward(inputs[0])
        ctx.eps = inputs[1]

    @staticmethod
    def backward(ctx, grad: Tensor):  # type: ignore[no-untyped-def, override]
        (c,) = ctx.saved_tensors
        return grad * _inverse_sine(c, ctx.eps), None


def arcsin(c: Tensor, eps: float | None = None) -> Tensor:
    """arcsin(c) = pi / 2 - theta, exact to float precision, with a finite gradient at c = +-1.

    Values beyond +-1 by rounding count as +-1. eps: the rounding error of c, if c was computed in
    a narrower type than it has; the gradient takes no angle for smaller than that error.

    >>> c = torch.tensor([-1.0, 0.0, 1.0], requires_grad=True)
    >>> arcsin(c).sum().backward()
    >>> c.grad.isfinite().all()
    tensor(True)
    """
    if not torch.is_grad_enabled():
        return c.clamp(-1, 1).asin_()
    return _Arcsin.apply(c, torch.finfo(c.dtype).eps if eps is None else eps)


def angular(cos: Tensor, kind: Angular = "cosine", k: float | Tensor | None = None) -> Tensor:
    """g(theta) from cos(theta), Eq. 4.11-4.14; differentiable in cos and in k.

    cos: any shape, values in [-1, 1] (beyond by rounding counts as +-1).
    kind: "linear", "cosine", "sigmoid", "square_cosine", or any callable of cos.
    k: curvature of the sigmoid, > 0, a number or a tensor that broadcasts against cos; 0.5 if not
    given. Small k approaches the step function, large k the linear activation.

    float16 and bfloat16 are computed in float32 and returned in their own type.

    >>> angular(torch.tensor([1.0, 0.5, 0.0, -1.0]), "linear")
    tensor([ 1.0000,  0.3333,  0.0000, -1.0000])
    >>> angular(torch.tensor([1.0, 0.5, -1.0]), "sigmoid", k=0.3)
    tensor([ 1.0000,  0.7102, -1.0000])
    >>> angular(torch.tensor([0.5, -0.5]), torch.relu)
    tensor([0.5000, 0.0000])
    """
    if callable(kind):
        return kind(cos)
    check_kind(kind, k)
    return wide_angular(_widen(cos), kind, k, _rounding(cos)).to(cos.dtype)


def wide_angular(
    cos: Tensor, kind: AngularKind, k: float | Tensor | None, eps: float | None
) -> Tensor:
    """g of cosines in float32 or wider that may come from a narrower type, with rounding eps."""
    if kind == "cosine":
        return cos
    if kind == "square_cosine":
        return cos * cos.abs()
    if kind == "linear":
        return 2 / math.pi * arcsin(cos, eps)
    half_over_k, end = sigmoid_constants(k, cos)
    return torch.tanh(arcsin(cos, eps) * half_over_k) / end


def angular_derivative(
    cos: Tensor, kind: AngularKind = "cosine", k: float | Tensor | None = None
) -> Tensor:
    """dg / dcos(theta), finite everywhere, for backward passes written by hand.

    The activations that go through the angle (linear, sigmoid) have an infinite slope in cos at
    theta = 0 and pi; there sin^2(theta) is floored at the rounding error of cos.

    >>> angular_derivative(torch.tensor([0.0, 0.6, 1.0]), "square_cosine")
    tensor([0.0000, 1.2000, 2.0000])
    """
    check_kind(kind, k)
    wide = _widen(cos)
    if kind == "cosine":
        return torch.ones_like(cos)
    if kind == "square_cosine":
        return (2 * wide.abs()).to(cos.dtype)
    if kind == "linear":
        return (2 / math.pi * _inverse_sine(wide, _rounding(cos))).to(cos.dtype)
    return sigmoid_derivatives(wide, k, _rounding(cos), of_k=False)[0].to(cos.dtype)


def angular_derivative_k(cos: Tensor, k: float | Tensor | None = None) -> Tensor:
    """dg / dk of the sigmoid activation, Eq. 4.13, for backward passes written by hand.

    It vanishes at theta = 0, pi / 2 and pi, where g does not depend on k.

    >>> angular_derivative_k(torch.tensor([0.0, 0.5, 1.0]), k=0.3).round(decimals=4)
    tensor([ 0.0000, -1.3562,  0.0000])
    """
    check_kind("sigmoid", k)
    slope = sigmoid_derivatives(_widen(cos), k, _rounding(cos), of_k=True)[1]
    assert slope is not None
    return slope.to(cos.dtype)


def sigmoid_derivatives(
    cos: Tensor, k: float | Tensor | None, eps: float, of_k: bool
) -> tuple[Tensor, Tensor | None]:
    """dg / dcos and, if asked for, dg / dk of the sigmoid, which share most of their work."""
    half_over_k, end = sigmoid_constants(k, cos)
    angle = arcsin(cos)
    tanh = torch.tanh(angle * half_over_k)
    slope = _one_minus_square(tanh)
    of_cos = slope * _inverse_sine(cos, eps) * (half_over_k / end)
    if not of_k:
        return of_cos, None
    # d(1/2k)/dk = -2 (1/2k)^2, and the argument of `end` is (pi/2) (1/2k).
    factor = 2 * half_over_k * half_over_k / end
    of_k_slope = tanh * (factor * math.pi / 2 * (1 - end * end) / end) - angle * slope * factor
    return of_cos, of_k_slope


def sigmoid_constants(k: float | Tensor | None, like: Tensor) -> tuple[Tensor, Tensor]:
    """1 / 2k and tanh(pi / 4k), in the type of `like`."""
    value = DEFAULT_K if k is None else k
    k = torch.as_tensor(value, dtype=like.dtype, device=like.device)  # not by way of float32
    half_over_k = 0.5 / k
    return half_over_k, torch.tanh(math.pi / 2 * half_over_k)


def check_kind(kind: str, k: float | Tensor | None = None) -> None:
    """Refuse unknown activations and a k that is not positive."""
    if kind not in ANGULAR_KINDS:
        raise ValueError(
            f"unknown angular activation {kind!r}; expected one of {', '.join(ANGULAR_KINDS)}, "
            f"or a callable of cos(theta)"
        )
    if isinstance(k, (int, float)) and not k > 0:
        raise ValueError(f"the sigmoid activation expects k > 0 (Eq. 4.13), got k={k}")


def _inverse_sine(c: Tensor, eps: float) -> Tensor:
    # See Note [Gradient of arccos at the ends] in angles.py: 1 / sin(theta), with sin^2 floored.
    return _one_minus_square(c).clamp_min(eps).rsqrt()


def _rounding(cos: Tensor) -> float:
    return torch.finfo(cos.dtype).eps


def _one_minus_square(x: Tensor) -> Tensor:
    return torch.addcmul(x.new_ones(()), x, x, value=-1)


def _widen(x: Tensor) -> Tensor:
    if not x.is_floating_point():
        raise TypeError(f"cos(theta) must be floating-point, got {x.dtype}; convert with .float()")
    return x.float() if x.dtype in (torch.float16, torch.bfloat16) else x
