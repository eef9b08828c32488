"""Regularizers by the name of their source."""

from __future__ import annotations

import inspect
from typing import Any

from torch import nn

from .checks import did_you_mean
from .comhe import CoMHE
from .mhe import MHE, ClassEnergy
from .orthogonality import SRIP, Orthogonal, Orthonormal

__all__ = ["create", "list_presets"]

PRESETS: dict[str, tuple[type[nn.Module], dict[str, Any]]] = {
    # D.1: lambda_h = 10 in the full space, 1 in the half space; lambda_o = 1; s = 2
    "dissertation_mhe": (MHE, {"hidden": 10.0, "output": 1.0, "half_space": False}),
    "dissertation_half_space_mhe": (MHE, {"hidden": 1.0, "output": 1.0, "half_space": True}),
    "dissertation_a_mhe": (
        MHE, {"hidden": 10.0, "output": 1.0, "half_space": False, "distance": "geodesic"},
    ),
    "dissertation_half_space_a_mhe": (
        MHE, {"hidden": 1.0, "output": 1.0, "half_space": True, "distance": "geodesic"},
    ),
    # E.1: point clouds use s = 1
    "dissertation_point_cloud_mhe": (MHE, {"hidden": 1.0, "output": 1.0, "s": 1.0}),
    # The released training scripts weight every layer alike
    "released_mhe": (MHE, {"hidden": 1.0, "output": 1.0, "half_space": False}),
    "released_mhe_10": (MHE, {"hidden": 10.0, "output": 10.0, "half_space": False}),
    "sphereface_plus": (ClassEnergy, {"weight": 1.0, "s": 2.0}),
    # 6.6.1 and E.9
    "dissertation_rp_comhe": (CoMHE, {"projection": "random", "dim": 30, "count": 5}),
    "dissertation_rp_comhe_max": (
        CoMHE, {"projection": "random", "dim": 30, "count": 5, "aggregate": "max"},
    ),
    "dissertation_ap_comhe": (
        CoMHE, {"projection": "angle_preserving", "dim": 30, "count": 1, "mode": "unrolled"},
    ),
    "dissertation_ap_comhe_alternating": (
        CoMHE,
        {"projection": "angle_preserving", "dim": 30, "count": 1, "mode": "alternating",
         "update_every": 10},
    ),
    "dissertation_adversarial_comhe": (CoMHE, {"projection": "adversarial", "dim": 30}),
    "dissertation_group_comhe": (CoMHE, {"projection": "group", "group_channels": 8}),
    "dissertation_bilateral_comhe": (CoMHE, {"projection": "bilateral", "dim": 30, "count": 1}),
    # 5.3.7, E.1
    "dissertation_orthonormal": (Orthonormal, {"weight": 1e-5}),
    "dissertation_orthogonal": (Orthogonal, {"weight": 1e-5}),
    "srip": (SRIP, {"weight": 1e-1, "iterations": 2}),
}  # fmt: skip


def create(name: str, **changes: Any) -> nn.Module:
    """A regularizer with the settings of a source, some of them changed.

    >>> create("dissertation_mhe", hidden=5.0)
    MHE(hidden=5.0, output=1.0, s=2.0, half_space=False, distance='euclidean')
    """
    if name not in PRESETS:
        hint = did_you_mean(name, PRESETS)
        raise ValueError(f"unknown preset {name!r}{hint} (known: {', '.join(PRESETS)})")
    kind, settings = PRESETS[name]
    known = list(inspect.signature(kind).parameters)
    for option in changes:
        if option not in known:
            hint = did_you_mean(option, known)
            raise TypeError(
                f"{kind.__name__} has no option {option!r}{hint} (it has: {', '.join(known)})"
            )
    return kind(**{**settings, **changes})


def list_presets() -> list[str]:
    """Names for :func:`create`."""
    return list(PRESETS)
