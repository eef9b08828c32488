"""Kullback-Leibler divergences, registered with `torch.distributions.kl_divergence`.

Not in closed form, and so not registered: from either family to a power spherical distribution
around another direction, which needs E[log(1 + mu.x)] across mu.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import TypeVar

import torch
from torch import Tensor
from torch.distributions import register_kl

from ..functional import (
    power_spherical_kl_uniform,
    power_spherical_log_normalizer,
    power_spherical_log_slope,
    sphere_log_area,
    vmf_kl_uniform,
    vmf_log_normalizer,
    vmf_mean_length,
)
from .domains import broadcast_shape
from .power_spherical import PowerSpherical
from .rotational import RotationalDistribution, chord_square
from .uniform import UniformOnSphere
from .von_mises_fisher import VonMisesFisher

__all__: list[str] = []

Sphere = RotationalDistribution | UniformOnSphere
Formula = TypeVar("Formula", bound=Callable[..., Tensor])


def _registered(p: type[Sphere], q: type[Sphere]) -> Callable[[Formula], Formula]:
    decorator: Callable[[Formula], Formula] = register_kl(p, q)  # type: ignore[no-untyped-call]
    return decorator


def _dim(p: Sphere, q: Sphere) -> int:
    if p.dim != q.dim:
        raise ValueError(
            f"kl_divergence expects distributions on one sphere; got {type(p).__name__} in "
            f"dimension {p.dim} and {type(q).__name__} in dimension {q.dim}"
        )
    return p.dim


def _result(value: Tensor, p: Sphere, q: Sphere, dtype: torch.dtype) -> Tensor:
    return value.to(dtype).expand(broadcast_shape(p.batch_shape, q.batch_shape))


def _common_dtype(p: RotationalDistribution, q: RotationalDistribution) -> torch.dtype:
    return torch.promote_types(p.concentration.dtype, q.concentration.dtype)


@_registered(UniformOnSphere, UniformOnSphere)
def _uniform_uniform(p: UniformOnSphere, q: UniformOnSphere) -> Tensor:
    _dim(p, q)
    return _result(p.entropy() * 0, p, q, p.entropy().dtype)


@_registered(VonMisesFisher, UniformOnSphere)
def _vmf_uniform(p: VonMisesFisher, q: UniformOnSphere) -> Tensor:
    """kappa A(kappa) - log(Z(kappa) / Z(0))."""
    value = vmf_kl_uniform(p.concentration, _dim(p, q))
    return _result(value, p, q, p.concentration.dtype)


@_registered(UniformOnSphere, VonMisesFisher)
def _uniform_vmf(p: UniformOnSphere, q: VonMisesFisher) -> Tensor:
    """log(Z(kappa) / Z(0)), as a uniform direction has mean zero."""
    kappa = q._wide_concentration()
    value = vmf_log_normalizer(kappa, _dim(p, q)) - sphere_log_area(q.dim)
    return _result(value, p, q, q.concentration.dtype)


@_registered(VonMisesFisher, VonMisesFisher)
def _vmf_vmf(p: VonMisesFisher, q: VonMisesFisher) -> Tensor:
    """K(p) - K(q) + kappa_q (A_q - A_p) + kappa_q A_p (1 - mu_p.mu_q), with K as to the uniform."""
    d, dtype = _dim(p, q), _common_dtype(p, q)
    kappa_p, kappa_q = p._wide_concentration(), q._wide_concentration()
    mean_p, mean_q = vmf_mean_length(kappa_p, d), vmf_mean_length(kappa_q, d)
    value = vmf_kl_uniform(kappa_p, d) - vmf_kl_uniform(kappa_q, d) + kappa_q * (mean_q - mean_p)
    return _result(value + kappa_q * mean_p * _one_minus_cosine(p, q), p, q, dtype)


@_registered(PowerSpherical, UniformOnSphere)
def _power_uniform(p: PowerSpherical, q: UniformOnSphere) -> Tensor:
    """D - kappa D', see `functional.power_spherical`."""
    value = power_spherical_kl_uniform(p.concentration, _dim(p, q))
    return _result(value, p, q, p.concentration.dtype)


@_registered(UniformOnSphere, PowerSpherical)
def _uniform_power(p: UniformOnSphere, q: PowerSpherical) -> Tensor:
    """log(N(kappa) / N(0)) - kappa E[log(1 + mu.x)], the expectation being log 2 - D'(0)."""
    d, kappa = _dim(p, q), q._wide_concentration()
    log_mean = math.log(2) - power_spherical_log_slope(torch.zeros_like(kappa), d)
    value = power_spherical_log_normalizer(kappa, d) - sphere_log_area(d) - kappa * log_mean
    return _result(value, p, q, q.concentration.dtype)


@_registered(PowerSpherical, VonMisesFisher)
def _power_vmf(p: PowerSpherical, q: VonMisesFisher) -> Tensor:
    """K(p) + log(Z(kappa_q) / Z(0)) - kappa_q E[mu_p.x] mu_p.mu_q, with K as to the uniform."""
    d, dtype = _dim(p, q), _common_dtype(p, q)
    kappa_p, kappa_q = p._wide_concentration(), q._wide_concentration()
    # kappa_q is taken out of log Z and of the mean, both of which tend to it
    gap = (d - 1) / (kappa_p + (d - 1))  # 1 - E[mu_p.x]
    partition = vmf_log_normalizer(kappa_q, d) - sphere_log_area(d) - kappa_q
    turned = (1 - gap) * _one_minus_cosine(p, q)
    value = power_spherical_kl_uniform(kappa_p, d) + partition + kappa_q * (gap + turned)
    return _result(value, p, q, dtype)


def _one_minus_cosine(p: RotationalDistribution, q: RotationalDistribution) -> Tensor:
    """1 - mu_p.mu_q, exact also for directions that nearly coincide."""
    dtype = p._wide_concentration().dtype
    return chord_square(p.mean_direction.to(dtype), q.mean_direction.to(dtype)) / 2
