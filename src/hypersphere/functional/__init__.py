"""The formulas, with no parameters and no state: `from hypersphere import functional as HF`."""

from ._kernels.classes.logsumexp import class_logsumexp
from ._kernels.decoupled.patches import patch_norm
from .angle_preserving import (
    angle_preserving_loss,
    angle_preserving_projection,
    angle_preserving_step,
)
from .angles import (
    angle,
    arccos,
    cos_multiple,
    cosine,
    covering_radius,
    expected_hole_moment,
    geodesic_distance,
    hole_moment,
    hole_radii,
    normalize,
    pairwise_angle,
    pairwise_cosine,
    row_norm,
    separation_distance,
    uniform_on_sphere,
)
from .angular import angular, angular_derivative, angular_derivative_k, arcsin
from .class_energy import class_energy
from .contrastive import alignment, supervised_contrastive, uniformity_of_uniform
from .cross_entropy import margin_cross_entropy, margin_logits
from .decoupled import (
    decoupled_conv,
    decoupled_conv1d,
    decoupled_conv2d,
    decoupled_conv3d,
    decoupled_linear,
)
from .energy import distance_floor, hyperspherical_energy, log_energy, set_energies
from .gram_determinant import gram_determinant
from .gram_penalties import orthogonal_penalty, orthonormal_penalty, spectral_penalty
from .holes import covering, covering_points, polarization, polarization_points
from .labels import check_labels, sample_classes
from .magnitude import magnitude, magnitude_ratio, magnitude_slope
from .margins import Margin, anneal, margin, margin_derivative
from .nearest import koleo, separation
from .orthogonalize import apply_orthogonal, orthogonalize, random_rotation
from .points import minimize_energy
from .projections import (
    adversarial_step,
    bilateral_low_rank,
    count_sketch_projection,
    gaussian_projection,
    hadamard_projection,
    project,
    sketch,
)
from .prototypes import prototypes, simplex_prototypes
from .uniformity import uniformity_test

# isort: split
# After the import of the module of that name, which would take its place.
from .contrastive import uniformity

__all__ = [
    "Margin",
    "adversarial_step",
    "alignment",
    "angle",
    "angle_preserving_loss",
    "angle_preserving_projection",
    "angle_preserving_step",
    "angular",
    "angular_derivative",
    "angular_derivative_k",
    "anneal",
    "apply_orthogonal",
    "arccos",
    "arcsin",
    "bilateral_low_rank",
    "check_labels",
    "class_energy",
    "class_logsumexp",
    "cos_multiple",
    "cosine",
    "count_sketch_projection",
    "covering",
    "covering_points",
    "covering_radius",
    "decoupled_conv",
    "decoupled_conv1d",
    "decoupled_conv2d",
    "decoupled_conv3d",
    "decoupled_linear",
    "distance_floor",
    "expected_hole_moment",
    "gaussian_projection",
    "geodesic_distance",
    "gram_determinant",
    "hadamard_projection",
    "hole_moment",
    "hole_radii",
    "hyperspherical_energy",
    "koleo",
    "log_energy",
    "magnitude",
    "magnitude_ratio",
    "magnitude_slope",
    "margin",
    "margin_cross_entropy",
    "margin_derivative",
    "margin_logits",
    "minimize_energy",
    "normalize",
    "orthogonal_penalty",
    "orthogonalize",
    "orthonormal_penalty",
    "pairwise_angle",
    "pairwise_cosine",
    "patch_norm",
    "polarization",
    "polarization_points",
    "project",
    "prototypes",
    "random_rotation",
    "row_norm",
    "sample_classes",
    "separation",
    "separation_distance",
    "set_energies",
    "simplex_prototypes",
    "sketch",
    "spectral_penalty",
    "supervised_contrastive",
    "uniform_on_sphere",
    "uniformity",
    "uniformity_of_uniform",
    "uniformity_test",
]
