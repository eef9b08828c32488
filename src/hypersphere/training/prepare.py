"""From a config to a run that is ready to start, the same way for every task."""

from __future__ import annotations

import dataclasses
import math
import random
from collections.abc import Collection
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch

import hypersphere.training.tasks  # noqa: F401 - they enter the register
from hypersphere.registry import entry
from hypersphere.training.build import Loaders, make_hooks, make_player_optimizer, make_rate
from hypersphere.training.config import Config, TrainConfig
from hypersphere.training.distributed import synchronize
from hypersphere.training.fsdp import is_fsdp, refuse
from hypersphere.training.parts import options
from hypersphere.training.run.load import initialize_from
from hypersphere.training.runtime import Player, Settings
from hypersphere.training.sharding import step_one_by_one

__all__ = ["OPTIONAL", "Job", "make_settings", "prepare", "refuse_unused", "seed_everything"]

# Sections, and keys of sections, that not every task uses; a task names its own in `sections`.
# All others (model, init, low_rank, rotate, regularizers, hooks, optimizer, schedule, train, ...)
# are used for every task, here and in the loop.
OPTIONAL = ("data", "head", "few_shot", "gan", "train.label_smoothing", "run.baseline")
# What a task has to have once it is built; see `tasks/__init__.py`.
TASK_MEMBERS = (
    *("model", "players", "objectives", "batches_per_epoch", "best"),
    *("batches", "measure", "test", "state_dict", "load_state_dict"),
)


@dataclass
class Job:
    """Everything a run consists of, built and ready.

    Args:
        task: what is trained, tested and saved.
        hooks: called around each update.
        settings: the numbers of the loop.
        notes: what the user should know before training starts.
    """

    task: Any
    hooks: list[Any]
    settings: Settings
    notes: list[str] = field(default_factory=list)

    @property
    def loaders(self) -> Loaders | None:
        """The data of a classifier; None for other tasks."""
        return getattr(self.task, "labeled", None)


def prepare(config: Config, fabric: Any, split: Any = None) -> Job:
    """Build task, optimizers, learning rates and hooks of a config; trains nothing.

    Args:
        config: the settings of the run; not changed.
        fabric: devices and processes, from `make_fabric`.
        split: a data set to take instead of the one that the config names (cross-validation).

    Returns:
        What `fit` needs.

    Raises:
        ValueError: if settings do not fit together, or the task does not use them.
    """
    kind = entry("task", config.task).target
    check_task(config.task, kind, ("sections", "build"))
    if is_fsdp(fabric):
        refuse(config)
    refuse_unused(config, kind.sections)
    if config.train.threads is not None:
        torch.set_num_threads(config.train.threads)
    torch.use_deterministic_algorithms(config.train.deterministic)

    seed_everything(config.seed)  # the same network on every process
    own_data = {} if split is None else {"split": split}
    task = kind.build(config, fabric, **own_data)
    check_task(config.task, task, TASK_MEMBERS)
    notes = start_from(task.model, config.train.init_from)
    if fabric.world_size > 1:
        synchronize(task.model)
    settings = make_settings(config.train, task.batches_per_epoch)
    for objective in task.objectives():
        if config.train.compile:
            # In place: names in state dicts stay, and hooks see the same modules.
            objective.loss.compile()
        module = fabric.setup_module(objective.loss)
        optimizer = make_player_optimizer(config, objective.net)
        step_one_by_one(optimizer)
        rate = make_rate(optimizer, config.schedule, settings.steps)
        task.players.append(
            Player(module, fabric.setup_optimizers(optimizer), rate, objective.every)
        )
    hooks = make_hooks(config)
    refuse_without_labels(config, task, hooks)
    for hook in hooks:
        if hasattr(hook, "check_model"):
            hook.check_model(task.players[0].module)
    # The same start everywhere; from here on, processes draw (dropout, noise) each for themselves.
    seed_everything(config.seed + fabric.global_rank)
    return Job(task, hooks, settings, notes)


def check_task(name: str, task: Any, members: Collection[str]) -> None:
    """ValueError for a task that lacks what `prepare` and the loop ask for."""
    missing = [member for member in members if not hasattr(task, member)]
    if missing:
        raise ValueError(
            f"the task {name!r} has to define {', '.join(missing)}: the docstring of "
            f"hypersphere.training.tasks says what each is"
        )


def seed_everything(seed: int) -> None:
    """Seed Python, NumPy and torch."""
    random.seed(seed)
    np.random.seed(seed % 2**32)  # noqa: NPY002 - what other code draws from
    torch.manual_seed(seed)


def make_settings(config: TrainConfig, batches_per_epoch: int) -> Settings:
    """The loop's numbers; either `epochs` or `steps` says how long."""
    steps = config.steps
    if config.epochs is not None:
        if steps != TrainConfig().steps:
            raise ValueError(
                f"train.steps={steps} and train.epochs={config.epochs:g} both say how long the run "
                f"is: set one of them (--train.epochs null goes by steps)"
            )
        steps = max(1, math.ceil(config.epochs * batches_per_epoch))
    return Settings(
        steps,
        config.accumulate,
        config.clip,
        config.log_every,
        config.test_every,
        config.checkpoint_every,
        config.checkpoint_seconds,
        config.keep,
        config.quiet,
    )


def start_from(model: Any, path: str | None) -> list[str]:
    """`train.init_from`: take over the weights that fit; returns what to say about it."""
    if path is None:
        return []
    fresh = initialize_from(model, path)
    rest = f"; new: {', '.join(fresh[:5])}{' ...' if len(fresh) > 5 else ''}" if fresh else ""
    return [f"started from {path}{rest}"]


def refuse_unused(config: Config, sections: Collection[str]) -> None:
    """ValueError for a setting that the task would ignore.

    >>> refuse_unused(Config(task="gan", head={"name": "a_softmax"}), {"data", "gan"})
    Traceback (most recent call last):
    ValueError: task gan does not use the section 'head': leave it out (set: name=a_softmax)
    """
    default = Config(task=config.task)
    for name in OPTIONAL:
        section, _, key = name.partition(".")
        if name in sections:
            continue
        given, usual = _settings(config, section), _settings(default, section)
        keys = [key] if key else list(given)
        changed = [
            k for k in keys if given.get(k) != usual.get(k) and f"{section}.{k}" not in sections
        ]
        if changed:
            what = f"setting '{name}'" if key else f"section '{section}'"
            if any(used.startswith(f"{section}.") for used in sections):  # it uses part of it
                what = f"setting '{section}.{changed[0]}'"
            shown = ", ".join(f"{k}={given[k]}" for k in changed)
            raise ValueError(
                f"task {config.task} does not use the {what}: leave it out (set: {shown})"
            )


def refuse_without_labels(config: Config, task: Any, hooks: list[Any]) -> None:
    """ValueError for a hook that needs labels, in a task whose batches have none."""
    for hook in hooks:
        if getattr(hook, "needs_labels", False) and not getattr(task, "gives_labels", False):
            name = getattr(hook, "name", type(hook).__name__)
            raise ValueError(f"the hook {name} needs labels, which task {config.task} has none of")


def _settings(config: Config, section: str) -> dict[str, Any]:
    """A section as a dictionary, with every option of the default head spelled out."""
    value = getattr(config, section)
    if dataclasses.is_dataclass(value):
        return vars(value)
    if not isinstance(value, dict):  # an object of the user's own
        return {"name": type(value).__name__}
    if section == "head" and value.get("name") == Config().head["name"]:
        usual = {key: option.default for key, option in options("head", value["name"]).items()}
        return {**usual, **value}
    return value
