"""Augmentation of point clouds (B, P, 3), as PointNet and PointNet++ were trained."""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor


@dataclass(frozen=True)
class SamplePoints:
    """Different points of each cloud (B, P, 3), drawn anew for every batch.

    A random subset, not the first points: files often store them in a spatial order.

    Args:
        count: points that are kept.
    """

    count: int = 1024

    def __call__(self, points: Tensor, generator: torch.Generator) -> Tensor:
        if self.count > points.shape[1]:
            raise ValueError(f"{self.count} points are wanted of clouds {tuple(points.shape)}")
        # The ranks of random numbers are a random permutation, for all clouds at once.
        order = torch.rand(points.shape[:2], generator=generator).argsort(dim=1)[:, : self.count]
        return points.gather(1, order.to(points.device).unsqueeze(2).expand(-1, -1, 3))


@dataclass(frozen=True)
class RotateUp:
    """Turn each cloud (B, P, 3) by its own uniform angle about the vertical axis.

    Args:
        axis: the vertical, 0..2 (y in ModelNet40).
    """

    axis: int = 1

    def __call__(self, points: Tensor, generator: torch.Generator) -> Tensor:
        angle = torch.rand(len(points), generator=generator) * (2 * math.pi)
        a, b = [i for i in range(3) if i != self.axis]
        turn = torch.eye(3).repeat(len(points), 1, 1)
        turn[:, a, a] = turn[:, b, b] = angle.cos()
        turn[:, a, b] = angle.sin()
        turn[:, b, a] = -angle.sin()
        return points @ turn.to(points)


@dataclass(frozen=True)
class Tilt:
    """A small rotation of each cloud (B, P, 3) about all three axes, by normal angles.

    Args:
        sigma: deviation of the angles, in radians.
        clip: largest angle, in radians.
    """

    sigma: float = 0.06
    clip: float = 0.18

    def __call__(self, points: Tensor, generator: torch.Generator) -> Tensor:
        angles = torch.randn(len(points), 3, generator=generator).mul_(self.sigma)
        x, y, z = angles.clamp_(-self.clip, self.clip).unbind(1)
        skew = torch.zeros(len(points), 3, 3)
        skew[:, 2, 1], skew[:, 0, 2], skew[:, 1, 0] = x, y, z
        # The exponential of a skew matrix is a rotation about the axis (x, y, z).
        return points @ torch.linalg.matrix_exp(skew - skew.transpose(1, 2)).to(points)


@dataclass(frozen=True)
class ScalePoints:
    """Each cloud (B, P, 3) times its own uniform factor.

    Args:
        low: smallest factor.
        high: largest factor.
    """

    low: float = 0.8
    high: float = 1.25

    def __call__(self, points: Tensor, generator: torch.Generator) -> Tensor:
        factor = torch.rand(len(points), 1, 1, generator=generator)
        return points * (self.low + (self.high - self.low) * factor).to(points)


@dataclass(frozen=True)
class ShiftPoints:
    """Each cloud (B, P, 3) plus its own vector, uniform in a cube.

    Args:
        most: half the width of the cube.
    """

    most: float = 0.1

    def __call__(self, points: Tensor, generator: torch.Generator) -> Tensor:
        shift = torch.rand(len(points), 1, 3, generator=generator).mul_(2).sub_(1)
        return points + (self.most * shift).to(points)


@dataclass(frozen=True)
class JitterPoints:
    """Each coordinate of the clouds (B, P, 3) plus normal noise.

    Args:
        sigma: deviation of the noise.
        clip: largest noise.
    """

    sigma: float = 0.01
    clip: float = 0.05

    def __call__(self, points: Tensor, generator: torch.Generator) -> Tensor:
        noise = torch.randn(points.shape, generator=generator).mul_(self.sigma)
        return points + noise.clamp_(-self.clip, self.clip).to(points)
