"""Cross-validation of a config on its training part; the test part stays unseen."""

from __future__ import annotations

import dataclasses
import shutil
import tempfile
from pathlib import Path
from typing import Any

import torch

from hypersphere.training.build import make_loaders
from hypersphere.training.config import Config
from hypersphere.training.distributed import make_fabric
from hypersphere.training.interrupt import Interrupted
from hypersphere.training.loop import fit
from hypersphere.training.prepare import prepare
from hypersphere.training.run.folder import RunFolder

__all__ = ["cross_validated", "fold_parts"]


def fold_parts(labels: torch.Tensor, folds: int, seed: int = 0) -> list[torch.Tensor]:
    """Indices of each fold, every class divided evenly (stratified).

    >>> [sorted(p.tolist()) for p in fold_parts(torch.tensor([0, 0, 1, 1]), 2)]
    [[0, 3], [1, 2]]
    """
    if not 2 <= folds <= int(torch.bincount(labels).min()):
        raise ValueError(f"folds must be at least 2 and at most the smallest class; got {folds}")
    generator = torch.Generator().manual_seed(seed)
    parts: list[list[int]] = [[] for _ in range(folds)]
    for label in labels.unique():
        members = (labels == label).nonzero().flatten()
        members = members[torch.randperm(len(members), generator=generator)]
        for i in range(folds):
            parts[i] += members[i::folds].tolist()
    return [torch.tensor(sorted(part)) for part in parts]


def cross_validated(
    config: Config, folds: int, folder: Path, owner: str = ""
) -> list[dict[str, Any]]:
    """The last test values of each fold: trained on the other folds, tested on it.

    Folds are trained in folders fold-OWNER-... of `folder`, which go again. A signal raises
    `Interrupted`: part of the folds is no result.
    """
    if config.task != "classification":
        raise ValueError(f"cross-validation is for task classification; this is {config.task!r}")
    fabric = make_fabric(**vars(config.fabric))
    whole = make_loaders(config.data, config.seed, fabric.global_rank, fabric.world_size)
    data = whole.split.train
    parts = fold_parts(data.labels, folds, config.seed)
    results = []
    folder.mkdir(parents=True, exist_ok=True)
    for number in range(folds):
        rest = torch.cat([part for i, part in enumerate(parts) if i != number])
        split = dataclasses.replace(
            whole.split, train=data.subset(rest.sort().values), test=data.subset(parts[number])
        )
        job = prepare(config, fabric, split)
        place = Path(tempfile.mkdtemp(prefix=f"fold-{owner}-", dir=folder))
        try:
            run = fit(
                job.task, RunFolder(place, fabric.is_global_zero), fabric, job.settings, job.hooks
            )
            results.append(run.tested)
        finally:
            shutil.rmtree(place, ignore_errors=True)
        if run.interrupted is not None:
            raise Interrupted(run.interrupted)
    return results
