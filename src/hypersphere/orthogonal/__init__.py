"""Orthogonal over-parameterized training (Chapter 7): fixed neurons, one rotation R per layer.

>>> import torch, hypersphere as hs
>>> model = torch.nn.Sequential(torch.nn.Linear(8, 6), torch.nn.ReLU(), torch.nn.Linear(6, 3))
>>> model = hs.orthogonal.rotate(model, method="cayley")     # then train as usual
>>> model = hs.orthogonal.fold(model)                        # plain layers again
"""

from .adapters import Adapter, load_adapter, merge, save_adapter
from .butterfly import Butterfly
from .costs import memory_estimate
from .diagnostics import (
    RotatedLayer,
    RotationReport,
    energies,
    orthogonality_error,
    orthogonality_penalty,
    report,
)
from .fold import add_task, fold, use_task
from .groups import parameter_groups
from .ogd import OGD
from .plan import PlannedLayer, RotationPlan
from .pretrained import folded_state
from .reflections import Reflections
from .restart import restart
from .rotate import plan_rotation, rotate
from .rotation import Matrix, Rotation
from .two_sided import TwoSided

# The former name.
LayerReport = RotatedLayer
# What `rotate` would do, in the word one looks for.
describe = plan_rotation

__all__ = [
    "OGD",
    "Adapter",
    "Butterfly",
    "LayerReport",
    "Matrix",
    "PlannedLayer",
    "Reflections",
    "RotatedLayer",
    "Rotation",
    "RotationPlan",
    "RotationReport",
    "TwoSided",
    "add_task",
    "describe",
    "energies",
    "fold",
    "folded_state",
    "load_adapter",
    "memory_estimate",
    "merge",
    "orthogonality_error",
    "orthogonality_penalty",
    "parameter_groups",
    "plan_rotation",
    "report",
    "restart",
    "rotate",
    "save_adapter",
    "use_task",
]
