"""A whole run from its settings: build, train, test, evaluate, record."""

from __future__ import annotations

import copy
import json
import math
import random
import sys
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import nn
from torch.nn.utils import parametrize

from hypersphere.models import Classifier
from hypersphere.training.build import (
    Loaders,
    initialize_from,
    make_hooks,
    make_loaders,
    make_net,
    make_player_optimizer,
    make_rate,
)
from hypersphere.training.config import Config, TrainConfig
from hypersphere.training.distributed import make_fabric, synchronize
from hypersphere.training.fsdp import in_use, refuse
from hypersphere.training.loop import Player, Run, Settings, fit
from hypersphere.training.run.checkpoint import RunError, list_checkpoints, save_weights
from hypersphere.training.run.folder import RunFolder, describe_run
from hypersphere.training.run.resume import changed_settings, record_changes
from hypersphere.training.sharding import is_spread, step_one_by_one
from hypersphere.training.tasks.classification import (
    Classification,
    ClassifierLoss,
    extract_features,
)

__all__ = ["Job", "Outcome", "SetupError", "load_net", "prepare", "seed_everything", "train"]


class SetupError(ValueError):
    """Data, model, head or optimizer cannot be built from these settings."""


@dataclass
class Job:
    """Everything a run consists of, built and ready."""

    task: Any
    hooks: list[Any]
    settings: Settings
    loaders: Any = None
    notes: list[str] = field(default_factory=list)


@dataclass
class Outcome:
    """What a run ended with."""

    folder: Path
    last: dict[str, Any]
    best: dict[str, Any]
    interrupted: int | None
    verification: Any = None


def seed_everything(seed: int) -> None:
    """Seed Python, NumPy and torch."""
    random.seed(seed)
    np.random.seed(seed % 2**32)  # noqa: NPY002 - what other code draws from
    torch.manual_seed(seed)


def make_settings(config: TrainConfig, batches_per_epoch: int) -> Settings:
    """The loop's numbers; `epochs`, if given, decides the steps."""
    steps = config.steps
    if config.epochs is not None:
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


def prepare(config: Config, fabric: Any) -> Job:
    """Build task and hooks of any kind; trains nothing."""
    if in_use(fabric):
        refuse(config)
    seed_everything(config.seed)
    if config.train.threads is not None:
        torch.set_num_threads(config.train.threads)
    torch.use_deterministic_algorithms(config.train.deterministic)
    if config.task == "graph":
        from hypersphere.training.tasks.graph import prepare_graph

        return prepare_graph(config, fabric)
    if config.task == "gan":
        from hypersphere.training.tasks.gan import prepare_gan

        return prepare_gan(config, fabric)
    if config.task == "reconstruction":
        from hypersphere.training.tasks.reconstruction import prepare_reconstruction

        return prepare_reconstruction(config, fabric)
    loaders = make_loaders(config.data, config.seed, fabric.global_rank, fabric.world_size)
    job = prepare_classification(config, fabric, loaders)
    # The same start everywhere; from here on, processes draw (dropout, noise) each for themselves.
    seed_everything(config.seed + fabric.global_rank)
    return job


def prepare_classification(config: Config, fabric: Any, loaders: Loaders) -> Job:
    """Classification of pictures or point clouds; few-shot pretraining is the same."""
    notes = []
    net = make_net(config, loaders.shape, loaders.num_classes)
    if config.train.init_from is not None:
        fresh = initialize_from(net, config.train.init_from)
        notes.append(
            f"started from {config.train.init_from}"
            + (f"; new: {', '.join(fresh[:5])}{' ...' if len(fresh) > 5 else ''}" if fresh else "")
        )
    if fabric.world_size > 1:
        synchronize(net)
    loss = ClassifierLoss(net, config.train.label_smoothing)
    if config.head.get("sharded") and fabric.world_size > 1:
        from hypersphere.heads.sharded import ignore_in_ddp, shard

        shard(net.head)  # type: ignore[arg-type]
        ignore_in_ddp(loss)
    settings = make_settings(config.train, len(loaders.train))
    module = fabric.setup_module(loss)
    optimizer = make_player_optimizer(config, net)
    step_one_by_one(optimizer)
    rate = make_rate(optimizer, config.schedule, settings.steps)
    player = Player(module, fabric.setup_optimizers(optimizer), rate)
    parts = (net, player, loaders.train, loaders.test, fabric)
    task = Classification(*parts)
    if config.task == "few_shot":
        from hypersphere.training.tasks.few_shot import FewShot

        task = FewShot(*parts, settings=config.few_shot, loaders=loaders)
    task.normalize = loaders.normalize
    return Job(task, make_hooks(config), settings, loaders, notes)


