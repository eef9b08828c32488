"""What a config alone tells to be wrong, so that it is said before any data are read.

Most rules about a number stand where the number is used: in the constructor of a head, a network or
a regularizer. They are not repeated here. Parts are built once for a try, from the same settings
and by the same functions as in the run, and what they refuse is refused.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import torch
from torch import nn
from torch.overrides import TorchFunctionMode

import hypersphere.training.tasks  # noqa: F401 - they enter the register
from hypersphere import registry
from hypersphere.training.build import (
    check_data_options,
    make_head,
    make_hooks,
    make_sized_model,
)
from hypersphere.training.config import Config
from hypersphere.training.fsdp import refuse
from hypersphere.training.optimizers import check_rotation_optimizer
from hypersphere.training.own_parts import OBJECT
from hypersphere.training.parts import CHANGES, KIND_OF_SECTION, construct
from hypersphere.training.prepare import refuse_unused

__all__ = ["check_settings"]

# Sizes that data may have. What is refused with the same words for all of them does not depend on
# the data; everything else is left to the run, which knows them.
_SHAPES = ((1, 28, 28), (3, 64, 64), (16,), (3, 1024))
_DRAW = (torch.Tensor.normal_, torch.Tensor.uniform_, nn.init.normal_, nn.init.uniform_)
_HEADS = ((16, 5), (64, 12))  # features, classes


def check_settings(config: Config) -> None:
    """Refuse a config whose run could not start, whatever its data are.

    Parts of a plugin and objects are not tried: what their constructors do is not known.

    Args:
        config: the settings of a run.

    Raises:
        ValueError: with the section, and what its part says.

    >>> check_settings(Config(head={"name": "a_softmax", "m": -1.0}))
    Traceback (most recent call last):
    ValueError: head: a multiplicative margin needs m >= 1 (1 is no margin) and < 1000, got m=-1.0
    """
    refuse_unused(config, getattr(registry.entry("task", config.task).target, "sections", ()))
    if config.fabric.strategy == "fsdp":
        refuse(config)
    if isinstance(config.data.name, str):
        check_data_options(config.data)
    check_rotation_optimizer(config)
    start = config.train.init_from
    if start is not None and not Path(start).exists():
        raise ValueError(
            f"no weights in {start}: train.init_from is a run folder, a checkpoint folder or a "
            f".safetensors file"
        )
    with warnings.catch_warnings(), torch.random.fork_rng(devices=[]):
        warnings.simplefilter("ignore")  # the run says them once more
        _check_parts(config)


def _check_parts(config: Config) -> None:
    """Build every part of this package that a config names."""
    for section in ("regularizers", "hooks"):
        for name, settings in getattr(config, section).items():
            if _is_ours(section, name, settings):
                alone: dict[str, Any] = {section: {name: settings}}
                _try(f"{section}.{name}", make_hooks, [(Config(**alone),)])
    if _is_ours("head", config.head.get("name"), config.head):
        if config.head.get("annealing") is not None:
            _try("head.annealing", construct, [("annealing", "", config.head["annealing"])])
        _try("head", make_head, [(config.head, *sizes) for sizes in _HEADS])
    if _is_ours("model", config.model.get("name"), config.model):
        # Shapes without numbers: large networks take no time.
        with torch.device("meta"), _NothingDrawn():
            _try("model", make_sized_model, [(config.model, shape) for shape in _SHAPES])
    for section in CHANGES:
        settings = getattr(config, section)
        if settings is not None:
            _try(section, _change, [(section, settings, width) for width in (8, 12)])


def _is_ours(section: str, name: Any, settings: Any) -> bool:
    """Whether a part is registered by this package."""
    if OBJECT in settings:
        return False
    return not registry.entry(KIND_OF_SECTION[section], name).own


class _NothingDrawn(TorchFunctionMode):
    """Random weights of tensors without numbers need no drawing; torch would load its compiler."""

    def __torch_function__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        if func in _DRAW:
            return args[0] if args else kwargs["tensor"]
        return func(*args, **(kwargs or {}))


def _change(section: str, settings: dict[str, Any], width: int) -> None:
    """Initialize, factorize or rotate a small network in place of the one that is trained."""
    net = nn.Sequential(nn.Linear(width, width), nn.Linear(width, 4))
    elsewhere = {"targets": None, "skip": None, "only": None}  # names of layers that it has not
    few = {key: min(settings[key], 1) for key in ("refine_steps",) if key in settings}
    values = {k: v for k, v in settings.items() if k not in elsewhere} | few
    construct(section, "", values, **{"net" if section == "init" else "model": net})


def _try(section: str, build: Callable[..., Any], arguments: Iterable[tuple[Any, ...]]) -> None:
    """ValueError if all of these fail with the same words."""
    said = set()
    for given in arguments:
        try:
            build(*given)
            return
        except ValueError as error:
            said.add(str(error))
        except Exception:  # of a size that does not fit, or a bug: the run will show
            return
    if len(said) == 1:
        (text,) = said
        raise ValueError(text if text.startswith(section) else f"{section}: {text}")
