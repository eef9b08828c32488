"""CIFAR-10 and CIFAR-100: the publisher's python batches."""

from __future__ import annotations

import warnings
from pathlib import Path
from typing import Any

import numpy as np
import torch

from ..registry import register
from .checksums import verify_files
from .dataset import ArrayDataset, Split
from .errors import damaged
from .files import find_folder
from .sources import SOURCES, Source
from .unpickle import read_pickle


@register("data", "cifar100")
@register("data", "cifar10")
def load_cifar(
    name: str, root: Path, batches: int | None = None, coarse: bool = False, verify: bool = False
) -> Split:
    """CIFAR-10 or CIFAR-100.

    Args:
        name: "cifar10" or "cifar100".
        root: the data folder.
        batches: how many of the five training batches of CIFAR-10 to read (1..5). Default: all that
            lie in the folder, with a warning if some are missing.
        coarse: the 20 groups of CIFAR-100 as classes.
        verify: compare the files with the publisher's checksums.

    Returns:
        Training and test pictures (3, 32, 32) uint8.
    """
    source = SOURCES[name]
    if name == "cifar10":
        first, test, meta = find_folder(
            root, source, ["data_batch_1", "test_batch", "batches.meta"]
        )
        train = [first, *(first.with_name(f"data_batch_{i}") for i in range(2, 6))]
        if batches is not None and not 1 <= batches <= 5:
            raise ValueError(f"batches is 1..5; got {batches}")
        absent = [p.name for p in train if not p.exists()]
        if batches is not None:
            train = train[:batches]
            find_folder(root, source, [p.name for p in train])  # names one that is missing
        elif absent:
            train = [p for p in train if p.exists()]
            warnings.warn(
                f"CIFAR-10 lacks {', '.join(absent)} in {first.parent}: {len(train)} of 5 training "
                f"batches are read. batches={len(train)} says that this is meant; the others are "
                f"available at {source.how(root)}",
                stacklevel=3,
            )
        labels_key, names_key = "labels", "label_names"
    else:
        first, test, meta = find_folder(root, source, ["train", "test", "meta"])
        train = [first]
        kind = "coarse" if coarse else "fine"
        labels_key, names_key = f"{kind}_labels", f"{kind}_label_names"
    if verify:
        verify_files([*train, test, meta], source)
    names = _pick(meta, _contents(meta, source), names_key, source)
    if not isinstance(names, list) or not all(isinstance(c, (str, bytes)) for c in names):
        raise damaged(meta, "a list of class names", type(names).__name__, source.where)
    classes = [_as_text(c) for c in names]
    parts = [_read_batches(paths, labels_key, classes, source) for paths in (train, [test])]
    return Split(train=parts[0], test=parts[1])


def _read_batches(paths: list[Path], key: str, classes: list[str], source: Source) -> ArrayDataset:
    images, labels = [], []
    for path in paths:
        content = _contents(path, source)
        data, label = _pick(path, content, "data", source), _pick(path, content, key, source)
        number = _labels(label)
        if not (
            isinstance(data, np.ndarray)
            and data.dtype == np.uint8
            and number is not None
            and data.shape == (len(number), 3072)
            and 0 <= number.min(initial=0) <= number.max(initial=0) < len(classes)
        ):
            count = "other" if number is None else len(number)
            raise damaged(
                path,
                f"data (n, 3072) uint8 and n {key} below {len(classes)}",
                f"data {getattr(data, 'shape', type(data).__name__)} and {count} {key}",
                source.where,
            )
        images.append(data.reshape(-1, 3, 32, 32))
        labels.append(number.astype(np.int64))
    return ArrayDataset(
        torch.from_numpy(np.concatenate(images)), torch.from_numpy(np.concatenate(labels)), classes
    )


def _labels(value: Any) -> np.ndarray | None:
    """(n,) integers, or None if the value is something else."""
    if isinstance(value, list) and not all(type(item) is int for item in value):
        return None
    if not isinstance(value, (list, np.ndarray)):
        return None
    number = np.asarray(value, np.int64 if isinstance(value, list) and not value else None)
    return number if number.ndim == 1 and number.dtype.kind in "iu" else None


def _contents(path: Path, source: Source) -> dict[str, Any]:
    content = read_pickle(path, source.where)
    if not isinstance(content, dict):
        raise damaged(path, "a dictionary", type(content).__name__, source.where)
    return {_as_text(key): value for key, value in content.items()}


def _pick(path: Path, content: dict[str, Any], key: str, source: Source) -> Any:
    if key not in content:
        raise damaged(path, f"an entry {key!r}", f"entries {sorted(content)}", source.where)
    return content[key]


def _as_text(value: Any) -> str:
    return value.decode("latin1") if isinstance(value, bytes) else str(value)
