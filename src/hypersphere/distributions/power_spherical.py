"""The power spherical distribution: like von Mises-Fisher, but sampled without rejection."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from ..functional import (
    power_spherical_angle_slope,
    power_spherical_kl_uniform,
    power_spherical_log_normalizer,
    sphere_log_area,
)
from .fitting import mean_direction_and_length
from .rotational import RotationalDistribution, chord_square, working_precision

__all__ = ["PowerSpherical"]


class PowerSpherical(RotationalDistribution):
    r"""Density (1 + mu.x)^kappa / N_d(kappa) on the unit sphere of R^d (De Cao and Aziz, 2020).

    Uniform at kappa = 0; for large kappa a Gaussian of variance 2/kappa across mu. Dimension 2 to
    beyond 10,000 and concentration 0 to beyond 1e6. (1 + mu.x)/2 is Beta-distributed, so a sample
    needs two gamma variables and no rejection.

    Args:
        mean_direction: mu, unit vectors (..., d), d >= 2. Kept normalized, so gradients are tangent
            to the sphere.
        concentration: kappa, finite numbers >= 0 of a shape that broadcasts with (...), or one
            number.
        validate_args: Check parameters and values. Default: as set for `torch.distributions`,
            whose checks the first `torch.compile` of a process turns off.

    >>> distribution = PowerSpherical(torch.tensor([0.0, 0.0, 1.0]), 2.0)
    >>> distribution.mean  # E[mu.x] = kappa / (kappa + d - 1)
    tensor([0.0000, 0.0000, 0.5000])
    >>> distribution.sample((5,)).shape
    torch.Size([5, 3])
    """

    def log_prob(self, value: Tensor) -> Tensor:
        """Logarithm of the density with respect to the area of the sphere.

        log(1 + mu.x) is taken from the chord to mu on its side of the sphere and from the chord to
        -mu on the other, with all digits. The gradient in `value` is the one along the sphere; its
        radial part has no meaning. At -mu, where the density is zero, the value is finite and very
        small.

        Args:
            value: Unit vectors x, (..., d), broadcasting with the batch shape.

        Returns:
            Log densities (...).
        """
        if self._validate_args:
            self._validate_sample(value)
        x, mu, kappa = working_precision(value, self.mean_direction, self.concentration)
        wide = self._wide_concentration()
        offset = power_spherical_log_normalizer(wide, self.dim) - wide * math.log(2)
        near, far = chord_square(x, mu), chord_square(x, -mu)
        log_half = torch.where(  # log((1 + mu.x) / 2)
            near < 2,
            torch.log1p(-near.clamp_max(2) / 4),
            torch.log(far.clamp_min(torch.finfo(far.dtype).tiny) / 4),
        )
        return (kappa * log_half - offset.to(kappa.dtype)).to(self.concentration.dtype)

    def entropy(self) -> Tensor:
        """Differential entropy in nats, (*batch_shape)."""
        return sphere_log_area(self.dim) - power_spherical_kl_uniform(self.concentration, self.dim)

    @classmethod
    def fit(cls, x: Tensor, weights: Tensor | None = None) -> PowerSpherical:
        """The distribution whose mean is the mean of the data (method of moments, closed form).

        kappa = (d - 1) R / (1 - R) for a mean of length R. The maximum-likelihood direction has no
        closed form; this estimate is consistent, and differentiable in `x` and `weights`.

        Args:
            x: Directions (..., n, d) of any positive length, n per distribution.
            weights: Weights >= 0, (..., n). Default: all equal.

        Returns:
            Distributions of batch shape (...).

        >>> axes = torch.eye(3)  # mean (1, 1, 1)/3 of length 1/sqrt(3)
        >>> PowerSpherical.fit(axes).concentration
        tensor(2.7321)
        """
        direction, length = mean_direction_and_length(x, weights)
        kappa = (x.shape[-1] - 1) * length / (1 - length)
        return cls(direction.to(x.dtype), kappa.to(x.dtype))

    def _draw_angle(self, kappa: Tensor) -> Tensor:
        # (1 + cos(theta))/2 = G / (G + H), hence tan^2(theta/2) = H / G
        beta = torch.full_like(kappa, (self.dim - 1) / 2)
        toward, away = torch._standard_gamma(kappa + beta), torch._standard_gamma(beta)
        return 2 * torch.atan2(away.sqrt(), toward.sqrt())

    def _angle_slope(self, theta: Tensor, kappa: Tensor) -> Tensor:
        return power_spherical_angle_slope(theta, kappa, self.dim)

    def _cosine_moments(self) -> tuple[Tensor, Tensor, Tensor]:
        # mu.x = 2 z - 1 with z ~ Beta(alpha, beta)
        beta, kappa = (self.dim - 1) / 2, self.concentration
        alpha, total = kappa + beta, kappa + 2 * beta
        along = 4 * alpha * beta / (total.square() * (total + 1))
        return kappa / total, along, 2 * alpha / (total * (total + 1))
