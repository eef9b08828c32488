"""Where data sets lie: the root folder and the usual places below it."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path

from .errors import missing
from .sources import Source


def data_root(root: Path | str | None = None) -> Path:
    """The folder that holds the data sets.

    Args:
        root: the folder. Default: the environment variable HYPERSPHERE_DATA, then
            ~/.cache/hypersphere.

    Returns:
        The folder; it may not exist.
    """
    if root is not None:
        return Path(root).expanduser()
    given = os.environ.get("HYPERSPHERE_DATA")
    return Path(given).expanduser() if given else Path.home() / ".cache" / "hypersphere"


def find_folder(root: Path, source: Source, wanted: Sequence[str | Sequence[str]]) -> list[Path]:
    """The `wanted` files, all from the first of the source's usual folders that has any of them.

    An entry of `wanted` is a name, or alternatives of which the first that exists is taken.
    """
    folders = [root / folder for folder in source.folders]
    options = [(w,) if isinstance(w, str) else tuple(w) for w in wanted]
    for folder in folders:
        found = [
            next((folder / n for n in names if (folder / n).exists()), None) for names in options
        ]
        if any(found):
            break
    else:
        raise missing(f"{source.title} ({options[0][0]}, ...)", folders, source.how(root))
    for path, names in zip(found, options, strict=True):
        if path is None:
            raise missing(
                f"the {source.title} file {names[0]}", folder / names[0], source.how(root)
            )
    return [path for path in found if path is not None]
