"""The geometry of directions: angles, energies, class means, separability."""

from .class_geometry import (
    ClassMeansResult,
    ConfidenceResult,
    class_mean_cosines,
    confidence_and_hardness,
)
from .geometry import GeometryResult, effective_rank, geometry, neuron_weights, pair_angles
from .separability import angular_fisher_score, angular_visual_hardness

__all__ = [
    "ClassMeansResult",
    "ConfidenceResult",
    "GeometryResult",
    "angular_fisher_score",
    "angular_visual_hardness",
    "class_mean_cosines",
    "confidence_and_hardness",
    "effective_rank",
    "geometry",
    "neuron_weights",
    "pair_angles",
]
