"""What follows training: folded weights, features for the report, verification."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn.utils import parametrize

from hypersphere.training.diagnose import check_lengths
from hypersphere.training.prepare import Job
from hypersphere.training.run.checkpoint import save_weights
from hypersphere.training.run.folder import RunFolder
from hypersphere.training.run.kept_thresholds import keep_thresholds
from hypersphere.training.run.records import file_entry
from hypersphere.training.runtime import Run
from hypersphere.training.sharding import is_spread
from hypersphere.training.tasks.classification import extract_features

__all__ = ["conclude", "save_features", "save_folded"]

MOST_FEATURES = 2000  # what the report shows and stores


def conclude(job: Job, run: Run, record: RunFolder, say: Any) -> Any:
    """Write what follows training to the run folder, with the network in evaluation mode.

    Args:
        job: the task and its data.
        run: the finished run.
        record: its folder.
        say: called with what a user should read.

    Returns:
        The verification of unseen classes, or None where the data have no pairs of them.
    """
    summary: dict[str, Any] = {"last": run.tested, "best": run.best}
    net, result = job.task.model.eval(), None
    if hasattr(job.task, "conclude"):
        summary.update(job.task.conclude(run, record, say))
    for values in run.call("summarize"):
        summary.setdefault("measured", {}).update(values)
    if is_parametrized(net) and not is_spread(net):
        summary["folded"] = save_folded(record, net)
    if job.loaders is not None:
        split = job.loaders.split
        features, labels = extract_features(net, job.loaders.over(split.test), run.fabric.device)
        images = getattr(split.test, "images", None)
        save_features(record, features, labels, list(split.classes), images)
        if getattr(split, "pairs", None) is not None:
            result, thresholds = verify_unseen(job, run)
            summary["verification"] = {k: getattr(result, k) for k in ("accuracy", "eer", "auc")}
            result.to_json(record.path / "verification.json", weights="last", step=run.step)
            keep_thresholds(record.path, thresholds, "last", run.step)
    summary["seconds"] = round(run.elapsed, 2)
    written = [record.path / name for name in ("metrics.jsonl", "features.npz")]
    summary["files"] = {path.name: file_entry(path) for path in written if path.exists()}
    record.json("summary.json", summary)
    return result


def verify_unseen(job: Job, run: Run) -> tuple[Any, Any]:
    """Verification of the pairs that the data set brings, of classes never trained, and thresholds
    of pairs at several false-accept rates.
    """
    from hypersphere.evaluation import fit_thresholds, verification

    assert job.loaders is not None
    pairs = job.loaders.split.pairs
    loader = job.loaders.over(pairs.dataset)
    unseen, labels = extract_features(job.task.model, loader, run.fabric.device)
    check_lengths(unseen, job.task.model)
    index = torch.stack([pairs.first, pairs.second], 1)
    result = verification(
        unseen, unseen, pairs.same, protocol="plain", index=index, folds=pairs.fold
    )
    return result, fit_thresholds(unseen, labels)


def is_parametrized(net: nn.Module) -> bool:
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
    record: RunFolder, features: Tensor, labels: Tensor, classes: list[str], images: Any = None
) -> None:
    """At most 2,000 test features, as they are and in 3 principal directions, for the report.

    As they are: directions and lengths, for a classifier's bias counts less for longer features.

    Small pictures (up to 32 x 32) go with them, so that a point of the report can show its own.
    """
    check_lengths(features)
    keep = torch.arange(len(features))
    if len(features) > MOST_FEATURES:
        keep = torch.linspace(0, len(features) - 1, MOST_FEATURES).long()
    features, labels = features[keep], labels[keep]
    projected = features
    if features.shape[1] > 3:
        centered = (features - features.mean(0)).double()
        _, vectors = torch.linalg.eigh(centered.T @ centered)
        projected = (centered @ vectors[:, -3:].flip(1)).float()
    arrays = {
        "features": projected.numpy(),
        "directions": nn.functional.normalize(features, dim=1).half().numpy(),
        "lengths": features.float().norm(dim=1).numpy(),
        "labels": labels.numpy(),
        "classes": np.asarray(classes),
    }
    if isinstance(images, Tensor) and images.ndim == 4 and images[0, 0].numel() <= 1024:
        arrays["images"] = _thumbnails(images[keep])
    record.arrays("features.npz", arrays)


def _thumbnails(images: Tensor) -> np.ndarray:
    if images.dtype != torch.uint8:
        low, high = images.min(), images.max()
        images = (255 * (images - low) / (high - low).clamp_min(1e-12)).round().to(torch.uint8)
    return images.numpy()
