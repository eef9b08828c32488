"""The operators of chapter 4 by name: Sphere, Ball, Tanh, Linear, Seg, Log, Mix.

Each is the decoupled layer of its dimension with the magnitude fixed; other constants come as an
instance of that magnitude:

>>> layer = TanhConv2d(3, 8, 3, magnitude=TanhMagnitude(radius=2.0, learn_radius=False))
>>> layer.radius
2.0
"""

from __future__ import annotations

from .decoupled import DecoupledConv1d, DecoupledConv2d, DecoupledConv3d, DecoupledLinear
from .docstrings import with_arguments_of
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


@with_arguments_of(DecoupledConv1d)
class SphereConv1d(DecoupledConv1d):
    """SphereConv: h = alpha, Eq. 4.4."""

    preset = "sphere"


@with_arguments_of(DecoupledConv2d)
class SphereConv2d(DecoupledConv2d):
    """SphereConv: h = alpha, Eq. 4.4."""

    preset = "sphere"


@with_arguments_of(DecoupledConv3d)
class SphereConv3d(DecoupledConv3d):
    """SphereConv: h = alpha, Eq. 4.4."""

    preset = "sphere"


@with_arguments_of(DecoupledLinear)
class SphereLinear(DecoupledLinear):
    """SphereConv: h = alpha, Eq. 4.4."""

    preset = "sphere"


@with_arguments_of(DecoupledConv1d)
class BallConv1d(DecoupledConv1d):
    """BallConv: h = alpha min(|x|, rho) / rho, Eq. 4.5."""

    preset = "ball"


@with_arguments_of(DecoupledConv2d)
class BallConv2d(DecoupledConv2d):
    """BallConv: h = alpha min(|x|, rho) / rho, Eq. 4.5."""

    preset = "ball"


@with_arguments_of(DecoupledConv3d)
class BallConv3d(DecoupledConv3d):
    """BallConv: h = alpha min(|x|, rho) / rho, Eq. 4.5."""

    preset = "ball"


@with_arguments_of(DecoupledLinear)
class BallLinear(DecoupledLinear):
    """BallConv: h = alpha min(|x|, rho) / rho, Eq. 4.5."""

    preset = "ball"


@with_arguments_of(DecoupledConv1d)
class TanhConv1d(DecoupledConv1d):
    """TanhConv: h = alpha tanh(|x| / rho), Eq. 4.6."""

    preset = "tanh"


@with_arguments_of(DecoupledConv2d)
class TanhConv2d(DecoupledConv2d):
    """TanhConv: h = alpha tanh(|x| / rho), Eq. 4.6."""

    preset = "tanh"


@with_arguments_of(DecoupledConv3d)
class TanhConv3d(DecoupledConv3d):
    """TanhConv: h = alpha tanh(|x| / rho), Eq. 4.6."""

    preset = "tanh"


@with_arguments_of(DecoupledLinear)
class TanhLinear(DecoupledLinear):
    """TanhConv: h = alpha tanh(|x| / rho), Eq. 4.6."""

    preset = "tanh"


@with_arguments_of(DecoupledConv1d)
class LinearConv1d(DecoupledConv1d):
    """LinearConv: h = alpha |x|, Eq. 4.7."""

    preset = "linear"


@with_arguments_of(DecoupledConv2d)
class LinearConv2d(DecoupledConv2d):
    """LinearConv: h = alpha |x|, Eq. 4.7."""

    preset = "linear"


@with_arguments_of(DecoupledConv3d)
class LinearConv3d(DecoupledConv3d):
    """LinearConv: h = alpha |x|, Eq. 4.7."""

    preset = "linear"


@with_arguments_of(DecoupledLinear)
class LinearLinear(DecoupledLinear):
    """LinearConv: h = alpha |x|, Eq. 4.7."""

    preset = "linear"


@with_arguments_of(DecoupledConv1d)
class SegConv1d(DecoupledConv1d):
    """SegConv: h = alpha |x| up to rho, then slope beta, Eq. 4.8."""

    preset = "segmented"


@with_arguments_of(DecoupledConv2d)
class SegConv2d(DecoupledConv2d):
    """SegConv: h = alpha |x| up to rho, then slope beta, Eq. 4.8."""

    preset = "segmented"


@with_arguments_of(DecoupledConv3d)
class SegConv3d(DecoupledConv3d):
    """SegConv: h = alpha |x| up to rho, then slope beta, Eq. 4.8."""

    preset = "segmented"


@with_arguments_of(DecoupledLinear)
class SegLinear(DecoupledLinear):
    """SegConv: h = alpha |x| up to rho, then slope beta, Eq. 4.8."""

    preset = "segmented"


@with_arguments_of(DecoupledConv1d)
class LogConv1d(DecoupledConv1d):
    """LogConv: h = alpha log(1 + |x|), Eq. 4.9."""

    preset = "log"


@with_arguments_of(DecoupledConv2d)
class LogConv2d(DecoupledConv2d):
    """LogConv: h = alpha log(1 + |x|), Eq. 4.9."""

    preset = "log"


@with_arguments_of(DecoupledConv3d)
class LogConv3d(DecoupledConv3d):
    """LogConv: h = alpha log(1 + |x|), Eq. 4.9."""

    preset = "log"


@with_arguments_of(DecoupledLinear)
class LogLinear(DecoupledLinear):
    """LogConv: h = alpha log(1 + |x|), Eq. 4.9."""

    preset = "log"


@with_arguments_of(DecoupledConv1d)
class MixConv1d(DecoupledConv1d):
    """MixConv: h = alpha |x| + beta log(1 + |x|), Eq. 4.10."""

    preset = "mixed"


@with_arguments_of(DecoupledConv2d)
class MixConv2d(DecoupledConv2d):
    """MixConv: h = alpha |x| + beta log(1 + |x|), Eq. 4.10."""

    preset = "mixed"


@with_arguments_of(DecoupledConv3d)
class MixConv3d(DecoupledConv3d):
    """MixConv: h = alpha |x| + beta log(1 + |x|), Eq. 4.10."""

    preset = "mixed"


@with_arguments_of(DecoupledLinear)
class MixLinear(DecoupledLinear):
    """MixConv: h = alpha |x| + beta log(1 + |x|), Eq. 4.10."""

    preset = "mixed"
