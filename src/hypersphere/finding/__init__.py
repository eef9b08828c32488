"""Find the layers of any model, torch's own and other people's.

>>> from torch import nn
>>> findings = find_layers(nn.Sequential(nn.Conv2d(3, 8, 3), nn.Flatten(), nn.Linear(8, 2)))
>>> [(site.label, site.kind, site.role) for site in findings]
[('0', 'convolution', 'hidden'), ('2', 'linear', 'output')]
"""

from .filter_matrix import FilterMatrix
from .find import find_layers
from .sites import Findings, LeftOut, Site, aligned_columns
from .wrappers import weight_state

__all__ = [
    "FilterMatrix",
    "Findings",
    "LeftOut",
    "Site",
    "aligned_columns",
    "find_layers",
    "weight_state",
]
