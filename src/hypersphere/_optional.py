"""Optional dependencies: imported where they are used, with an error that says how to get them."""

from __future__ import annotations

import importlib
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
