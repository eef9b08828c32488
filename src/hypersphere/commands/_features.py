"""Files of features as commands read them: what has no direction is told."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from .._terminal import complain

if TYPE_CHECKING:
    from torch import Tensor

    from ..evaluation.feature_files import Arrays


def read_labels(arrays: Arrays, path: str | Path) -> Tensor:
    """The labels of a file, of which texts are numbered."""
    from ..evaluation.feature_files import pick, pick_people

    # A row of the classifier is of the class of its number, which a text does not tell.
    if "weight" in arrays:
        return pick(arrays, "labels", path)
    return pick_people(arrays, path, "labels")[0]


def tell_zero_rows(command: str, *features: Tensor | None) -> None:
    """Say how many of the features (n, d) are zero: they count, but say nothing."""
    tables = [table for table in features if table is not None and table.ndim == 2]
    zeros = sum(int((table == 0).all(1).sum()) for table in tables)
    if zeros:
        are = "is zero and has" if zeros == 1 else "are zero and have"
        count = "its cosines count" if zeros == 1 else "their cosines count"
        total = sum(map(len, tables))
        complain(command, f"{zeros:,} of {total:,} features {are} no direction: {count} as 0")
