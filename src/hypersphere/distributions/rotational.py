"""What all densities that depend on mu.x alone share: parameters, samples from angles, moments."""

from __future__ import annotations

from typing import Any, TypeVar

import torch
from torch import Tensor
from torch.distributions import Distribution

from ..functional import normalize
from ..functional.derivatives import refuses_second_derivatives
from .domains import broadcast_shape, concentrations, unit_vectors
from .tangents import tangent_directions, transport

__all__ = ["RotationalDistribution", "chord_square", "working_precision"]

Self = TypeVar("Self", bound="RotationalDistribution")


class RotationalDistribution(Distribution):
    """Base of :class:`VonMisesFisher` and :class:`PowerSpherical`: a direction and a concentration.

    A family says how the angle to the mean direction is drawn, how it moves with the concentration,
    and what mean and variance its cosine has.

    Args:
        mean_direction: Unit vectors (..., d), d >= 2. Kept normalized, so gradients are tangent to
            the sphere.
        concentration: Finite numbers >= 0 of a shape that broadcasts with (...), or one number.
        validate_args: Check parameters and values. Default: as set for `torch.distributions`,
            whose checks the first `torch.compile` of a process turns off.
    """

    arg_constraints = {"mean_direction": unit_vectors, "concentration": concentrations}  # noqa: RUF012
    support = unit_vectors
    has_rsample = True

    concentration: Tensor

    def __init__(
        self,
        mean_direction: Tensor,
        concentration: Tensor | float,
        validate_args: bool | None = None,
    ) -> None:
        name = type(self).__name__
        if not isinstance(mean_direction, Tensor) or not mean_direction.is_floating_point():
            got = getattr(mean_direction, "dtype", type(mean_direction).__name__)
            raise TypeError(f"{name} expects mean_direction as a floating-point tensor; got {got}")
        if mean_direction.ndim < 1 or mean_direction.shape[-1] < 2:
            raise ValueError(
                f"{name} expects mean_direction of shape (..., d) with d >= 2; "
                f"got {tuple(mean_direction.shape)}"
            )
        if not isinstance(concentration, Tensor):
            concentration = mean_direction.new_tensor(concentration)
        dtype = torch.promote_types(mean_direction.dtype, concentration.dtype)
        try:
            batch = broadcast_shape(mean_direction.shape[:-1], concentration.shape)
        except RuntimeError as error:
            raise ValueError(
                f"{name} expects concentrations of a shape that broadcasts with "
                f"{tuple(mean_direction.shape[:-1])}, the batch shape of mean_direction "
                f"{tuple(mean_direction.shape)}; got {tuple(concentration.shape)}"
            ) from error
        self._direction, self._checked = mean_direction.to(dtype).expand(*batch, -1), False
        self.concentration = concentration.to(dtype).expand(batch)
        super().__init__(batch, mean_direction.shape[-1:], validate_args=validate_args)
        self._checked = True

    @property
    def mean_direction(self) -> Tensor:
        """mu, (*batch_shape, d). Normalized at each use, so that each result has a graph of its
        own and several of them can be backpropagated; before it is checked, as it was given.
        """
        return normalize(self._direction) if self._checked else self._direction

    def expand(self: Self, batch_shape: Any, _instance: Any = None) -> Self:
        new: Self = self._get_checked_instance(type(self), _instance)  # type: ignore[no-untyped-call]
        batch = torch.Size(batch_shape)
        new._direction, new._checked = self._direction.expand(*batch, -1), True
        new.concentration = self.concentration.expand(batch)
        Distribution.__init__(new, batch, self.event_shape, validate_args=False)
        new._validate_args = self._validate_args
        return new

    def __repr__(self) -> str:
        # torch lists attributes, and the direction is none.
        kappa = self.concentration
        shown = kappa.item() if kappa.numel() == 1 else kappa.size()
        return (
            f"{type(self).__name__}(mean_direction: {self._direction.size()}, "
            f"concentration: {shown})"
        )

    @property
    def dim(self) -> int:
        """Dimension d of the space around the sphere."""
        return self.event_shape[0]

    def rsample(self, sample_shape: Any = ()) -> Tensor:
        """Samples with unbiased gradients in the mean direction and in the concentration.

        x = cos(theta) mu + sin(theta) xi: the angle theta moves with the concentration at fixed
        rank (implicit reparameterization), the uniform tangent direction xi with the mean direction
        by the shortest rotation. Second derivatives in the concentration are refused.

        Args:
            sample_shape: Shape in front of the batch shape. Default: one sample per distribution.

        Returns:
            Unit vectors (*sample_shape, *batch_shape, d).
        """
        shape = self._extended_shape(sample_shape)
        dtype = torch.promote_types(self.mean_direction.dtype, torch.float32)
        mean = self.mean_direction.to(dtype)
        kappa = self._wide_concentration().expand(shape[:-1])
        with torch.no_grad():
            theta = self._draw_angle(kappa)
            xi = tangent_directions(mean, shape)
        if torch.is_grad_enabled() and kappa.requires_grad:
            theta = _AngleOfRank.apply(theta, kappa, self)  # type: ignore[no-untyped-call]
        if torch.is_grad_enabled() and mean.requires_grad:
            xi = transport(xi, mean)
        theta = theta.to(dtype).unsqueeze(-1)
        sample: Tensor = theta.cos() * mean + theta.sin() * xi
        return sample.to(self.mean_direction.dtype)

    @property
    def mean(self) -> Tensor:
        """E[x] = E[mu.x] mu, inside the ball."""
        return self._cosine_moments()[0].unsqueeze(-1) * self.mean_direction

    @property
    def mode(self) -> Tensor:
        """The mean direction; with concentration 0, where all directions are alike, as well."""
        return self.mean_direction

    @property
    def variance(self) -> Tensor:
        """Variance of each coordinate, the diagonal of :attr:`covariance_matrix`."""
        _, along, across = self._cosine_moments()
        squares = self.mean_direction.square()
        return across.unsqueeze(-1) * (1 - squares) + along.unsqueeze(-1) * squares

    @property
    def covariance_matrix(self) -> Tensor:
        """Covariance (*batch_shape, d, d): one eigenvalue along the mean direction, one across."""
        _, along, across = self._cosine_moments()
        mu = self.mean_direction
        outer = mu.unsqueeze(-1) * mu.unsqueeze(-2)
        eye = torch.eye(self.dim, dtype=mu.dtype, device=mu.device)
        return across[..., None, None] * (eye - outer) + along[..., None, None] * outer

    def _wide_concentration(self) -> Tensor:
        """The concentration in float64 where the device has it."""
        kappa = self.concentration
        return kappa.float() if kappa.device.type == "mps" else kappa.double()

    def _draw_angle(self, kappa: Tensor) -> Tensor:
        """Angles to the mean direction, one per entry of kappa, without gradient."""
        raise NotImplementedError

    def _angle_slope(self, theta: Tensor, kappa: Tensor) -> Tensor:
        """d theta / d kappa at fixed rank."""
        raise NotImplementedError

    def _cosine_moments(self) -> tuple[Tensor, Tensor, Tensor]:
        """Mean and variance of mu.x, and the variance of a coordinate at right angles to mu."""
        raise NotImplementedError


