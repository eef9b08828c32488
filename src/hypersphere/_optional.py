"""Optional dependencies: imported where they are used, with an error that says how to get them."""

from __future__ import annotations

import contextlib
import importlib
import importlib.machinery
import importlib.metadata
import sys
import types
from collections.abc import Iterator
from typing import Any


def require(module: str, extra: str) -> Any:
    """Import an optional dependency, or say which extra of hypersphere brings it.

    Args:
        module: dotted name of the module.
        extra: the extra of this package that installs it.

    Returns:
        The module.

    Raises:
        ModuleNotFoundError: if it is not installed.

    >>> require("math", extra="report").floor(2.5)
    2
    >>> require("no_such_module", extra="report")
    Traceback (most recent call last):
    ModuleNotFoundError: this needs 'no_such_module': pip install 'torch-hypersphere[report]'
    """
    try:
        return importlib.import_module(module)
    except ModuleNotFoundError as error:
        # A module that is installed but misses a part of its own is another problem: let it speak.
        if error.name is None or error.name.split(".")[0] != module.split(".")[0]:
            raise
        raise ModuleNotFoundError(
            f"this needs '{module}': pip install 'torch-hypersphere[{extra}]'",
            name=error.name,
        ) from None


@contextlib.contextmanager
def version_alone(module: str) -> Iterator[None]:
    """Context in which a package answers with its version, and is not imported for that.

    lightning_fabric imports torchmetrics to ask for its version, and with it all that torchmetrics
    finds (transformers, matplotlib, torchvision): two thirds of the time that its import takes.

    Args:
        module: name of a package. If it is imported already, or not installed, nothing is changed.

    >>> with version_alone("pytest"):
    ...     importlib.import_module("pytest").__version__.count(".") > 0
    True
    """
    try:
        version = importlib.metadata.version(module)
    except importlib.metadata.PackageNotFoundError:
        version = None
    if module in sys.modules or version is None:
        yield
        return
    placeholder = types.ModuleType(module)
    placeholder.__spec__ = importlib.machinery.ModuleSpec(module, None)
    placeholder.__version__ = version  # type: ignore[attr-defined]
    sys.modules[module] = placeholder
    try:
        yield
    finally:
        if sys.modules.get(module) is placeholder:
            del sys.modules[module]
