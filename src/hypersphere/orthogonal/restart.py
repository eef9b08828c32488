"""Fold R into the neurons and begin again at the identity (POET; progressive training, F.8)."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from .block_matrix import Matrix, mark_orthogonal
from .fold import tied_names, why_not_written
from .input_side import effective_weight
from .matrices import TURNED_START, neutral
from .reflections import Reflections
from .rotation import MAPS, Rotation, TwoSided, required_rotations
from .steps import forget_state

__all__ = ["restart"]


@torch.no_grad()
def restart(model: nn.Module, optimizer: Optimizer | None = None) -> nn.Module:
    """Multiply R into the neurons and begin again at the identity, in place, outputs unchanged.

    The parameters stay the same objects, so optimizers and schedules go on. What an optimizer
    remembers of them (momentum, second moments, step counts) belongs to the old R and is forgotten
    at its next step; the momentum of :class:`OGD` is carried over, as W U keeps its meaning.

    The neurons are then no longer those of the base, so :func:`save_adapter` writes them, too: as
    many numbers as the rotated weights have.

    Args:
        model: a rotated model.
        optimizer: forgets at once, so that a checkpoint saved before its next step resumes exactly.
            Default: whatever optimizer steps the parameters next.

    Returns:
        The model.

    Raises:
        ValueError: if a layer has several tasks, whose other matrices belong to the old neurons, or
            a function T(v), or a weight that cannot be rewritten, as one that is tied to another;
            nothing is changed then.

    >>> from hypersphere.orthogonal import orthogonality_error, rotate
    >>> layer = rotate(nn.Linear(6, 4), both_sides=True)
    >>> x = torch.randn(2, 6)
    >>> with torch.no_grad():
    ...     for p in layer.parameters():
    ...         _ = p.add_(0.1 * torch.ones_like(p)) if p.requires_grad else None
    >>> y = layer(x)
    >>> torch.allclose(restart(layer)(x), y, atol=1e-5)
    True
    """
    found = required_rotations(model)
    for label, module, parameter, rotation in found:
        if len(rotation.tasks) > 1:
            raise ValueError(f"{label} has several tasks over the same neurons: fold one instead")
        if not isinstance(rotation.map, MAPS):
            raise ValueError(f"{label} is turned by a function T(v), which has no identity")
        why = why_not_written(module, parameter, rotation) or tied_names(model, module, parameter)
        if why:
            raise ValueError(f"R cannot be folded into {label} ({why}): nothing to restart from")
    weights = [effective_weight(*item[1:]).detach().clone() for item in found]
    for (_, module, parameter, rotation), weight in zip(found, weights, strict=True):
        _begin_again(rotation.map)
        _set_neurons(module, parameter, rotation, weight)
        rotation.moved_neurons.fill_(True)
        for p in rotation.map.parameters():
            if rotation.method == "ogd":
                mark_orthogonal(p)
            elif optimizer is not None:
                optimizer.state.pop(p, None)
            else:
                forget_state(p)
    return model


def _set_neurons(module: Any, parameter: str, rotation: Rotation, weight: Tensor) -> None:
    if rotation.side == "input":
        getattr(module, parameter).copy_(weight)
        return
    rows = rotation.layout.rows(weight)
    if rotation.lengths is not None:
        rows = rotation.take_lengths(rows)
    if rotation.method in TURNED_START:
        rows = rotation.map.undo(rows)  # type: ignore[operator]
    module.parametrizations[parameter].original.copy_(rotation.layout.weight(rows))


def _begin_again(turn: nn.Module) -> None:
    """The map at its neutral start, in place."""
    if isinstance(turn, TwoSided):
        _begin_again(turn.inputs)
        _begin_again(turn.outputs)
    elif isinstance(turn, Reflections):
        turn.U[:, 1::2] = turn.U[:, ::2]  # pairs that undo each other
    elif isinstance(turn, Matrix):
        if turn.method in ("cayley", "exponential"):
            turn.U.zero_()
        else:
            start = neutral(turn.method, turn.size).to(turn.U)
            turn.U.copy_(Matrix(start.repeat(1, 1, 1, 1), turn.method).U.expand_as(turn.U))