def train(
    config: Config,
    folder: Path | str,
    resume: bool = False,
    config_text: str | None = None,
    fabric: Any = None,
) -> Outcome:
    """Run `config` in `folder`; `config_text` is kept there as config.yaml."""
    fabric = fabric or make_fabric(**vars(config.fabric))
    record = RunFolder(folder, write=fabric.is_global_zero)
    resumed = resume and (record.path / "run.json").exists()
    try:
        changes = changed_settings(record.path, config) if resumed else {}
        job = prepare(config, fabric)
    except BaseException as error:
        record.discard()
        # torch and constructors say so when settings do not fit together; in the loop the same
        # errors are bugs.
        if isinstance(error, (TypeError, RuntimeError)) and not isinstance(error, RunError):
            raise SetupError(f"cannot set up this run: {error}") from error
        raise
    say = _speaker(fabric, config.train.quiet)
    for note in job.notes:
        say(note)
    if resumed:
        record_changes(record, config, changes, job.settings.steps, config_text)
    else:
        details = {"processes": fabric.world_size, "task": config.task, "config": config.to_dict()}
        if job.loaders is not None:
            details["data"] = {
                "shape": list(job.loaders.shape),
                "classes": list(map(str, job.loaders.split.classes)),
            }
        record.json("run.json", describe_run(config.seed, **details))
        if config_text is not None:
            record.text("config.yaml", config_text)
    run = fit(job.task, record, fabric, job.settings, job.hooks, resume)
    outcome = Outcome(record.path, run.tested, run.best, run.interrupted)
    if run.interrupted is None and fabric.is_global_zero:
        if in_use(fabric):  # the first process goes on alone, with the whole network
            job.task.model = load_net(record.path).to(fabric.device)
        conclude(job, run, record, outcome, say)
    fabric.barrier()
    return outcome


def find_weights(folder: Path | str, weights: str = "last") -> tuple[Path, int | None]:
    """(checkpoint folder, step) of a run's "last" or "best" weights."""
    folder = Path(folder)
    if weights == "best":
        best = folder / "checkpoints" / "best"
        if not (best / "model.safetensors").is_file():
            raise FileNotFoundError(f"{folder} has no best weights: it was not tested yet")
        summary = json.loads((folder / "summary.json").read_text("utf-8"))
        return best, summary.get("best", {}).get("step")
    if weights != "last":
        raise ValueError(f"weights are 'last' or 'best'; got {weights!r}")
    saved = list_checkpoints(folder / "checkpoints")
    if not saved:
        raise FileNotFoundError(
            f"{folder} has no checkpoint step-*, where the last weights are: train it, or take "
            f"the best ones (--weights best)"
        )
    return saved[-1], int(saved[-1].name[5:])


def load_net(
    folder: Path | str, weights: Path | str = "last", net: nn.Module | None = None
) -> nn.Module:
    """The trained `Classifier` of a run, ready to evaluate.

    Args:
        folder: the run folder.
        weights: "last" (those training ended with, and reported on), "best" (of the best test), or
            a checkpoint folder or .safetensors file.
        net: for a run that was made with a module instead of a name: that module again, or a whole
            `Classifier`. It is copied.

    Returns:
        The network in evaluation mode.
    """
    details = json.loads((Path(folder) / "run.json").read_text("utf-8"))
    if "data" not in details:
        raise ValueError(f"{folder} is not a run of a classifier (its task is {details['task']!r})")
    config = Config.from_dict(details["config"])
    shape, classes = tuple(details["data"]["shape"]), details["data"]["classes"]
    if isinstance(net, Classifier):
        net = copy.deepcopy(net)
    else:
        config.model = config.model if net is None else {"object": net}
        net = make_net(config, shape, len(classes))
    if weights in ("last", "best"):
        weights, _ = find_weights(folder, str(weights))
    missing = initialize_from(net, weights)
    if missing:
        raise ValueError(f"the weights lack {', '.join(missing[:5])}")
    return net.eval()


