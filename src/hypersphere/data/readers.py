"""`load(name)`: every data set by its name."""

from __future__ import annotations

import difflib
import inspect
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

from .cifar import load_cifar
from .class_imbalance import imbalanced
from .dataset import Split
from .digits import load_digits
from .download import download as fetch
from .errors import MissingData
from .files import data_root
from .idx import load_idx
from .image_folder import load_folder
from .lfw import load_lfw
from .megaface import load_megaface
from .mini_imagenet import load_mini_imagenet
from .modelnet import load_modelnet
from .omniglot import load_omniglot
from .planetoid import load_planetoid

_READERS: dict[str, Callable[..., Any]] = {
    "digits": load_digits,
    "mnist": load_idx,
    "fashion-mnist": load_idx,
    "cifar10": load_cifar,
    "cifar100": load_cifar,
    "folder": load_folder,
    "lfw": load_lfw,
    "megaface": load_megaface,
    "omniglot": load_omniglot,
    "modelnet40": load_modelnet,
    "cora": load_planetoid,
    "citeseer": load_planetoid,
    "pubmed": load_planetoid,
    "mini-imagenet": load_mini_imagenet,
}


def list_datasets() -> list[str]:
    """The names that `load` knows.

    >>> list_datasets()[:3]
    ['digits', 'mnist', 'fashion-mnist']
    """
    return list(_READERS)


def check_name(name: str) -> str:
    """`name` if there is such a data set; an error with the nearest name if not."""
    if name not in _READERS:
        near = difflib.get_close_matches(name, _READERS, n=1)
        hint = f"did you mean {near[0]!r}? " if near else ""
        raise ValueError(f"unknown data set {name!r}: {hint}known are {', '.join(_READERS)}")
    return name


def load(
    name: str,
    root: Path | str | None = None,
    *,
    download: bool = False,
    imbalance: str | None = None,
    imbalance_seed: int = 0,
    **options: Any,
) -> Any:
    """Load a data set completely into memory.

    `root`: the folder that holds the data sets; by default the environment variable
    HYPERSPHERE_DATA, then ~/.cache/hypersphere. `download=True` fetches what is missing.
    `imbalance`: "single", "multiple" or "mnist" thins the training part as in section D.1 / D.8.
    `options` go to the reader of that set: see its `load_...` function.

    Returns a `Split`; "cora", "citeseer" and "pubmed" give a `GraphDataset`, "megaface" an
    `Identification`.

    >>> split = load("digits")
    >>> len(split.train), len(split.test), split.num_classes
    (1347, 450, 10)
    """
    check_name(name)
    reader = _READERS[name]
    accepted = inspect.signature(reader).parameters
    for option in options:
        if option not in accepted or option in ("name", "root"):
            known = [p for p in accepted if p not in ("name", "root")]
            raise ValueError(
                f"data set {name!r} has no option {option!r}; it takes {', '.join(known) or 'none'}"
            )
    if name == "folder" and root is None and "path" not in options:
        raise ValueError("load('folder') needs path=, the folder of your pictures (or root=)")
    folder = data_root(root)
    place = {"name": name, "root": folder}
    given = {key: place[key] for key in place if key in accepted} | options
    try:
        loaded = reader(**given)
    except MissingData:
        if not download:
            raise
        fetch(name, folder)
        loaded = reader(**given)
    if isinstance(loaded, Split):
        loaded = replace(loaded, name=name)
    if imbalance is not None:
        if not isinstance(loaded, Split):
            raise ValueError(f"imbalance applies to a training part, which {name!r} has not")
        loaded = replace(loaded, train=imbalanced(loaded.train, imbalance, seed=imbalance_seed))
    return loaded
