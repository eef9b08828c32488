"""The operators of chapter 4 by name: Sphere, Ball, Tanh, Linear, Seg, Log, Mix.

Each is the decoupled layer of its dimension with the magnitude fixed; other constants come as an
instance of that magnitude:

>>> layer = TanhConv2d(3, 8, 3, magnitude=TanhMagnitude(radius=2.0, learn_radius=False))
>>> layer.radius
2.0
"""

from __future__ import annotations

from .decoupled import DecoupledConv1d, DecoupledConv2d, DecoupledConv3d, DecoupledLinear
from .magnitude import TanhMagnitude as TanhMagnitude

__all__ = [
    "BallConv1d",
    "BallConv2d",
    "BallConv3d",
    "BallLinear",
    "LinearConv1d",
    "LinearConv2d",
    "LinearConv3d",
    "LinearLinear",
    "LogConv1d",
    "LogConv2d",
    "LogConv3d",
    "LogLinear",
    "MixConv1d",
    "MixConv2d",
    "MixConv3d",
    "MixLinear",
    "SegConv1d",
    "SegConv2d",
    "SegConv3d",
    "SegLinear",
    "SphereConv1d",
    "SphereConv2d",
    "SphereConv3d",
    "SphereLinear",
    "TanhConv1d",
    "TanhConv2d",
    "TanhConv3d",
    "TanhLinear",
]


class SphereConv1d(DecoupledConv1d):
    """SphereConv: h = alpha, Eq. 4.4."""

    preset = "sphere"


class SphereConv2d(DecoupledConv2d):
    """SphereConv: h = alpha, Eq. 4.4."""

    preset = "sphere"


class SphereConv3d(DecoupledConv3d):
    """SphereConv: h = alpha, Eq. 4.4."""

    preset = "sphere"


class SphereLinear(DecoupledLinear):
    """SphereConv: h = alpha, Eq. 4.4."""

    preset = "sphere"


class BallConv1d(DecoupledConv1d):
    """BallConv: h = alpha min(|x|, rho) / rho, Eq. 4.5."""

    preset = "ball"


class BallConv2d(DecoupledConv2d):
    """BallConv: h = alpha min(|x|, rho) / rho, Eq. 4.5."""

    preset = "ball"


class BallConv3d(DecoupledConv3d):
    """BallConv: h = alpha min(|x|, rho) / rho, Eq. 4.5."""

    preset = "ball"


class BallLinear(DecoupledLinear):
    """BallConv: h = alpha min(|x|, rho) / rho, Eq. 4.5."""

    preset = "ball"


class TanhConv1d(DecoupledConv1d):
    """TanhConv: h = alpha tanh(|x| / rho), Eq. 4.6."""

    preset = "tanh"


class TanhConv2d(DecoupledConv2d):
    """TanhConv: h = alpha tanh(|x| / rho), Eq. 4.6."""

    preset = "tanh"


class TanhConv3d(DecoupledConv3d):
    """TanhConv: h = alpha tanh(|x| / rho), Eq. 4.6."""

    preset = "tanh"


class TanhLinear(DecoupledLinear):
    """TanhConv: h = alpha tanh(|x| / rho), Eq. 4.6."""

    preset = "tanh"


class LinearConv1d(DecoupledConv1d):
    """LinearConv: h = alpha |x|, Eq. 4.7."""

    preset = "linear"


class LinearConv2d(DecoupledConv2d):
    """LinearConv: h = alpha |x|, Eq. 4.7."""

    preset = "linear"


class LinearConv3d(DecoupledConv3d):
    """LinearConv: h = alpha |x|, Eq. 4.7."""

    preset = "linear"


class LinearLinear(DecoupledLinear):
    """LinearConv: h = alpha |x|, Eq. 4.7."""

    preset = "linear"


class SegConv1d(DecoupledConv1d):
    """SegConv: h = alpha |x| up to rho, then slope beta, Eq. 4.8."""

    preset = "segmented"


class SegConv2d(DecoupledConv2d):
    """SegConv: h = alpha |x| up to rho, then slope beta, Eq. 4.8."""

    preset = "segmented"


class SegConv3d(DecoupledConv3d):
    """SegConv: h = alpha |x| up to rho, then slope beta, Eq. 4.8."""

    preset = "segmented"


class SegLinear(DecoupledLinear):
    """SegConv: h = alpha |x| up to rho, then slope beta, Eq. 4.8."""

    preset = "segmented"


class LogConv1d(DecoupledConv1d):
    """LogConv: h = alpha log(1 + |x|), Eq. 4.9."""

    preset = "log"


class LogConv2d(DecoupledConv2d):
    """LogConv: h = alpha log(1 + |x|), Eq. 4.9."""

    preset = "log"


class LogConv3d(DecoupledConv3d):
    """LogConv: h = alpha log(1 + |x|), Eq. 4.9."""

    preset = "log"


class LogLinear(DecoupledLinear):
    """LogConv: h = alpha log(1 + |x|), Eq. 4.9."""

    preset = "log"


class MixConv1d(DecoupledConv1d):
    """MixConv: h = alpha |x| + beta log(1 + |x|), Eq. 4.10."""

    preset = "mixed"


class MixConv2d(DecoupledConv2d):
    """MixConv: h = alpha |x| + beta log(1 + |x|), Eq. 4.10."""

    preset = "mixed"


class MixConv3d(DecoupledConv3d):
    """MixConv: h = alpha |x| + beta log(1 + |x|), Eq. 4.10."""

    preset = "mixed"


class MixLinear(DecoupledLinear):
    """MixConv: h = alpha |x| + beta log(1 + |x|), Eq. 4.10."""

    preset = "mixed"
