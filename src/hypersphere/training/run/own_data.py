"""What a run folder keeps of its data, so that it is never opened with others unnoticed.

run.json has the names of the classes and, of each part, the number of samples and a checksum of
their labels; split.json has who is used for what; normalize.json has how pixels became inputs.
Pictures that were added to a folder since would otherwise move people from one part to another.
"""

from __future__ import annotations

import dataclasses
import zlib
from pathlib import Path
from typing import Any

import torch

from ...data import Normalize
from ..config import DataConfig
from .checkpoint import RunError
from .folder import RunFolder
from .records import data_of_run, read_record

__all__ = ["as_started", "check_classes", "describe_data", "differs", "keep_data"]
__all__ += ["kept_normalization"]

SPLIT, NORMALIZE = "split.json", "normalize.json"


def describe_data(loaders: Any) -> dict[str, Any]:
    """The entry `data` of run.json.

    Args:
        loaders: the data of the run.

    Returns:
        Shape of a sample, names of the classes, and how many samples each part has.
    """
    split = loaders.split
    return {
        "shape": list(loaders.shape),
        "classes": list(map(str, split.classes)),
        "parts": {name: _summary(getattr(split, name)) for name in ("train", "test")},
    }


def _summary(dataset: Any) -> dict[str, Any]:
    labels = dataset.labels.cpu().to(torch.int64).contiguous()
    return {"samples": len(labels), "labels": f"{zlib.crc32(labels.numpy().tobytes()):08x}"}


def keep_data(record: RunFolder, loaders: Any) -> None:
    """Write what the data told that cannot be read from the config.

    Args:
        record: the folder of a run that starts.
        loaders: its data.
    """
    notes = getattr(loaders.split, "notes", {})
    if notes:  # who is used for what, which pictures were left out
        record.json(SPLIT, notes)
    rule = loaders.normalize
    if isinstance(rule, Normalize) and isinstance(rule.mean, torch.Tensor):
        record.json(NORMALIZE, {name: _plain(getattr(rule, name)) for name in ("mean", "std")})


def _plain(value: Any) -> Any:
    return value.tolist() if isinstance(value, torch.Tensor) else value


def kept_normalization(folder: Path) -> Normalize | None:
    """How pixels became inputs, where that was fitted to the data.

    Args:
        folder: the run folder.

    Returns:
        The normalization; None where none was fitted, or an earlier version kept none.

    Raises:
        RunError: if the file is damaged.
    """
    path = folder / NORMALIZE
    try:
        found = read_record(path)
    except FileNotFoundError:
        return None
    try:
        mean, std = (found[name] for name in ("mean", "std"))
        return Normalize(*(torch.tensor(v) if isinstance(v, list) else v for v in (mean, std)))
    except (KeyError, TypeError, ValueError):
        raise RunError(f"{path} is damaged: it has to give mean and std") from None


def as_started(config: DataConfig, folder: Path) -> DataConfig:
    """The section `data`, with the people as the run has divided them when it started.

    Args:
        config: the section of the run's config.
        folder: the run folder.

    Returns:
        The same section, or one that takes the people of split.json.
    """
    path = folder / SPLIT
    if not path.is_file() or "people" not in read_record(path):
        return config
    return dataclasses.replace(config, options={**config.options, "people": str(path)})


def check_classes(loaders: Any, folder: Path) -> None:
    """Refuse data that have other classes than the run was trained on.

    Args:
        loaders: the data, read again.
        folder: the run folder.

    Raises:
        RunError: names some of the classes that came or went.
    """
    details = read_record(folder / "run.json")
    if "data" not in details:  # of an earlier version
        return
    _, before = data_of_run(details, folder / "run.json")
    now = list(map(str, loaders.split.classes))
    if now == before:
        return
    gone, new = (sorted(set(a) - set(b)) for a, b in ((before, now), (now, before)))
    told = [f"{len(x)} {what}, such as {x[0]!r}" for x, what in ((gone, "gone"), (new, "new")) if x]
    raise RunError(
        f"{folder} was trained on {len(before):,} classes, and its data have others now "
        f"({'; '.join(told) or 'the same in another order'}): bring back the folders of then, or "
        f"train a new run (--train.init_from {folder} takes over the weights)"
    )


def differs(loaders: Any, folder: Path) -> str:
    """What is different about data with the same classes.

    Args:
        loaders: the data, read again.
        folder: the run folder.

    Returns:
        A sentence; empty if nothing is, or an earlier version kept no numbers.
    """
    for name, before in _parts(folder / "run.json").items():
        now = _summary(getattr(loaders.split, name))
        if now != before:
            counts = f"{before['samples']:,} samples then, {now['samples']:,} now"
            return f"the {name} part of the data of {folder} has changed since it started: {counts}"
    kept = kept_normalization(folder)
    if kept is not None and not (
        _alike(kept.mean, loaders.normalize.mean) and _alike(kept.std, loaders.normalize.std)
    ):
        return f"the pictures of {folder} have changed since it started: their mean is another"
    return ""


def _parts(path: Path) -> dict[str, dict[str, Any]]:
    """What run.json says of the parts; nothing where an earlier version kept nothing."""
    data = read_record(path).get("data")
    parts = data.get("parts", {}) if isinstance(data, dict) else {}
    if not isinstance(parts, dict) or not all(
        name in ("train", "test") and isinstance(part, dict) and type(part.get("samples")) is int
        for name, part in parts.items()
    ):
        raise RunError(f"{path} is damaged: data.parts has to count the samples of train and test")
    return parts


def _alike(before: Any, now: Any) -> bool:
    then, here = torch.as_tensor(before), torch.as_tensor(now)
    return then.shape == here.shape and torch.allclose(then, here, atol=1e-5)