def conclude(job: Job, run: Run, record: RunFolder, outcome: Outcome, say: Any) -> None:
    """What follows training: verification of unseen classes, features for the report."""
    summary = json.loads((record.path / "summary.json").read_text())
    finish = getattr(job.task, "conclude", None)
    if finish is not None:
        summary.update(finish(run, record, say))
    split = getattr(job.loaders, "split", None)
    if parametrized(job.task.model) and not is_spread(job.task.model):
        summary["folded"] = save_folded(record, job.task.model)
    if split is not None:
        net, device = job.task.model, run.fabric.device
        features, labels = extract_features(net, job.loaders.over(split.test), device)
        images = getattr(split.test, "images", None)
        save_features(record, features, labels, list(split.classes), images)
        pairs = getattr(split, "pairs", None)
        if pairs is not None:
            from hypersphere.evaluation import verification

            unseen, _ = extract_features(net, job.loaders.over(pairs.dataset), device)
            index = torch.stack([pairs.first, pairs.second], 1)
            result = verification(
                unseen, unseen, pairs.same, protocol="plain", index=index, folds=pairs.fold
            )
            outcome.verification = result
            summary["verification"] = {
                "accuracy": result.accuracy,
                "eer": result.eer,
                "auc": result.auc,
            }
            result.to_json(record.path / "verification.json", weights="last", step=run.step)
    summary["seconds"] = round(run.elapsed, 2)
    record.json("summary.json", summary)


def parametrized(net: nn.Module) -> bool:
    """Whether the net is rotated (OPT) or of low rank, so that its weights can be folded."""
    from hypersphere.orthogonal import Rotation
    from hypersphere.regularizers import LowRankBilateral

    return any(isinstance(module, (Rotation, LowRankBilateral)) for module in net.modules())


@torch.no_grad()
def save_folded(record: RunFolder, net: nn.Module) -> str:
    """Rotations and factors multiplied out: the weights of the plain network, under its keys.

    `orthogonal.fold` changes the module it is given (and, in torch, a copy's class is the
    original's), so the weights are collected here and the trained net stays as it is.
    """
    weights = {k: v for k, v in net.state_dict().items() if ".parametrizations." not in f".{k}"}
    for name, module in net.named_modules():
        if parametrize.is_parametrized(module):
            for key in module.parametrizations:  # type: ignore[union-attr]
                weights[f"{name}.{key}"] = getattr(module, key)
    save_weights(record.path / "folded.safetensors", weights)
    return "folded.safetensors"


def save_features(
    record: RunFolder,
    features: torch.Tensor,
    labels: torch.Tensor,
    classes: list[str],
    images: Any = None,
) -> None:
    """At most 2,000 test features, as they are and in 3 principal directions, for the report.

    Small pictures (up to 32 x 32) go with them, so that a point of the report can show its own.
    """
    keep = torch.arange(len(features))
    if len(features) > 2000:
        keep = torch.linspace(0, len(features) - 1, 2000).long()
    features, labels = features[keep], labels[keep]
    projected = features
    if features.shape[1] > 3:
        centered = (features - features.mean(0)).double()
        _, vectors = torch.linalg.eigh(centered.T @ centered)
        projected = (centered @ vectors[:, -3:].flip(1)).float()
    arrays = {
        "features": projected.numpy(),
        "directions": torch.nn.functional.normalize(features, dim=1).half().numpy(),
        "labels": labels.numpy(),
        "classes": np.asarray(classes),
    }
    if isinstance(images, torch.Tensor) and images.ndim == 4 and images[0, 0].numel() <= 1024:
        arrays["images"] = _thumbnails(images[keep])
    with open(record.path / "features.npz", "wb") as file:
        np.savez_compressed(file, **arrays)  # type: ignore[arg-type]


def _thumbnails(images: torch.Tensor) -> np.ndarray:
    if images.dtype != torch.uint8:
        low, high = images.min(), images.max()
        images = (255 * (images - low) / (high - low).clamp_min(1e-12)).round().to(torch.uint8)
    return images.numpy()


def _speaker(fabric: Any, quiet: bool) -> Any:
    def say(message: str) -> None:
        if fabric.is_global_zero and not quiet:
            print(message, file=sys.stderr, flush=True)

    return say
