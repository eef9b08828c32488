"""Orthogonal over-parameterized training (Chapter 7): fixed neurons, one rotation R per layer.

>>> import torch, hypersphere as hs
>>> model = torch.nn.Sequential(torch.nn.Linear(8, 6), torch.nn.ReLU(), torch.nn.Linear(6, 3))
>>> model = hs.orthogonal.rotate(model, method="cayley")     # then train as usual
>>> model = hs.orthogonal.fold(model)                        # plain layers again
"""

from .adapters import Adapter, load_adapter, merge, save_adapter
from .diagnostics import (
    RotatedLayer,
    RotationReport,
    energies,
    memory_estimate,
    orthogonality_error,
    orthogonality_penalty,
    report,
)
from .fold import add_task, fold, use_task
from .groups import parameter_groups
from .ogd import OGD
from .pretrained import folded_state
from .rotate import rotate
from .rotation import Matrix, Rotation

# The former name.
LayerReport = RotatedLayer

__all__ = [
    "OGD",
    "Adapter",
    "LayerReport",
    "Matrix",
    "RotatedLayer",
    "Rotation",
    "RotationReport",
    "add_task",
    "energies",
    "fold",
    "folded_state",
    "load_adapter",
    "memory_estimate",
    "merge",
    "orthogonality_error",
    "orthogonality_penalty",
    "parameter_groups",
    "report",
    "rotate",
    "save_adapter",
    "use_task",
]
