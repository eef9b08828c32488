"""Rotations beside PEFT's own adapters: what PEFT would merge or save wrongly is refused.

PEFT adds a LoRA product to the attribute `weight` of the layer below it. Of a rotated layer that is
either computed anew at each access, so the sum is lost, or the weight below a rotation of the
inputs, so the product would be turned as well. And its `save_pretrained` writes its own factors
only, without the rotations beside them.
"""

from __future__ import annotations

from types import MethodType
from typing import Any

from torch import nn

from ..finding.wrappers import adapted_layer
from .rotation import rotations

__all__ = ["guard_merges", "is_peft_model", "refuse_peft_files"]


def is_peft_model(model: nn.Module) -> bool:
    """Whether a model has layers that PEFT has wrapped."""
    return any(adapted_layer(module) is not None for module in model.modules())


def guard_merges(model: nn.Module) -> None:
    """Make PEFT's layers refuse to merge into a rotated weight.

    Args:
        model: a rotated model.
    """
    for module in model.modules():
        if adapted_layer(module) is not None and callable(getattr(type(module), "merge", None)):
            # A bound method of the module: copies and pickles bind it to theirs.
            module.__dict__["merge"] = MethodType(_merge, module)


def _merge(self: Any, *args: Any, **options: Any) -> Any:
    """`merge` of PEFT's layers, unless the layer below is rotated."""
    base = adapted_layer(self)
    if base is not None and next(rotations(base), None) is not None:
        raise ValueError(
            f"PEFT cannot merge into a rotated {type(base).__name__}: fold first, "
            f"hypersphere.orthogonal.fold(model), then merge"
        )
    return type(self).merge(self, *args, **options)


def refuse_peft_files() -> None:
    """Raise: PEFT is about to save a model without its rotations."""
    raise ValueError(
        "PEFT's save_pretrained writes its own adapters and drops the rotations beside them: "
        "hypersphere.orthogonal.save_adapter(model, folder) keeps both, for load_adapter; or "
        "fold(model) first and keep the folded base with the files of PEFT"
    )
