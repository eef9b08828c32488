"""CIFAR-10 and CIFAR-100: the publisher's python batches."""

from __future__ import annotations

import warnings
from pathlib import Path
from typing import Any

import numpy as np
import torch

from .checksums import verify_files
from .dataset import ArrayDataset, Split
from .errors import damaged
from .files import find_folder
from .sources import SOURCES, Source
from .unpickle import read_pickle


def load_cifar(
    name: str, root: Path, batches: int | None = None, coarse: bool = False, verify: bool = False
) -> Split:
    """CIFAR-10 ("cifar10") or CIFAR-100 ("cifar100").

    `batches`: how many of the five training batches of CIFAR-10 to read (1..5); by default all that
    lie in the folder, with a warning if some are missing. `coarse`: the 20 groups of CIFAR-100 as
    classes. `verify`: compare with the publisher's checksums.
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
                f"batches are read. batches={len(train)} says that this is meant; the others can "
                f"be had at {source.how(root)}",
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
    classes = [_text(c) for c in _entry(meta, names_key, source)]
    parts = [_read(paths, labels_key, classes, source) for paths in (train, [test])]
    return Split(train=parts[0], test=parts[1])


def _read(paths: list[Path], key: str, classes: list[str], source: Source) -> ArrayDataset:
    images, labels = [], []
    for path in paths:
        content = _contents(path, source)
        data, label = _pick(path, content, "data", source), _pick(path, content, key, source)
        number = np.asarray(label)
        if not (
            isinstance(data, np.ndarray)
            and data.dtype == np.uint8
            and data.shape == (len(number), 3072)
            and number.dtype.kind in "iu"
            and 0 <= number.min(initial=0) <= number.max(initial=0) < len(classes)
        ):
            raise damaged(
                path,
                f"data (n, 3072) uint8 and n {key} below {len(classes)}",
                f"data {getattr(data, 'shape', type(data).__name__)} and {len(number)} {key}",
                source.where,
            )
        images.append(data.reshape(-1, 3, 32, 32))
        labels.append(number.astype(np.int64))
    return ArrayDataset(
        torch.from_numpy(np.concatenate(images)), torch.from_numpy(np.concatenate(labels)), classes
    )


def _contents(path: Path, source: Source) -> dict[str, Any]:
    content = read_pickle(path, source.where)
    if not isinstance(content, dict):
        raise damaged(path, "a dictionary", type(content).__name__, source.where)
    return {_text(key): value for key, value in content.items()}


def _pick(path: Path, content: dict[str, Any], key: str, source: Source) -> Any:
    if key not in content:
        raise damaged(path, f"an entry {key!r}", f"entries {sorted(content)}", source.where)
    return content[key]


def _entry(path: Path, key: str, source: Source) -> Any:
    return _pick(path, _contents(path, source), key, source)


def _text(value: Any) -> str:
    return value.decode("latin1") if isinstance(value, bytes) else str(value)
