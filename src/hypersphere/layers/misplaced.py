"""Arguments of a magnitude or an activation that were given to the layer: say where they belong."""

from __future__ import annotations

import inspect
from collections.abc import Mapping
from typing import Any

from torch import nn

from .angular import NAMED_ANGULARS
from .magnitude import NAMED_MAGNITUDES

__all__ = ["refuse_misplaced"]


def refuse_misplaced(layer: type, given: Mapping[str, Any]) -> None:
    """Refuse keyword arguments that a layer does not take but one of its parts does.

    Args:
        layer: the class of the layer; `preset` names its magnitude, if it is fixed.
        given: the keyword arguments of its constructor.

    Raises:
        TypeError: with what to write instead.
    """
    arguments = inspect.signature(layer.__init__).parameters  # type: ignore[misc]
    if any(p.kind is inspect.Parameter.VAR_KEYWORD for p in arguments.values()):
        return  # a subclass that hands them on
    parts: dict[str, Mapping[str, type[nn.Module]]]
    parts = {"magnitude": NAMED_MAGNITUDES, "angular": NAMED_ANGULARS}
    called = {"magnitude": "magnitude", "angular": "activation"}
    preset = getattr(layer, "preset", None)
    for part, modules in parts.items():
        chosen = preset if part == "magnitude" and preset else given.get(part)
        for name in given.keys() - arguments.keys():
            takes = {kind: m for kind, m in modules.items() if name in _arguments_of(m)}
            if not takes:
                continue
            value = f"{given[name]!r}" if isinstance(given[name], (bool, int, float)) else "..."
            kind = chosen if isinstance(chosen, str) and chosen in takes else next(iter(takes))
            told = f"{layer.__name__} has no argument {name!r}: "
            if part == "magnitude" and preset is not None and preset not in takes:
                raise TypeError(
                    f"{told}the {preset} magnitude has none, those with one are {', '.join(takes)}"
                )
            raise TypeError(
                f"{told}it belongs to its {called[part]}; write {layer.__name__}(..., "
                f"{part}={takes[kind].__name__}({name}={value}))"
            )


def _arguments_of(module: type[nn.Module]) -> Mapping[str, inspect.Parameter]:
    return inspect.signature(module).parameters
