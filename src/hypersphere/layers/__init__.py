"""Decoupled layers: convolutions and linear maps f(w, x) = h(|w|, |x|) g(theta)."""

from . import presets as _presets
from .angular import (
    Angular,
    CosineAngular,
    CustomAngular,
    LinearAngular,
    SigmoidAngular,
    SquareCosineAngular,
)
from .convert import convert, revert
from .decoupled import DecoupledConv1d, DecoupledConv2d, DecoupledConv3d, DecoupledLinear
from .magnitude import (
    BallMagnitude,
    LinearMagnitude,
    LogMagnitude,
    Magnitude,
    MixedMagnitude,
    SegmentedMagnitude,
    SphereMagnitude,
    TanhMagnitude,
)
from .operator import Operator, Rescale
from .optimization import parameter_groups, project_weights, weighted_gradients
from .presets import *  # noqa: F403

__all__ = [
    "Angular",
    "BallMagnitude",
    "CosineAngular",
    "CustomAngular",
    "DecoupledConv1d",
    "DecoupledConv2d",
    "DecoupledConv3d",
    "DecoupledLinear",
    "LinearAngular",
    "LinearMagnitude",
    "LogMagnitude",
    "Magnitude",
    "MixedMagnitude",
    "Operator",
    "Rescale",
    "SegmentedMagnitude",
    "SigmoidAngular",
    "SphereMagnitude",
    "SquareCosineAngular",
    "TanhMagnitude",
    "convert",
    "parameter_groups",
    "project_weights",
    "revert",
    "weighted_gradients",
    *_presets.__all__,
]
