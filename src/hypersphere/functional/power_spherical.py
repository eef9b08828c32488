r"""Formulas of the power spherical distribution (De Cao and Aziz, 2020), whose density is

    f(x) = (1 + mu.x)^kappa / N_d(kappa),        (1 + mu.x)/2 ~ Beta(kappa + beta, beta),

with beta = (d - 1)/2. All formulas come from one function and its derivative,

    D(kappa) = log Gamma(2 beta + kappa) / Gamma(2 beta) - log Gamma(beta + kappa) / Gamma(beta):

log N_d = log N_d(0) + kappa log 2 - D and E[log(1 + mu.x)] = log 2 - D'. They are exact to rounding
error in float64 and can be differentiated any number of times; other types are computed in float64
inside and returned in their own.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

from .angles import _double
from .von_mises_fisher import _check, sphere_log_area

__all__ = [
    "power_spherical_kl_uniform",
    "power_spherical_log_normalizer",
    "power_spherical_log_slope",
]

# Stirling's series log Gamma(a) = (a - 1/2) log a - a + log(2 pi)/2 + sum_i c_i / a^(2i+1), below
# rounding error with seven terms from a = 20 on.
STIRLING = (1 / 12, -1 / 360, 1 / 1260, -1 / 1680, 1 / 1188, -691 / 360360, 1 / 156)
MIN_ARGUMENT = 20


def power_spherical_log_normalizer(kappa: Tensor, dim: int) -> Tensor:
    """log N_d(kappa), the logarithm of the integral of (1 + mu.x)^kappa over the unit sphere.

    Args:
        kappa: Concentrations >= 0, of any shape.
        dim: Dimension d >= 2 of the space around the sphere.

    Returns:
        log N_d(kappa), of the shape and type of `kappa`; :func:`sphere_log_area` at 0.

    >>> power_spherical_log_normalizer(torch.tensor([0.0, 1.0]), 3).exp() / math.pi
    tensor([4.0000, 4.0000])
    """
    _check(kappa, dim)
    wide = _double(kappa)
    value = sphere_log_area(dim) + wide * math.log(2) - _log_gamma_quotient(wide, dim)
    return value.to(kappa.dtype)


def power_spherical_log_slope(kappa: Tensor, dim: int) -> Tensor:
    """D'(kappa) = log 2 - E[log(1 + mu.x)] = digamma(2 beta + kappa) - digamma(beta + kappa).

    Args:
        kappa: Concentrations >= 0, of any shape.
        dim: Dimension d >= 2; beta = (d - 1)/2.

    Returns:
        Positive values of the shape and type of `kappa`, falling as beta / kappa.

    >>> power_spherical_log_slope(torch.tensor(0.0), 3)
    tensor(1.)
    """
    _check(kappa, dim)
    return _log_gamma_quotient_slope(_double(kappa), dim).to(kappa.dtype)


def power_spherical_kl_uniform(kappa: Tensor, dim: int) -> Tensor:
    """D - kappa D', the divergence from the uniform distribution.

    Args:
        kappa: Concentrations >= 0, of any shape.
        dim: Dimension d >= 2.

    Returns:
        The Kullback-Leibler divergence in nats, of the shape and type of `kappa`.

    >>> power_spherical_kl_uniform(torch.tensor([0.0, 1.0]), 3)
    tensor([0.0000, 0.1931])
    """
    _check(kappa, dim)
    wide = _double(kappa)
    value = _log_gamma_quotient(wide, dim) - wide * _log_gamma_quotient_slope(wide, dim)
    return value.to(kappa.dtype)


def _arguments(dim: int) -> tuple[float, int, float, float]:
    """beta, the number n of recursion steps, and the arguments beta + n and 2 beta + n >= 20."""
    beta = (dim - 1) / 2
    steps = max(0, math.ceil(MIN_ARGUMENT - beta))
    return beta, steps, beta + steps, 2 * beta + steps


def _log_gamma_quotient(kappa: Tensor, dim: int) -> Tensor:
    """D, by Stirling's series at beta + n and 2 beta + n and n factors to come down from there."""
    beta, steps, low, high = _arguments(dim)
    value = (
        kappa * torch.log1p(beta / (low + kappa))
        + (high - 0.5) * torch.log1p(kappa / high)
        - (low - 0.5) * torch.log1p(kappa / low)
    )
    for i, c in enumerate(STIRLING):
        power = -(2 * i + 1)
        moved = (high + kappa).pow(power) - (low + kappa).pow(power)
        value = value + c * (moved - (high**power - low**power))
    for j in range(steps):
        value = value + torch.log1p(kappa / (beta + j)) - torch.log1p(kappa / (2 * beta + j))
    return value


def _log_gamma_quotient_slope(kappa: Tensor, dim: int) -> Tensor:
    """D', term by term."""
    beta, steps, low, high = _arguments(dim)
    lower, higher = low + kappa, high + kappa
    value = torch.log1p(beta / lower) + beta / (2 * lower * higher)
    for i, c in enumerate(STIRLING):
        power = 2 * i + 1
        value = value - c * power * (higher.pow(-power - 1) - lower.pow(-power - 1))
    for j in range(steps):
        value = value + beta / ((beta + j + kappa) * (2 * beta + j + kappa))
    return value
