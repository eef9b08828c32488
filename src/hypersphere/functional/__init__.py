"""The formulas, with no parameters and no state: `from hypersphere import functional as HF`."""

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
    geodesic_distance,
    normalize,
    pairwise_angle,
    pairwise_cosine,
    row_norm,
    uniform_on_sphere,
)
from .angular import (
    AngularFunction,
    angular,
    angular_derivative,
    angular_derivative_k,
    angular_function,
    arcsin,
)
from .best_known import BestKnown, best_known
from .binary_classes import binary_bias, binary_margin_loss
from .class_energy import class_energy
from .contrastive import alignment, supervised_contrastive, uniformity_of_uniform
from .covering import (
    covering_radius,
    expected_hole_moment,
    hole_moment,
    hole_radii,
    separation_distance,
)
from .cross_entropy import class_logsumexp, margin_cross_entropy, margin_logits
from .curricular import curricular, curricular_slope
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
from .magnitude import (
    MagnitudeFunction,
    magnitude,
    magnitude_function,
    magnitude_ratio,
    magnitude_slope,
)
from .margins import Margin, anneal, make_margin, margin, margin_derivative
from .nearest import koleo, separation
from .orthogonalize import apply_orthogonal, orthogonalize, random_rotation
from .patches import patch_norm
from .points import minimize_energy
from .polar_angle import power_spherical_angle_slope, vmf_angle_slope
from .power_spherical import (
    power_spherical_kl_uniform,
    power_spherical_log_normalizer,
    power_spherical_log_slope,
)
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
from .rotation_mean import inverse_cayley, rotation_logarithm, rotation_mean
from .similarity import StretchedCosine, WidenedCosine
from .soft_targets import soft_margin_cross_entropy
from .symmetry import orbit, root_system, symmetry_groups
from .uniformity import uniformity_test
from .von_mises_fisher import (
    sphere_log_area,
    vmf_concentration,
    vmf_kl_uniform,
    vmf_log_normalizer,
    vmf_mean_length,
    vmf_mean_length_slope,
)

# isort: split
# After the import of the module of that name, which would take its place.
from .contrastive import uniformity

__all__ = [
    "AngularFunction",
    "BestKnown",
    "MagnitudeFunction",
    "Margin",
    "StretchedCosine",
    "WidenedCosine",
    "adversarial_step",
    "alignment",
    "angle",
    "angle_preserving_loss",
    "angle_preserving_projection",
    "angle_preserving_step",
    "angular",
    "angular_derivative",
    "angular_derivative_k",
    "angular_function",
    "anneal",
    "apply_orthogonal",
    "arccos",
    "arcsin",
    "best_known",
    "bilateral_low_rank",
    "binary_bias",
    "binary_margin_loss",
    "check_labels",
    "class_energy",
    "class_logsumexp",
    "cos_multiple",
    "cosine",
    "count_sketch_projection",
    "covering",
    "covering_points",
    "covering_radius",
    "curricular",
    "curricular_slope",
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
    "inverse_cayley",
    "koleo",
    "log_energy",
    "magnitude",
    "magnitude_function",
    "magnitude_ratio",
    "magnitude_slope",
    "make_margin",
    "margin",
    "margin_cross_entropy",
    "margin_derivative",
    "margin_logits",
    "minimize_energy",
    "normalize",
    "orbit",
    "orthogonal_penalty",
    "orthogonalize",
    "orthonormal_penalty",
    "pairwise_angle",
    "pairwise_cosine",
    "patch_norm",
    "polarization",
    "polarization_points",
    "power_spherical_angle_slope",
    "power_spherical_kl_uniform",
    "power_spherical_log_normalizer",
    "power_spherical_log_slope",
    "project",
    "prototypes",
    "random_rotation",
    "root_system",
    "rotation_logarithm",
    "rotation_mean",
    "row_norm",
    "sample_classes",
    "separation",
    "separation_distance",
    "set_energies",
    "simplex_prototypes",
    "sketch",
    "soft_margin_cross_entropy",
    "spectral_penalty",
    "sphere_log_area",
    "supervised_contrastive",
    "symmetry_groups",
    "uniform_on_sphere",
    "uniformity",
    "uniformity_of_uniform",
    "uniformity_test",
    "vmf_angle_slope",
    "vmf_concentration",
    "vmf_kl_uniform",
    "vmf_log_normalizer",
    "vmf_mean_length",
    "vmf_mean_length_slope",
]
