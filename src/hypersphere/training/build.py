"""From settings to objects: data, network, head, optimizer, schedule, hooks. No training here."""

from __future__ import annotations

import copy
import dataclasses
import typing
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from hypersphere.models.classifier import check_scores_of_head
from hypersphere.ranges import check
from hypersphere.training.config import Config, DataConfig, ScheduleConfig
from hypersphere.training.held_out import hold_out, share_of
from hypersphere.training.hooks import Anneal, Regularize
from hypersphere.training.optimizers import check_rotation_optimizer, make_optimizer
from hypersphere.training.own_parts import object_of
from hypersphere.training.parts import (
    CHANGES,
    check_part_options,
    construct,
    options,
    resolve,
)
from hypersphere.training.runtime import EVENTS
from hypersphere.training.schedules import (
    LearningRate,
    Plateau,
    constant,
    every,
    half_cosine,
    steps,
)
from hypersphere.training.watch_head import WatchHead

__all__ = ["Loaders", "make_head", "make_hooks", "make_loaders", "make_net"]
__all__ += ["make_player_optimizer", "make_rate", "make_sized_model"]


@dataclass
class Loaders:
    """The batches of a run, and the data set they come from."""

    train: Any
    test: Any
    split: Any
    normalize: Any
    num_classes: int
    shape: tuple[int, ...]

    def over(self, dataset: Any) -> Any:
        """Batches of another data set, prepared like the test part, in order."""
        from hypersphere.data import BatchLoader

        like = self.test
        return BatchLoader(
            dataset,
            like.batch_size,
            shuffle=False,
            augment=like.augment,
            normalize=self.normalize,
        )


def load_data(config: DataConfig) -> Any:
    """The data set that a config names, or the one it holds.

    Args:
        config: the section ``data``.

    Returns:
        What `hypersphere.data.load` gives: a `Split`, or a graph.
    """
    from hypersphere import data

    if not isinstance(config.name, str):
        return object_of(
            {"object": config.name} if not isinstance(config.name, dict) else config.name
        )
    check_data_options(config)
    values = dict(config.options)
    if config.imbalance is not None:
        values["imbalance"] = config.imbalance
    return data.load(config.name, config.root, **values)


def check_data_options(config: DataConfig) -> None:
    """ValueError for an option of the data set that is unknown or out of its range."""
    from hypersphere.data.readers import check_reader_options

    check_reader_options(config.name, config.options)
    known = options("data", config.name)
    for key, value in config.options.items():
        if key in known:  # a reader may take any others
            check(f"data.options.{key}", value, known[key].type, known[key].range)


def make_loaders(
    config: DataConfig,
    seed: int,
    rank: int = 0,
    world_size: int = 1,
    split: Any = None,
    device: torch.device | None = None,
    new_classes: bool = False,
) -> Loaders:
    """Load the data set (or take `split`) and serve it; processes share each batch.

    Args:
        config: the section ``data``.
        seed: seed of the order and the augmentation.
        rank: number of this process.
        world_size: number of processes.
        split: a data set to take instead of the one that the config names.
        device: where the batches go. Default: they stay where the samples are.
        new_classes: whether the test is on classes that are not trained: then `holdout` is a share
            of the classes.

    Returns:
        The batches, and the data set they come from.
    """
    from hypersphere import data

    if config.batch_size % world_size:
        raise ValueError(
            f"data.batch_size is what one update sees: {config.batch_size} does not divide "
            f"among {world_size} processes"
        )
    if world_size > 1 and not config.drop_last:
        raise ValueError("several processes need data.drop_last: true, or their parts would differ")
    if split is None:
        split = load_data(config)
        if new_classes:  # `share` thins what is trained, not what is tested
            split = hold_out(split, config.holdout, classes=True)
        split = dataclasses.replace(
            split,
            train=share_of(split.train, config.share),
            test=share_of(split.test, config.test_share),
        )
        if not new_classes:
            split = hold_out(split, config.holdout)
    normalize = data.Normalize.fit(split.train, config.normalize)
    small = len(split.train) < config.batch_size
    # Streamed data (shards) bring a loader of their own.
    make_loader = getattr(split.train, "make_loader", partial(data.BatchLoader, split.train))
    train = make_loader(
        config.batch_size // world_size,
        seed=seed,
        augment=data.augmentation(config.augment),
        normalize=normalize,
        drop_last=config.drop_last and not small,
        rank=rank,
        world_size=world_size,
        prefetch=config.prefetch,
        workers=config.workers,
        device=device,
    )
    test = data.BatchLoader(
        split.test,
        config.test_batch_size,
        shuffle=False,
        augment=data.augmentation(config.augment, train=False),
        normalize=normalize,
        rank=rank,
        world_size=world_size,
        prefetch=config.prefetch,
        workers=config.workers,
        device=device,
    )
    x, _ = next(iter(test))
    return Loaders(train, test, split, normalize, split.num_classes, tuple(x.shape[1:]))


def make_head(settings: dict[str, Any], in_features: int, num_classes: int) -> nn.Module:
    """The head that a config names, with its annealing, or a copy of the one it holds.

    Args:
        settings: the section ``head``.
        in_features: width of the features.
        num_classes: number of classes.

    Returns:
        The head.
    """
    given = object_of(settings)
    if given is not None:
        return copy.deepcopy(given)
    values = dict(settings)
    name, annealing = values.pop("name"), values.pop("annealing", None)
    values.pop("sharded", None)  # the processes come later
    detached = values.pop("detached", False)
    head = construct("head", name, values, in_features=in_features, num_classes=num_classes)
    if not isinstance(head, nn.Module) or type(head).forward is nn.Module.forward:
        raise TypeError(
            f"the head {name!r} has to be an nn.Module with forward(features) -> scores (B, C); "
            f"got {type(head).__name__}"
        )
    if type(head).__module__.partition(".")[0] != "hypersphere":
        check_scores_of_head(head, in_features, num_classes)
    if annealing is not None:
        head.annealing = construct("annealing", "", annealing)
    head.detached = detached  # see `tasks.ClassifierLoss`
    return head


