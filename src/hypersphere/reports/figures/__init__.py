"""One function per figure, taking plain arrays and returning a matplotlib figure."""

from .claim_dots import claim_dots
from .decision_curves import error_by_size, quality_against_norm, reliability_diagram
from .feature_clouds import (
    class_cosine_matrix,
    features_2d,
    features_3d,
    pair_angle_histogram,
    value_histogram,
)
from .function_curves import angular_curves, magnitude_curves, margin_curves
from .image_grids import filters, image_grid, reconstructions
from .recognition_curves import adversarial_strength, cmc_curves, roc_curves
from .run_curves import energy_curves, error_against, training_curves
from .sphere import neuron_trajectories, point_configuration

__all__ = [
    "adversarial_strength",
    "angular_curves",
    "claim_dots",
    "class_cosine_matrix",
    "cmc_curves",
    "energy_curves",
    "error_against",
    "error_by_size",
    "features_2d",
    "features_3d",
    "filters",
    "image_grid",
    "magnitude_curves",
    "margin_curves",
    "neuron_trajectories",
    "pair_angle_histogram",
    "point_configuration",
    "quality_against_norm",
    "reconstructions",
    "reliability_diagram",
    "roc_curves",
    "training_curves",
    "value_histogram",
]
