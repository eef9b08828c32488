"""From settings to objects: data, network, head, optimizer, schedule, hooks. No training here."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from hypersphere.training import schedules
from hypersphere.training.config import Config, DataConfig, ScheduleConfig
from hypersphere.training.hooks import Anneal, Regularize
from hypersphere.training.optimizers import make_optimizer
from hypersphere.training.parts import CHANGES, construct
from hypersphere.training.run.checkpoint import list_checkpoints, load_weights

__all__ = ["Loaders", "initialize_from", "make_hooks", "make_loaders", "make_net", "make_rate"]
__all__ += ["make_head", "share_of"]


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


def make_rate(optimizer: Optimizer, config: ScheduleConfig, total: int) -> schedules.LearningRate:
    """The learning-rate schedule by name."""
    factories: dict[str, Callable[[], Any]] = {
        "constant": schedules.constant,
        "steps": lambda: schedules.steps(config.at, config.factor),
        "every": lambda: schedules.every(config.period, config.factor),
        "cosine": lambda: schedules.cosine(total, config.end),
        "plateau": lambda: schedules.Plateau(config.factor, config.patience, config.threshold),
    }
    if config.name == "steps" and not config.at:
        raise ValueError("schedule.name is steps: say at which iterations with schedule.at")
    return schedules.LearningRate(optimizer, factories[config.name](), config.warmup)


def make_player_optimizer(config: Config, module: nn.Module) -> Optimizer:
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


def initialize_from(model: nn.Module, path: str | Path) -> list[str]:
    """Fine-tuning: take over every weight of the same name and shape; returns the other names.

    `path`: a run folder (its last weights), a checkpoint folder, or a .safetensors file. Plain
    weights (`folded.safetensors`, an unrotated run) fit rotated and low-rank layers, too.
    """
    weights = load_weights(_weights_file(Path(path)))
    taken = _into_parametrized(model, weights)
    own = model.state_dict()
    fitting = {
        k: v
        for k, v in weights.items()
        if isinstance(own.get(k), Tensor) and own[k].shape == v.shape
    }
    if not taken and not any(v.ndim > 1 for v in fitting.values()):
        other = [
            k for k, v in weights.items() if k in own and own[k].shape != v.shape and v.ndim > 1
        ]
        where = f"; {other[0]} is {tuple(weights[other[0]].shape)} there" if other else ""
        here = f" and {tuple(own[other[0]].shape)} here" if other else ""
        raise ValueError(
            f"no weight matrix of {path} fits the model{where}{here}: another network or width?"
        )
    model.load_state_dict({**own, **fitting})
    return [
        k
        for k, v in own.items()
        if k not in fitting and isinstance(v, Tensor) and not k.startswith(tuple(taken))
    ]


@torch.no_grad()
def _into_parametrized(model: nn.Module, weights: dict[str, Tensor]) -> list[str]:
    """Give rotated and low-rank layers plain weights to stand for; returns where they are.

    So a network that was trained plainly, or folded, goes on under OPT (F.8).
    """
    taken = []
    for name, module in model.named_modules():
        for key in getattr(module, "parametrizations", ()):
            value = weights.get(f"{name}.{key}")
            if value is not None and value.shape == getattr(module, key).shape:
                setattr(module, key, value.to(getattr(module, key)))
                taken.append(f"{name}.parametrizations.{key}.")
    return taken


def _weights_file(path: Path) -> Path:
    if path.is_file():
        return path
    saved = list_checkpoints(path / "checkpoints")
    for candidate in (path, *saved[-1:], path / "checkpoints" / "best"):
        if (candidate / "model.safetensors").is_file():
            return candidate / "model.safetensors"
    raise FileNotFoundError(
        f"no weights in {path}: give a run folder, a checkpoint or a .safetensors"
    )
