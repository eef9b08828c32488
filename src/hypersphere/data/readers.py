"""`load(name)`: every data set by its name."""

from __future__ import annotations

import inspect
from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path
from typing import Any

from .. import registry
from .class_imbalance import imbalanced
from .dataset import Split
from .download import download as fetch
from .errors import MissingData
from .files import data_root
from .megaface import Identification
from .planetoid import GraphDataset

__all__ = ["check_name", "list_datasets", "load", "reader_options"]

_PLACE = ("name", "root")  # parameters of a reader that `load` fills in


def list_datasets() -> list[str]:
    """The names that `load` knows: those of this package, then a user's own.

    Returns:
        The names, in the order of their registration.

    >>> list_datasets()[:3]
    ['digits', 'letters', 'mnist']
    """
    return registry.names("data")


def check_name(name: str) -> str:
    """`name` if there is such a data set; a ValueError with the nearest name if not."""
    return registry.entry("data", name).name


def reader_options(name: str) -> tuple[str, ...]:
    """The options that the reader of a data set takes, beside its place.

    Args:
        name: one of `list_datasets`.

    Returns:
        Names of keyword arguments of `load` for this data set.

    >>> reader_options("mnist")
    ('verify',)
    """
    named = (inspect.Parameter.POSITIONAL_OR_KEYWORD, inspect.Parameter.KEYWORD_ONLY)
    parameters = inspect.signature(registry.entry("data", name).target).parameters.values()
    return tuple(p.name for p in parameters if p.kind in named and p.name not in _PLACE)


def check_reader_options(name: str, options: Iterable[str]) -> None:
    """ValueError for an unknown data set, or an option that its reader does not take."""
    parameters = inspect.signature(registry.entry("data", name).target).parameters
    takes_any = any(p.kind is inspect.Parameter.VAR_KEYWORD for p in parameters.values())
    known = reader_options(name)
    for option in options:
        if option not in known and not takes_any:
            near = registry.nearest(option, known)
            hint = f"; did you mean {near!r}?" if near else ""
            raise ValueError(
                f"data set {name!r} has no option {option!r}{hint} "
                f"(it takes: {', '.join(known) or 'none'})"
            )


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

    A data set of your own enters with ``@hs.register("data", "mine")`` on a function
    ``load(root, ...)`` that returns a `Split`, of two `ArrayDataset` for example (or a
    `GraphDataset` for graphs, an `Identification` for galleries and probes). ``root`` is the data
    folder, a ``Path``; it may be left out of the signature, and a parameter ``name`` receives the
    registered name. All other parameters are options of the data set.

    Args:
        name: one of `list_datasets`.
        root: the folder that holds the data sets. Default: the environment variable
            HYPERSPHERE_DATA, then ~/.cache/hypersphere.
        download: fetch what is missing.
        imbalance: "single", "multiple" or "mnist" thins the training part as in section D.1 / D.8.
        imbalance_seed: seed of the samples that are kept.
        options: passed to the reader of that set; see its `load_...` function.

    Returns:
        A `Split`; "cora", "citeseer" and "pubmed" give a `GraphDataset`, "megaface" an
        `Identification`.

    Raises:
        ValueError: for an unknown name or option.
        MissingData: if files are missing, with the place to get them.
        DamagedData: if a file is not what its format promises.

    >>> split = load("digits")
    >>> len(split.train), len(split.test), split.num_classes
    (1347, 450, 10)
    """
    check_reader_options(name, options)
    found = registry.entry("data", name)
    parameters = inspect.signature(found.target).parameters
    if name == "folder" and root is None and "path" not in options:
        raise ValueError(
            "load('folder') needs root=, the folder of your pictures (--data.root on the command "
            "line), or path=, a folder below HYPERSPHERE_DATA or from here"
        )
    folder = data_root(root)
    if name == "folder" and root is None and Path(options["path"]).expanduser().is_dir():
        folder = Path()  # a path from here, as anywhere on a command line
    place = {"name": name, "root": folder}
    given = {key: place[key] for key in _PLACE if key in parameters} | options
    try:
        loaded = found.target(**given)
    except MissingData:
        if not download:
            raise
        fetch(name, folder)
        loaded = found.target(**given)
    if not isinstance(loaded, (Split, GraphDataset, Identification)):
        raise TypeError(
            f"the reader of data set {name!r} ({found.module}) has to return a Split, a "
            f"GraphDataset or an Identification; got {type(loaded).__name__}"
        )
    if isinstance(loaded, Split):
        loaded = replace(loaded, name=name)
    if imbalance is not None:
        if not isinstance(loaded, Split):
            raise ValueError(f"imbalance applies to a training part, which {name!r} has not")
        loaded = replace(loaded, train=imbalanced(loaded.train, imbalance, seed=imbalance_seed))
    return loaded
