"""Regularizers with the settings of a published source, by name."""

from __future__ import annotations

import inspect
from typing import Any

from torch import nn

from ..registry import unknown_name
from .comhe import CoMHE
from .mhe import MHE, ClassEnergy
from .options import suggestion
from .orthogonality import SRIP, Orthogonal, Orthonormal

__all__ = ["create_published", "list_presets"]

PUBLISHED: dict[str, tuple[type[nn.Module], dict[str, Any]]] = {
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


def create_published(name: str, **changes: Any) -> nn.Module:
    """A regularizer with the settings of a published source, some of them changed.

    Args:
        name: one of :func:`list_presets`.
        changes: options of the regularizer that replace those of the source.

    Returns:
        The regularizer.

    Raises:
        ValueError: if the name is unknown, with the nearest one.
        TypeError: if the regularizer has no such option, with the nearest one.

    >>> create_published("dissertation_mhe", hidden=5.0)
    MHE(hidden=5.0, output=1.0, s=2.0, half_space=False, distance='euclidean')
    """
    if name not in PUBLISHED:
        raise unknown_name("preset", name, PUBLISHED)
    kind, settings = PUBLISHED[name]
    known = list(inspect.signature(kind).parameters)
    for option in changes:
        if option not in known:
            raise TypeError(
                f"{kind.__name__} has no option {option!r}{suggestion(option, known)} "
                f"(it has: {', '.join(known)})"
            )
    return kind(**{**settings, **changes})


def list_presets() -> list[str]:
    """The published settings by name.

    Returns:
        The names that :func:`create_published` takes.
    """
    return list(PUBLISHED)
