"""Rotated models in other people's loops: Hugging Face's Trainer, accelerate, Lightning.

Most of them need nothing: a rotated model is a module, its rotations are parameters, its state dict
resumes exactly. What they do not know is which parameters decay and how fast rotations learn
(:func:`rotation_optimizer`), and how to go on from files with plain weights
(:class:`RotationCallback`). docs/finetuning.md has an example of each.

:class:`HubClassifier` takes a whole classifier to a folder or the Hub and back.

Nothing is imported before it is used.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from .adapter_checkpoint import AdapterCheckpoint
    from .hub import HubClassifier
    from .optimizer import TrainerOptimizer, rotation_optimizer
    from .trainer import RotationCallback

_HOMES = {
    "AdapterCheckpoint": "adapter_checkpoint",
    "HubClassifier": "hub",
    "RotationCallback": "trainer",
    "TrainerOptimizer": "optimizer",
    "rotation_optimizer": "optimizer",
}

__all__ = ["AdapterCheckpoint", "HubClassifier", "RotationCallback", "TrainerOptimizer"]
__all__ += ["rotation_optimizer"]


def __getattr__(name: str) -> Any:
    if name in _HOMES:
        return getattr(importlib.import_module(f"hypersphere.integrations.{_HOMES[name]}"), name)
    raise AttributeError(
        f"module 'hypersphere.integrations' has no attribute {name!r}; it has: {', '.join(_HOMES)}"
    )


def __dir__() -> list[str]:
    return __all__
