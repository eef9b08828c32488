"""From settings to objects: data, network, head, optimizer, schedule, hooks. No training here."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn
from torch.optim import Optimizer

from hypersphere.training.config import Config, DataConfig, ScheduleConfig
from hypersphere.training.hooks import Anneal, Regularize
from hypersphere.training.optimizers import make_optimizer
from hypersphere.training.parts import CHANGES, construct
from hypersphere.training.schedules import LearningRate, Plateau, constant, cosine, every, steps

__all__ = ["Loaders", "make_head", "make_hooks", "make_loaders", "make_net"]
__all__ += ["make_player_optimizer", "make_rate", "make_sized_model", "share_of"]


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


def share_of(dataset: Any, share: float) -> Any:
    """The first `share` of each class, so that classes keep their proportions."""
    if share >= 1:
        return dataset
    if not share > 0:
        raise ValueError(f"data.share must be in (0, 1]; got {share}")
    labels = dataset.labels
    keep = torch.zeros(len(labels), dtype=torch.bool)
    for label in labels.unique():
        members = (labels == label).nonzero().flatten()
        keep[members[: max(1, round(share * len(members)))]] = True
    return dataset.subset(keep.nonzero().flatten())


def make_loaders(
    config: DataConfig, seed: int, rank: int = 0, world_size: int = 1, split: Any = None
) -> Loaders:
    """Load the data set (or take `split`) and serve it; processes share each batch."""
    from hypersphere import data

    if config.batch_size % world_size:
        raise ValueError(
            f"data.batch_size is what one update sees: {config.batch_size} does not divide "
            f"among {world_size} processes"
        )
    if world_size > 1 and not config.drop_last:
        raise ValueError("several processes need data.drop_last: true, or their parts would differ")
    if split is None:
        options = dict(config.options)
        if config.imbalance is not None:
            options["imbalance"] = config.imbalance
        split = data.load(config.name, config.root, **options)
        split = dataclasses.replace(
            split,
            train=share_of(split.train, config.share),
            test=share_of(split.test, config.test_share),
        )
    normalize = data.Normalize.fit(split.train, config.normalize)
    small = len(split.train) < config.batch_size
    train = data.BatchLoader(
        split.train,
        config.batch_size // world_size,
        seed=seed,
        augment=data.augmentation(config.augment),
        normalize=normalize,
        drop_last=config.drop_last and not small,
        rank=rank,
        world_size=world_size,
        prefetch=config.prefetch,
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
    )
    x, _ = next(iter(test))
    return Loaders(train, test, split, normalize, split.num_classes, tuple(x.shape[1:]))


def make_head(settings: dict[str, Any], in_features: int, num_classes: int) -> nn.Module:
    """The head by name, with its annealing."""
    from hypersphere import heads

    options = dict(settings)
    name, annealing = options.pop("name"), options.pop("annealing", None)
    options.pop("sharded", None)  # the processes come later
    detached = options.pop("detached", False)
    head = construct("head", name, options, in_features=in_features, num_classes=num_classes)
    if annealing is not None:
        head.annealing = heads.LambdaAnnealing(**annealing)
    head.detached = detached  # see `tasks.ClassifierLoss`
    return head


def make_net(config: Config, shape: tuple[int, ...], num_classes: int) -> nn.Module:
    """Backbone and head as one `Classifier`; initialized anew, of low rank, rotated (OPT) if the
    config says so.
    """
    from hypersphere import models

    options = dict(config.model)
    name = options.pop("name")
    for key in ("in_channels", "image_size"):
        if options.get(key, 0) is None:  # not given: it comes from the data
            del options[key]
    accepted = models.entry(name).options
    if len(shape) == 3:  # pictures
        derived = {"in_channels": shape[0], "image_size": list(shape[1:])}
        for key, value in derived.items():
            if key in accepted:
                options.setdefault(key, value)
    backbone = construct_model(name, options)
    head = make_head(config.head, backbone.out_features, num_classes)  # type: ignore[arg-type]
    return change_net(config, models.Classifier(backbone, head))


def change_net(config: Config, net: nn.Module) -> nn.Module:
    """Apply the sections init, low_rank and rotate; the head declares itself the output layer."""
    for kind in CHANGES:
        settings = getattr(config, kind)
        if settings is not None:
            construct(kind, "", settings, **{"net" if kind == "init" else "model": net})
    return net


def construct_model(name: str, options: dict[str, Any]) -> nn.Module:
    from hypersphere import models
    from hypersphere.training.parts import resolve

    return models.create(name, **{k: resolve(k, v) for k, v in options.items()})


def make_sized_model(settings: Any, shape: Sequence[int]) -> nn.Module:
    """A network by name, without head, for samples of a shape (C,) or (C, H, W).

    Options that the settings leave open, `in_channels` and `image_size`, come from the shape.
    """
    if isinstance(settings, nn.Module):
        return settings
    options = dict(settings)
    sizes = {"in_channels": shape[0], "image_size": list(shape[1:]) or None}
    for key, value in sizes.items():
        if options.get(key) is None and value is not None:
            options[key] = value
    return construct_model(options.pop("name"), options)


def make_rate(optimizer: Optimizer, config: ScheduleConfig, total: int) -> LearningRate:
    """The learning-rate schedule by name; `total` updates is how long the run lasts."""
    factories: dict[str, Callable[[], Any]] = {
        "constant": constant,
        "steps": lambda: steps(config.at, config.factor),
        "every": lambda: every(config.period, config.factor),
        "cosine": lambda: cosine(total, config.end),
        "plateau": lambda: Plateau(config.factor, config.patience, config.threshold),
    }
    if config.name == "steps" and not config.at:
        raise ValueError("schedule.name is steps: say at which iterations with schedule.at")
    return LearningRate(optimizer, factories[config.name](), config.warmup)


def make_player_optimizer(config: Config, module: nn.Module) -> Optimizer:
    """The optimizer of one player, which moves the parameters of `module`."""
    if (config.rotate or {}).get("method") == "ogd" and config.optimizer.name != "ogd":
        raise ValueError(
            "rotate.method=ogd learns matrices that only optimizer.name=ogd keeps orthogonal "
            f"(Eq. 7.6); got optimizer.name={config.optimizer.name}: set that, with "
            "optimizer.others for the rest of the network, or choose another rotate.method"
        )
    return make_optimizer(module, **dataclasses.asdict(config.optimizer))


def make_hooks(config: Config) -> list[Any]:
    """Annealing, regularizers with their schedules, and the hooks of the config, in this order."""
    hooks: list[Any] = [Anneal()]
    for name, settings in config.regularizers.items():
        options = dict(settings)
        when = {k: options.pop(k) for k in ("begin", "ramp", "end") if k in options}
        hooks.append(Regularize(name, construct("regularizers", name, options), **when))
    for name, settings in config.hooks.items():
        hooks.append(construct("hooks", name, settings))
    return hooks
