"""Terms of the loss that spread the neurons of a network over the hypersphere (chapters 5, 6)."""

from .base import LayerReport, Report, WeightRegularizer
from .comhe import CoMHE
from .holes import Covering, Polarization
from .low_rank import LowRankBilateral, fold_low_rank, low_rank
from .mhe import MHE, ClassEnergy
from .neurons import Neurons, find_neurons
from .orthogonality import SRIP, Orthogonal, Orthonormal
from .presets import create, list_presets
from .spreading import GramDeterminant, KoLeo, Separation

__all__ = [
    "MHE",
    "SRIP",
    "ClassEnergy",
    "CoMHE",
    "Covering",
    "GramDeterminant",
    "KoLeo",
    "LayerReport",
    "LowRankBilateral",
    "Neurons",
    "Orthogonal",
    "Orthonormal",
    "Polarization",
    "Report",
    "Separation",
    "WeightRegularizer",
    "create",
    "find_neurons",
    "fold_low_rank",
    "list_presets",
    "low_rank",
]