def make_net(config: Config, shape: tuple[int, ...], num_classes: int) -> nn.Module:
    """The network and the head of a config as one `Classifier`; with other starting weights, of low
    rank or rotated (OPT) if the config says so.

    Args:
        config: the config.
        shape: shape of a sample, (C, H, W) for pictures.
        num_classes: number of classes.

    Returns:
        The `Classifier`.
    """
    from hypersphere import models

    backbone = make_sized_model(config.model, shape)
    head = make_head(config.head, _feature_width(backbone, shape), num_classes)
    return change_net(config, models.Classifier(backbone, head))


def make_sized_model(settings: dict[str, Any], shape: Sequence[int]) -> Any:
    """The network that a config names, without a head, or a copy of the module that it holds.

    Args:
        settings: the section ``model``.
        shape: shape of a sample, from which ``in_channels`` and ``image_size`` are taken unless
            they are given: (C, H, W) for pictures, (C,) for vectors.

    Returns:
        The network.
    """
    given = object_of(settings)
    if given is not None:
        return copy.deepcopy(given)
    known = options("model", settings["name"])
    sizes: dict[str, Any] = {}
    if len(shape) in (1, 3):
        sizes = {"in_channels": shape[0], "image_size": list(shape[1:]) or None}
    if len(shape) == 3 and "image_size" in known and _takes_number(known["image_size"].type):
        if shape[1] != shape[2]:
            raise ValueError(
                f"the model {settings['name']!r} takes square pictures (image_size is an int); "
                f"these are {shape[1]} x {shape[2]}"
            )
        sizes["image_size"] = shape[1]
    values = {key: value for key, value in settings.items() if key != "name"}
    for key in ("in_channels", "image_size"):
        if values.get(key) is None:
            values.pop(key, None)
            if key in known and sizes.get(key) is not None:
                values[key] = sizes[key]
    check_part_options("model", settings["name"], values)
    return construct_model(settings["name"], values)


def _takes_number(hint: Any) -> bool:
    """Whether a type is a whole number (or null), and no list."""
    return hint is int or set(typing.get_args(hint)) == {int, type(None)}


@torch.no_grad()
def _feature_width(backbone: nn.Module, shape: tuple[int, ...]) -> int:
    """Features that a module gives for a sample: it says so itself, or is tried on zeros."""
    width = getattr(backbone, "out_features", None)
    if isinstance(width, int):
        return width
    was_training = backbone.training
    features = backbone.eval()(torch.zeros(2, *shape))
    backbone.train(was_training)
    if not isinstance(features, Tensor) or features.dim() != 2:
        seen = tuple(features.shape) if isinstance(features, Tensor) else type(features).__name__
        raise ValueError(
            f"the model has to give features (B, d) for samples {tuple(shape)}; "
            f"{type(backbone).__name__} gives {seen}"
        )
    return features.shape[1]


def change_net(config: Config, net: nn.Module) -> nn.Module:
    """Apply the sections init, low_rank and rotate; the head declares itself the output layer.

    Args:
        config: the config.
        net: the network, changed in place.

    Returns:
        The network.
    """
    for kind in CHANGES:
        settings = getattr(config, kind)
        if settings is not None:
            construct(kind, "", settings, **{"net" if kind == "init" else "model": net})
    return net


def construct_model(name: str, values: dict[str, Any]) -> Any:
    """The network of that name.

    Args:
        name: its registered name.
        values: its options.

    Returns:
        The network.
    """
    from hypersphere import models

    return models.create(name, **{key: resolve(key, value) for key, value in values.items()})


def make_rate(optimizer: Optimizer, config: ScheduleConfig, total: int) -> LearningRate:
    """The learning-rate schedule by name; `total` updates is how long the run lasts."""
    factories: dict[str, Callable[[], Any]] = {
        "constant": constant,
        "steps": lambda: steps(config.at, config.factor),
        "every": lambda: every(config.period, config.factor),
        "cosine": lambda: half_cosine(total, config.end),
        "plateau": lambda: Plateau(config.factor, config.patience, config.threshold),
    }
    return LearningRate(optimizer, factories[config.name](), config.warmup)


def make_player_optimizer(config: Config, module: nn.Module) -> Optimizer:
    """The optimizer of one player, which moves the parameters of `module`."""
    check_rotation_optimizer(config)
    return make_optimizer(module, **dataclasses.asdict(config.optimizer))


def make_hooks(config: Config) -> list[Any]:
    """Annealing, a watch on the head, regularizers with their schedules, and the hooks of the
    config, in this order.
    """
    hooks: list[Any] = [Anneal(), WatchHead()]
    for name, settings in config.regularizers.items():
        values = dict(settings)
        when = {k: values.pop(k) for k in ("begin", "ramp", "end") if k in values}
        given = copy.deepcopy(object_of(settings))
        regularizer = given if given is not None else construct("regularizers", name, values)
        hooks.append(Regularize(name, regularizer, **when))
    for name, settings in config.hooks.items():
        given = object_of(settings)
        hook = given if given is not None else construct("hooks", name, settings)
        if not any(hasattr(hook, event) for event in EVENTS):
            raise TypeError(
                f"the hook {name!r} ({type(hook).__name__}) has none of the methods that are "
                f"called: {', '.join(EVENTS)}"
            )
        hooks.append(hook)
    return hooks
