"""Terms of the loss that spread the neurons of a network over the hypersphere (chapters 5, 6).

A regularizer is a callable of the network that returns a scalar. :class:`WeightRegularizer` is the
base class of those that act on the weights, and of your own.
"""

from .base import LayerReport, Report, WeightRegularizer
from .comhe import CoMHE
from .holes import Covering, Polarization
from .low_rank import LowRankBilateral, fold_low_rank, low_rank
from .mhe import MHE, ClassEnergy
from .neurons import Neurons, find_neurons
from .orthogonality import SRIP, Orthogonal, Orthonormal
from .published import create_published, list_presets
from .spreading import GramDeterminant, KoLeo, Separation

# The former name, which recipes and documents use.
create = create_published

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
    "create_published",
    "find_neurons",
    "fold_low_rank",
    "list_presets",
    "low_rank",
]
