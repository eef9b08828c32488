"""Rotate single weights for an adapter, and undo that."""

from __future__ import annotations

from typing import Any, TypeAlias

from torch import Tensor, nn

from ..fold import unparametrized
from ..input_side import detach_input_rotation
from ..rotate import rotate
from ..rotation import rotations

__all__ = ["PlainWeights", "rotate_weight", "undo_rotation"]

# Parameters and their values by name.
PlainWeights: TypeAlias = dict[str, tuple[nn.Parameter, Tensor]]


def rotate_weight(module: nn.Module, options: dict[str, Any]) -> PlainWeights:
    """Rotate a module without those inside it, from the identity.

    Args:
        module: that has the weight.
        options: further arguments of `rotate`.

    Returns:
        The plain weights by name, for :func:`undo_rotation`; they share the model's memory.
    """
    # The parameter objects are kept: an optimizer may hold them. `rotate` may change their data.
    plain = {name: (p, p.data) for name, p in module.named_parameters(recurse=False)}
    rotate(module, start="identity", normalize=False, targets=("",), **options)
    return plain


def undo_rotation(module: nn.Module, plain: PlainWeights) -> None:
    """The module as it was before :func:`rotate_weight`.

    Args:
        module: that has the weight.
        plain: what :func:`rotate_weight` has returned.
    """
    for _, owner, parameter, rotation in list(rotations(module)):
        if owner is not module:
            continue
        if rotation.side == "input":
            detach_input_rotation(module)
        if parameter not in plain:  # of a quantized layer
            continue
        weight, data = plain[parameter]
        if rotation.side == "weight":
            weight.data = data
            unparametrized(module, parameter, weight, rotation.trainable)
        else:
            weight.requires_grad_(rotation.trainable)
