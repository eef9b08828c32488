"""Hyperspherical deep learning for PyTorch.

Directions carry the meaning, lengths do not. The package has four parts, each usable alone:

- ``hypersphere.layers``: convolutions and linear layers f(w, x) = h(|w|, |x|) g(theta);
- ``hypersphere.heads``: large-margin angular objectives that own the class weights;
- ``hypersphere.regularizers``: hyperspherical energy and its relatives;
- ``hypersphere.orthogonal``: training that rotates all neurons of a layer together;

with the distributions of directions (``distributions``) and the system around them: ``models``,
``data``, ``training``, ``evaluation``, ``reports``; ``integrations`` is for other people's loops.

Subpackages open on first use, so ``import hypersphere`` costs nothing beyond the name:

>>> import hypersphere as hs
>>> hs.functional.angle.__name__
'angle'
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

from ._version import __version__

if TYPE_CHECKING:
    from . import (
        data,
        distributions,
        evaluation,
        finding,
        functional,
        heads,
        integrations,
        layers,
        models,
        orthogonal,
        regularizers,
        reports,
        training,
    )
    from .registry import register

_SUBPACKAGES = (
    "data",
    "distributions",
    "evaluation",
    "finding",
    "functional",
    "heads",
    "integrations",
    "layers",
    "models",
    "orthogonal",
    "regularizers",
    "reports",
    "training",
)

__all__ = [
    "__version__",
    "data",
    "distributions",
    "evaluation",
    "finding",
    "functional",
    "heads",
    "integrations",
    "layers",
    "models",
    "orthogonal",
    "register",
    "regularizers",
    "reports",
    "training",
]


def __getattr__(name: str) -> Any:
    if name == "register":
        return importlib.import_module("hypersphere.registry").register
    if name in _SUBPACKAGES:
        return importlib.import_module(f"hypersphere.{name}")
    raise AttributeError(
        f"module 'hypersphere' has no attribute {name!r}; it has: {', '.join(_SUBPACKAGES)}"
    )


def __dir__() -> list[str]:
    return __all__
