"""The form of a map as arguments of `rotate`, and back."""

from __future__ import annotations

import math
from dataclasses import fields
from typing import Any

import torch
from torch import nn

from ..finding import FilterMatrix
from .first_maps import Form, first_map
from .matrices import METHODS
from .rotation import Butterfly, Matrix, Reflections, Rotation, TwoSided

__all__ = ["form_of", "make_map", "map_options"]


def map_options(path: str, rotation: Rotation, task: str | None = None) -> dict[str, Any]:
    """The arguments of `rotate` that make a map of the same form.

    Args:
        path: name of the weight, for messages.
        rotation: of the weight.
        task: whose map. Default: the current one.

    Returns:
        Arguments of `rotate`.

    Raises:
        ValueError: if the map is a function of the caller's.
    """
    form = form_of(rotation.map if task is None else rotation.tasks[task])
    if form is None:
        raise ValueError(
            f"the map of {path} is a function of your own ({rotation.method}), which a file cannot "
            f"hold: save its state_dict instead"
        )
    given = {field.name: getattr(form, field.name) for field in fields(form)}
    return {**given, "learn_lengths": rotation.lengths is not None, "side": rotation.side}


def form_of(turn: nn.Module) -> Form | None:
    """The form of a map.

    Args:
        turn: the map.

    Returns:
        Its form, or None if it is a function of the caller's.
    """
    if isinstance(turn, TwoSided):
        inner = form_of(turn.inputs)
        if inner is None:
            return None
        # One number of which both sides take their greatest common divisor.
        blocks = math.lcm(inner.blocks, turn.outputs.blocks)
        known = {field.name: getattr(inner, field.name) for field in fields(inner)}
        return Form(**{**known, "blocks": blocks, "both_sides": True})
    if isinstance(turn, Reflections):
        return Form(structure="reflections", rank=turn.U.shape[1])
    if isinstance(turn, Butterfly):
        return Form(turn.method, turn.blocks, structure="butterfly", factors=turn.factors)
    if isinstance(turn, Matrix) and turn.method in METHODS:
        shared = turn.blocks > 1 and turn.U.shape[1] == 1
        return Form(turn.method, turn.blocks, shared, bandwidth=turn.bandwidth)
    return None


def make_map(layout: FilterMatrix, options: dict[str, Any]) -> nn.Module:
    """The map that `rotate` makes for one weight, at its start.

    Args:
        layout: how the weight holds its neurons.
        options: arguments of `rotate`.

    Returns:
        The map, in float32.
    """
    known = {field.name for field in fields(Form)}
    form = Form(**{key: value for key, value in options.items() if key in known})
    return first_map(form, layout, None, torch.Generator().manual_seed(0))
