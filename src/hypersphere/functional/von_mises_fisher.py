r"""Formulas of the von Mises-Fisher distribution, whose density on the unit sphere of R^d is

    f(x) = exp(kappa mu.x) / Z_d(kappa),   Z_d(kappa) = (2 pi)^(d/2) I_(d/2-1)(kappa) kappa^(1-d/2).

Everything is a function of the concentration kappa >= 0 and the dimension d >= 2 alone. Values are
exact to rounding error in float64 from kappa = 0 to beyond 1e6 and from d = 2 to beyond 10,000, and
can be differentiated any number of times. Other types are computed in float64 inside and returned
in their own. A negative kappa continues the functions analytically.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from ._kernels.autograd import one_step
from ._kernels.bessel.ratio import bessel_ratio
from .angles import _double

__all__ = [
    "sphere_log_area",
    "vmf_concentration",
    "vmf_kl_uniform",
    "vmf_log_normalizer",
    "vmf_mean_length",
    "vmf_mean_length_slope",
]

# From the start below, Newton's method is at rounding error after six steps in the worst case.
NEWTON_STEPS = 8


def sphere_log_area(dim: int) -> float:
    """log of the surface area 2 pi^(d/2) / Gamma(d/2) of the unit sphere in R^d.

    Args:
        dim: d >= 1.

    Returns:
        The logarithm; the area itself underflows near d = 450.

    >>> round(math.exp(sphere_log_area(3)) / math.pi, 12)
    4.0
    """
    return math.log(2) + dim / 2 * math.log(math.pi) - math.lgamma(dim / 2)


def vmf_mean_length(kappa: Tensor, dim: int) -> Tensor:
    """A_d(kappa) = I_{d/2}(kappa) / I_{d/2-1}(kappa), the length of the mean of the distribution.

    Rises from 0 at kappa = 0, as kappa / d, to 1 at infinity, as 1 - (d - 1) / (2 kappa).

    Args:
        kappa: Concentrations >= 0, of any shape.
        dim: Dimension d >= 2 of the space around the sphere.

    Returns:
        A_d(kappa), of the shape and type of `kappa`.

    >>> vmf_mean_length(torch.tensor([0.0, 1.0, 1e6]), 3)  # coth(kappa) - 1 / kappa
    tensor([0.0000, 0.3130, 1.0000])
    """
    return _of(kappa, dim, "mean_length")


def vmf_mean_length_slope(kappa: Tensor, dim: int) -> Tensor:
    """A_d'(kappa) = 1 - A^2 - (d - 1) A / kappa, the variance along the mean direction.

    The formula loses all digits for small and for large kappa; this function does not.

    Args:
        kappa: Concentrations >= 0, of any shape.
        dim: Dimension d >= 2.

    Returns:
        A_d'(kappa), of the shape and type of `kappa`: 1/d at 0, falling as (d - 1) / (2 kappa^2).

    >>> vmf_mean_length_slope(torch.tensor([0.0, 1e6]), 2)
    tensor([5.0000e-01, 5.0000e-13])
    """
    return _of(kappa, dim, "slope")


def vmf_log_normalizer(kappa: Tensor, dim: int) -> Tensor:
    """log Z_d(kappa), the logarithm of the integral of exp(kappa mu.x) over the unit sphere.

    Its derivative is :func:`vmf_mean_length`; at kappa = 0 it is :func:`sphere_log_area`.

    Args:
        kappa: Concentrations >= 0, of any shape.
        dim: Dimension d >= 2.

    Returns:
        log Z_d(kappa), of the shape and type of `kappa`.

    >>> vmf_log_normalizer(torch.tensor([0.0, 1.0]), 3).exp() / math.pi  # 4 sinh(kappa) / kappa
    tensor([4.0000, 4.7008])
    """
    _check(kappa, dim)
    wide = _known(_double(kappa), dim, "log_ratio")
    return (wide + sphere_log_area(dim)).to(kappa.dtype)


def vmf_kl_uniform(kappa: Tensor, dim: int) -> Tensor:
    """kappa A_d(kappa) - log(Z_d(kappa) / Z_d(0)), the divergence from the uniform distribution.

    The entropy is :func:`sphere_log_area` minus this.

    Args:
        kappa: Concentrations >= 0, of any shape.
        dim: Dimension d >= 2.

    Returns:
        The Kullback-Leibler divergence in nats, >= 0, of the shape and type of `kappa`.

    >>> vmf_kl_uniform(torch.tensor([0.0, 1.0]), 3)
    tensor([0.0000, 0.1516])
    """
    return _of(kappa, dim, "information")


def vmf_concentration(mean_length: Tensor, dim: int) -> Tensor:
    """The kappa with A_d(kappa) = R, the most likely one of directions whose mean has length R.

    Newton's method on 1 - A, so that also a mean length next to 1 gives all digits that it holds.

    Args:
        mean_length: R in [0, 1), of any shape.
        dim: Dimension d >= 2.

    Returns:
        Concentrations, of the shape and type of `mean_length`; infinite for R >= 1. The gradient is
        1 / A_d'(kappa).

    >>> vmf_concentration(vmf_mean_length(torch.tensor([0.1, 20.0]), 5), 5)
    tensor([ 0.1000, 20.0000])
    """
    _check(mean_length, dim, "mean_length")
    kappa: Tensor = _concentration(_double(mean_length), dim)
    return kappa.to(mean_length.dtype)


def _check(value: Tensor, dim: int, name: str = "kappa") -> None:
    if not isinstance(value, Tensor) or not value.is_floating_point():
        got = value.dtype if isinstance(value, Tensor) else type(value).__name__
        raise TypeError(
            f"expected {name} as a floating-point tensor, got {got}; "
            "torch.as_tensor(value, dtype=torch.float64) makes one"
        )
    if not isinstance(dim, int) or isinstance(dim, bool) or dim < 2:
        raise ValueError(
            "expected dim, the dimension of the space around the sphere, as an integer >= 2; "
            f"got {dim!r}"
        )


def _of(kappa: Tensor, dim: int, name: str) -> Tensor:
    _check(kappa, dim)
    return _known(_double(kappa), dim, name).to(kappa.dtype)


class _Known(torch.autograd.Function):
    """A function of kappa whose derivative is another one of the family."""

    generate_vmap_rule = True

    @staticmethod
    def forward(kappa: Tensor, dim: int, name: str) -> Tensor:
        values = bessel_ratio(kappa, dim)
        if name == "mean_length":
            return kappa * values.over_kappa
        value: Tensor = getattr(values, name)
        return value

    @staticmethod
    def setup_context(ctx: Any, inputs: Any, output: Tensor) -> None:
        kappa, ctx.dim, ctx.name = inputs
        ctx.save_for_backward(kappa)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None, None]:
        (kappa,) = ctx.saved_tensors
        return grad * _derivative(kappa, ctx.dim, ctx.name), None, None


_known: Callable[..., Tensor] = one_step(_Known)


def _derivative(kappa: Tensor, dim: int, name: str) -> Tensor:
    """The derivative in kappa, itself differentiable."""
    if name == "log_ratio":
        return _known(kappa, dim, "mean_length")
    if name == "mean_length":
        return _known(kappa, dim, "slope")
    if name == "information":
        return kappa * _known(kappa, dim, "slope")
    if name == "over_kappa":
        return _over_kappa_slope(kappa, dim)
    if name == "slope":  # A'' = -2 A A' - (d - 1) (A / kappa)'
        mean, slope = (_known(kappa, dim, which) for which in ("mean_length", "slope"))
        return -2 * mean * slope - (dim - 1) * _over_kappa_slope(kappa, dim)
    raise ValueError(f"no derivative is known for {name!r}")


def _over_kappa_slope(kappa: Tensor, dim: int) -> Tensor:
    """(A / kappa)', by the recursion in d where kappa is small and from A' where it is large."""
    small = kappa.square() < dim  # where both lose about as many digits
    near, far = torch.where(small, kappa, 1.0), torch.where(small, 1.0, kappa)
    here, above = (_known(near, d, "over_kappa") for d in (dim, dim + 2))
    slope, mean = (_known(far, dim, which) for which in ("slope", "mean_length"))
    return torch.where(small, -near * here * (here - above), (slope - mean / far) / far)


class _Concentration(torch.autograd.Function):
    generate_vmap_rule = True

    @staticmethod
    def forward(mean_length: Tensor, dim: int) -> Tensor:
        R = mean_length.clamp(0, 1 - torch.finfo(mean_length.dtype).eps / 2)
        kappa = R * (dim - R * R) / (1 - R * R)  # Banerjee et al. (2005), within some percent
        for _ in range(NEWTON_STEPS):
            values = bessel_ratio(kappa, dim)
            # A is concave: a step from either side ends at or below the root, the next rise to it.
            kappa = (kappa - ((1 - R) - values.gap) / values.slope).clamp_min(0)
        return torch.where(mean_length >= 1, math.inf, kappa)

    @staticmethod
    def setup_context(ctx: Any, inputs: Any, output: Tensor) -> None:
        ctx.dim = inputs[1]
        ctx.save_for_backward(output)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None]:
        (kappa,) = ctx.saved_tensors
        return grad / _known(kappa, ctx.dim, "slope"), None


_concentration: Callable[..., Tensor] = one_step(_Concentration)
