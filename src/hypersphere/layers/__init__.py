"""Decoupled layers: convolutions and linear maps f(w, x) = h(|w|, |x|) g(theta)."""

from . import named as _named
from .angular import (
    Angular,
    CosineAngular,
    CustomAngular,
    LinearAngular,
    ParametricAngular,
    SigmoidAngular,
    SquareCosineAngular,
    make_angular,
)
from .convert import convert, revert
from .custom_magnitude import CustomMagnitude
from .decoupled import (
    DecoupledConv1d,
    DecoupledConv2d,
    DecoupledConv3d,
    DecoupledLayer,
    DecoupledLinear,
)
from .magnitude import (
    BallMagnitude,
    LinearMagnitude,
    LogMagnitude,
    Magnitude,
    MixedMagnitude,
    RadiusMagnitude,
    SegmentedMagnitude,
    SphereMagnitude,
    TanhMagnitude,
    make_magnitude,
)
from .named import *  # noqa: F403
from .operator import Operator, Rescale
from .optimization import decay_groups, parameter_groups, project_weights, weighted_gradients

__all__ = [
    "Angular",
    "BallMagnitude",
    "CosineAngular",
    "CustomAngular",
    "CustomMagnitude",
    "DecoupledConv1d",
    "DecoupledConv2d",
    "DecoupledConv3d",
    "DecoupledLayer",
    "DecoupledLinear",
    "LinearAngular",
    "LinearMagnitude",
    "LogMagnitude",
    "Magnitude",
    "MixedMagnitude",
    "Operator",
    "ParametricAngular",
    "RadiusMagnitude",
    "Rescale",
    "SegmentedMagnitude",
    "SigmoidAngular",
    "SphereMagnitude",
    "SquareCosineAngular",
    "TanhMagnitude",
    "convert",
    "decay_groups",
    "make_angular",
    "make_magnitude",
    "parameter_groups",
    "project_weights",
    "revert",
    "weighted_gradients",
    *_named.__all__,
]
