"""The uniform distribution on the sphere."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.distributions import Distribution

from ..functional import sphere_log_area
from .domains import broadcast_shape, unit_vectors
from .tangents import random_directions

__all__ = ["UniformOnSphere"]


class UniformOnSphere(Distribution):
    """All directions alike: density Gamma(d/2) / (2 pi^(d/2)) on the unit sphere of R^d.

    Args:
        dim: Dimension d >= 2 of the space around the sphere.
        dtype: Type of samples and values. Default: torch's default type.
        device: Where samples are drawn. Default: torch's default device.
        validate_args: Check values. Default: as set for `torch.distributions`, whose checks the
            first `torch.compile` of a process turns off.

    >>> prior = UniformOnSphere(3)
    >>> prior.sample((4,)).shape
    torch.Size([4, 3])
    >>> prior.entropy()  # log(4 pi)
    tensor(2.5310)
    """

    arg_constraints: dict[str, Any] = {}  # noqa: RUF012
    support = unit_vectors
    has_rsample = True

    def __init__(
        self,
        dim: int,
        dtype: torch.dtype | None = None,
        device: torch.device | str | None = None,
        validate_args: bool | None = None,
    ) -> None:
        if not isinstance(dim, int) or isinstance(dim, bool) or dim < 2:
            raise ValueError(
                "UniformOnSphere expects dim, the dimension of the space around the sphere, as an "
                f"integer >= 2; got {dim!r}"
            )
        self._zero = torch.zeros((), dtype=dtype, device=device)
        super().__init__(torch.Size(), torch.Size([dim]), validate_args=validate_args)

    def expand(self, batch_shape: Any, _instance: Any = None) -> UniformOnSphere:
        cls = UniformOnSphere
        new: UniformOnSphere = self._get_checked_instance(cls, _instance)  # type: ignore[no-untyped-call]
        new._zero = self._zero
        Distribution.__init__(new, torch.Size(batch_shape), self.event_shape, validate_args=False)
        new._validate_args = self._validate_args
        return new

    def __repr__(self) -> str:
        return f"UniformOnSphere(dim: {self.dim}, batch_shape: {self.batch_shape})"

    @property
    def dim(self) -> int:
        """Dimension d of the space around the sphere."""
        return self.event_shape[0]

    def rsample(self, sample_shape: Any = ()) -> Tensor:
        """Independent samples; there is no parameter to have a gradient.

        Args:
            sample_shape: Shape in front of the batch shape. Default: one sample per distribution.

        Returns:
            Unit vectors (*sample_shape, *batch_shape, d).
        """
        shape = self._extended_shape(sample_shape)
        dtype = torch.promote_types(self._zero.dtype, torch.float32)
        return random_directions(shape, dtype, self._zero.device).to(self._zero.dtype)

    def log_prob(self, value: Tensor) -> Tensor:
        """Minus the logarithm of the sphere's area, for every value.

        Args:
            value: Unit vectors (..., d), broadcasting with the batch shape.

        Returns:
            Log densities (...).
        """
        if self._validate_args:
            self._validate_sample(value)
        shape = broadcast_shape(value.shape[:-1], self.batch_shape)
        return (self._zero - sphere_log_area(self.dim)).expand(shape)

    def entropy(self) -> Tensor:
        """Logarithm of the sphere's area, (*batch_shape)."""
        return (self._zero + sphere_log_area(self.dim)).expand(self.batch_shape)

    @property
    def mean(self) -> Tensor:
        """Zero."""
        return self._zero.expand(self._extended_shape())

    @property
    def mode(self) -> Tensor:
        """NaN: no direction is more likely than another."""
        return (self._zero + torch.nan).expand(self._extended_shape())

    @property
    def variance(self) -> Tensor:
        """1/d for each coordinate."""
        return (self._zero + 1 / self.dim).expand(self._extended_shape())

    @property
    def covariance_matrix(self) -> Tensor:
        """The identity over d, (*batch_shape, d, d)."""
        eye = torch.eye(self.dim, dtype=self._zero.dtype, device=self._zero.device)
        return (eye / self.dim).expand(*self.batch_shape, self.dim, self.dim)
