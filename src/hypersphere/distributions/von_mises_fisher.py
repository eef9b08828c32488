"""The von Mises-Fisher distribution, the Gaussian of the sphere."""

from __future__ import annotations

import torch
from torch import Tensor

from ..functional import (
    sphere_log_area,
    vmf_angle_slope,
    vmf_concentration,
    vmf_kl_uniform,
    vmf_log_normalizer,
    vmf_mean_length,
    vmf_mean_length_slope,
)
from .fitting import mean_direction_and_length
from .rotational import RotationalDistribution, chord_square, working_precision
from .wood import draw_angle

__all__ = ["VonMisesFisher"]


class VonMisesFisher(RotationalDistribution):
    r"""Density exp(kappa mu.x) / Z_d(kappa) on the unit sphere of R^d.

    Uniform at kappa = 0; for large kappa a Gaussian of variance 1/kappa across mu. Dimension 2 to
    beyond 10,000 and concentration 0 to beyond 1e6, exact to rounding error
    (see :func:`~hypersphere.functional.vmf_log_normalizer`).

    Args:
        mean_direction: mu, unit vectors (..., d), d >= 2. Kept normalized, so gradients are tangent
            to the sphere.
        concentration: kappa, finite numbers >= 0 of a shape that broadcasts with (...), or one
            number.
        validate_args: Check parameters and values. Default: as set for `torch.distributions`,
            whose checks the first `torch.compile` of a process turns off.

    >>> mu = torch.tensor([[0.0, 0.0, 1.0], [1.0, 0.0, 0.0]])
    >>> distribution = VonMisesFisher(mu, torch.tensor([0.0, 50.0]))
    >>> distribution.rsample((7,)).shape
    torch.Size([7, 2, 3])
    >>> distribution.log_prob(mu)  # -log(4 pi) of the uniform distribution; log(50 / (2 pi))
    tensor([-2.5310,  2.0741])
    """

    def log_prob(self, value: Tensor) -> Tensor:
        """Logarithm of the density with respect to the area of the sphere.

        Computed as -kappa |x - mu|^2 / 2 - (log Z - kappa), which keeps its digits at large kappa.
        The gradient in `value` is the one along the sphere; its radial part has no meaning.

        Args:
            value: Unit vectors x, (..., d), broadcasting with the batch shape.

        Returns:
            Log densities (...).
        """
        if self._validate_args:
            self._validate_sample(value)
        x, mu, kappa = working_precision(value, self.mean_direction, self.concentration)
        wide = self._wide_concentration()
        offset = vmf_log_normalizer(wide, self.dim) - wide
        logarithm = -kappa * chord_square(x, mu) / 2 - offset.to(kappa.dtype)
        return logarithm.to(self.concentration.dtype)

    def entropy(self) -> Tensor:
        """Differential entropy in nats, (*batch_shape)."""
        return sphere_log_area(self.dim) - vmf_kl_uniform(self.concentration, self.dim)

    @classmethod
    def fit(cls, x: Tensor, weights: Tensor | None = None) -> VonMisesFisher:
        """Maximum likelihood: the direction of the mean, and the kappa with A_d(kappa) = |mean|.

        Differentiable in `x` and `weights`.

        Args:
            x: Directions (..., n, d) of any positive length, n per distribution.
            weights: Weights >= 0, (..., n). Default: all equal.

        Returns:
            Distributions of batch shape (...).

        >>> axes = torch.eye(3)  # mean (1, 1, 1)/3 of length 1/sqrt(3)
        >>> VonMisesFisher.fit(axes).mean
        tensor([0.3333, 0.3333, 0.3333])
        """
        direction, length = mean_direction_and_length(x, weights)
        kappa = vmf_concentration(length, x.shape[-1])
        return cls(direction.to(x.dtype), kappa.to(x.dtype))

    def _draw_angle(self, kappa: Tensor) -> Tensor:
        return draw_angle(kappa, self.dim)

    def _angle_slope(self, theta: Tensor, kappa: Tensor) -> Tensor:
        return vmf_angle_slope(theta, kappa, self.dim)

    def _cosine_moments(self) -> tuple[Tensor, Tensor, Tensor]:
        kappa, d = self._wide_concentration(), self.dim
        mean, along = vmf_mean_length(kappa, d), vmf_mean_length_slope(kappa, d)
        # Across mu the variance is A / kappa; near 0, from A' = 1 - A^2 - (d - 1) A / kappa.
        small = kappa < 1
        near = (1 - mean.square() - along) / (d - 1)
        across = torch.where(small, near, mean / torch.where(small, 1.0, kappa))
        dtype = self.concentration.dtype
        return mean.to(dtype), along.to(dtype), across.to(dtype)
