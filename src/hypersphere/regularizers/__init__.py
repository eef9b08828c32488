"""Terms of the loss that spread the neurons of a network over the hypersphere (chapters 5, 6)."""

from .base import LayerReport, Report, WeightRegularizer
from .comhe import CoMHE
from .low_rank import LowRankBilateral, fold_low_rank, low_rank
from .mhe import MHE, ClassEnergy
from .neurons import Neurons, find_neurons
from .orthogonality import SRIP, Orthogonal, Orthonormal
from .presets import create, list_presets

__all__ = [
    "MHE",
    "SRIP",
    "ClassEnergy",
    "CoMHE",
    "LayerReport",
    "LowRankBilateral",
    "Neurons",
    "Orthogonal",
    "Orthonormal",
    "Report",
    "WeightRegularizer",
    "create",
    "find_neurons",
    "fold_low_rank",
    "list_presets",
    "low_rank",
]