def working_precision(*tensors: Tensor) -> tuple[Tensor, ...]:
    """The tensors in their common type, at least float32.

    Args:
        tensors: Floating-point tensors.

    Returns:
        As many tensors of one type.
    """
    dtype = torch.float32
    for tensor in tensors:
        dtype = torch.promote_types(dtype, tensor.dtype)
    return tuple(tensor.to(dtype) for tensor in tensors)


def chord_square(x: Tensor, y: Tensor) -> Tensor:
    """|x - y|^2 along the last dimension, 2 (1 - cos) of unit vectors without its cancellation.

    Args:
        x: Vectors (..., d).
        y: Vectors that broadcast with `x`.

    Returns:
        Squared distances (...).
    """
    return (x - y).square().sum(-1)


class _AngleOfRank(torch.autograd.Function):
    """theta as a function of kappa at fixed rank; computed only if a gradient is asked for."""

    @staticmethod
    def forward(theta: Tensor, kappa: Tensor, family: RotationalDistribution) -> Tensor:
        return theta.clone()

    @staticmethod
    def setup_context(ctx: Any, inputs: Any, output: Tensor) -> None:
        theta, kappa, ctx.family = inputs
        ctx.save_for_backward(theta, kappa)

    @staticmethod
    @refuses_second_derivatives(
        "samples have no second derivatives in the concentration, which create_graph=True asks for"
    )
    def backward(ctx: Any, grad: Tensor) -> tuple[None, Tensor, None]:
        theta, kappa = ctx.saved_tensors
        return None, grad * ctx.family._angle_slope(theta, kappa), None
