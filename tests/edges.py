"""The edge table: inputs on which directions and angles are at their worst.

Each row is (name, x, y, angle between them in radians); a test that parametrizes over EDGES meets
every one of them. All are 4-vectors in float64; cast as needed.
"""

import math

import torch

_E1 = torch.tensor([1.0, 0.0, 0.0, 0.0], dtype=torch.float64)
_E2 = torch.tensor([0.0, 1.0, 0.0, 0.0], dtype=torch.float64)
_ZERO = torch.zeros(4, dtype=torch.float64)
_SKEW = torch.tensor([0.3, -0.5, 0.7, 0.1], dtype=torch.float64)

EDGES = [
    ("orthogonal", _E1, _E2, math.pi / 2),
    ("aligned", _SKEW, 3 * _SKEW, 0.0),
    ("anti-aligned", _SKEW, -2 * _SKEW, math.pi),
    ("same axis", _E1, _E1, 0.0),
    ("opposite axis", _E1, -_E1, math.pi),
    ("first zero", _ZERO, _SKEW, math.pi / 2),
    ("second zero", _SKEW, _ZERO, math.pi / 2),
    ("both zero", _ZERO, _ZERO, math.pi / 2),
    ("tiny", 1e-30 * _E1, 1e-30 * _E2, math.pi / 2),
    ("huge", 1e30 * _E1, 1e30 * (_E1 + _E2), math.pi / 4),
    ("tiny angle", _E1, _E1 + 1e-6 * _E2, 1e-6),
    ("nearly opposite", _E1, -_E1 + 1e-3 * _E2, math.pi - math.atan(1e-3)),
]
EDGE_IDS = [name for name, *_ in EDGES]

LOW_PRECISION = [torch.bfloat16, torch.float16]
