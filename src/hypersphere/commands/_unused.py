"""Settings of the command line that the part they are for does not use.

A file may set them: recipes build on one another, and a variant with another optimizer inherits
what the first one needed. Who types an option expects it to do something.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from hypersphere import registry
from hypersphere.commands._yaml import ConfigError

__all__ = ["refuse_unused_options"]

_ADAM = ("adam", "adamw")
# Each setting, with the values of the name that it goes with.
_GOES_WITH: dict[str, dict[str, tuple[str, ...]]] = {
    "optimizer": {
        "momentum": ("sgd", "ogd"),
        "dampening": ("sgd",),
        "nesterov": ("sgd", "ogd"),
        "betas": _ADAM,
        "eps": _ADAM,
        "iterations": ("ogd",),
        "others": ("ogd",),
    },
    "schedule": {
        "at": ("steps",),
        "factor": ("steps", "every", "plateau"),
        "period": ("every",),
        "patience": ("plateau",),
        "threshold": ("plateau",),
        "end": ("cosine",),
    },
}
# Options of data sets that divide their classes, of which only the protocol open_set makes use.
_OF_OPEN_SETS = ("unseen", "unseen_fraction", "people", "min_images", "folds", "per_fold")
_NO_MARGIN = ("softmax", "w_softmax", "s_softmax")
_OF_ROTATIONS = tuple(f"optimizer.{k}_rotations" for k in ("decay", "scale"))
_OF_ROTATIONS += ("optimizer.rotation_lr",)
_OF_OPERATORS = ("angular", "k", "learn_k", "weighted", "rescale")


def refuse_unused_options(config: Any, keys: Iterable[str]) -> None:
    """Refuse an option that would change nothing.

    Args:
        config: the config that the options are part of.
        keys: the options of the command line, such as "optimizer.betas".

    Raises:
        ConfigError: with the option, what it goes with, and what was chosen.
    """
    for key in keys:
        section, _, rest = key.partition(".")
        option = rest.partition(".")[0]
        if option in _GOES_WITH.get(section, {}):
            _check_named(key, section, getattr(config, section), _GOES_WITH[section][option])
        if key.startswith("head.annealing") and config.head.get("name") in _NO_MARGIN:
            raise ConfigError(
                f"{key} anneals a margin, and head.name is {config.head['name']!r}, which has "
                f"none: leave it out, or choose a head with one (`hypersphere heads`)"
            )
        if key.startswith("data.options."):
            _check_open_set(key, config.data)
        if key in _OF_ROTATIONS and config.rotate is None and not _is_own(config.model):
            raise ConfigError(
                f"{key} is of rotations, and rotate is null: leave it out, or turn neurons with "
                f"--rotate"
            )
        if key == "init.std" and (config.init or {}).get("distribution", "own") != "normal":
            raise ConfigError(
                "init.std is of init.distribution normal: leave it out, or give "
                "--init.distribution normal"
            )
        if key == "run.name" and config.run.folder is not None:
            raise ConfigError(
                f"run.folder {config.run.folder} is the whole path of the run, so that run.name "
                f"{config.run.name} would change nothing: give one of them"
            )
        plain = config.model.get("operator", "none") in (None, "plain")
        if section == "model" and option in _OF_OPERATORS and plain:
            raise ConfigError(
                f"{key} is of decoupled layers, and model.operator is 'plain': leave it out, "
                f"or choose an operator, such as --model.operator sphere"
            )


def _is_own(model: Any) -> bool:
    """Whether a model is not of this package: it may have rotations of its own."""
    return bool(registry.entry("model", model["name"]).own)


def _check_open_set(key: str, chosen: Any) -> None:
    from hypersphere.training.parts import options

    if key.rpartition(".")[2] not in _OF_OPEN_SETS or not isinstance(chosen.name, str):
        return
    known = options("data", chosen.name)
    if "protocol" not in known:
        return
    protocol = chosen.options.get("protocol", known["protocol"].default)
    if protocol != "open_set":
        raise ConfigError(
            f"{key} goes with data.options.protocol open_set, and it is {protocol!r}: leave it "
            f"out, or choose --data.options.protocol open_set"
        )


def _check_named(key: str, section: str, chosen: Any, names: tuple[str, ...]) -> None:
    used = (chosen.name, getattr(chosen, "others", "")) if chosen.name == "ogd" else (chosen.name,)
    if not set(used) & set(names):
        raise ConfigError(
            f"{key} goes with {section}.name {' or '.join(names)}, and {section}.name is "
            f"{chosen.name!r}: leave it out, or choose --{section}.name {names[0]}"
        )
