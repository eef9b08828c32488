"""Where a command may write: not over the record of a run or a gallery, which could not be read
any more.
"""

from __future__ import annotations

import argparse
import os
from collections.abc import Callable
from fnmatch import fnmatch
from pathlib import Path

from hypersphere._reading import check_replaceable

__all__ = ["check_output", "output_file", "output_folder"]

# What training writes into the folder of a run and reads again; results of evaluations beside them
# may be written anew.
_OF_A_RUN = (
    *("run.json", "config.yaml", "metrics.jsonl", "summary.json", "features.npz", "split.json"),
    *("normalize.json", "diverged.json", "diagnosis.json", "baseline.json", "folded.safetensors"),
    *(".lock", "checkpoints", "cache"),
)
# The file that a record is known by, and patterns of what belongs to it in the same folder.
_RECORDS = {
    "run.json": _OF_A_RUN,
    "gallery.json": ("gallery.json", "features-*.safetensors", ".lock"),
}


def check_output(text: str | Path, endings: tuple[str, ...] = ()) -> Path:
    """The path of a file that a command will write.

    Args:
        text: the path, as on the command line.
        endings: how its name may end. Default: a folder, which may have any name.

    Returns:
        The path.

    Raises:
        ValueError: if it is empty, has another ending, is a folder or a device where a file is
            written, or belongs to the record of a run or a gallery.

    >>> check_output("page.txt", (".html",))
    Traceback (most recent call last):
    ValueError: expected a file that ends in .html; got page.txt
    """
    if not str(text).strip():
        raise ValueError(f"expected a path; got {str(text)!r}")
    path = Path(text)
    if endings and path.is_dir():
        name = f"report{endings[0]}" if endings[0] == ".html" else f"result{endings[0]}"
        raise ValueError(f"{path} is a folder: give {path / name}")
    if endings:
        try:
            check_replaceable(path)
        except OSError as error:
            raise ValueError(str(error)) from None
    record = _record_of(path)
    if record is not None:
        raise ValueError(
            f"{path} belongs to {record}, which could not be read any more: choose another name"
        )
    if endings and path.suffix not in endings:
        known = " or ".join([", ".join(endings[:-1]), endings[-1]] if endings[1:] else endings)
        raise ValueError(f"expected a file that ends in {known}; got {path}")
    return path


def output_file(*endings: str) -> Callable[[str], Path]:
    """What argparse calls with the path of a file to write.

    Args:
        endings: how its name may end.

    Returns:
        A function from text to a path, which refuses what `check_output` refuses.
    """

    def read(text: str) -> Path:
        try:
            return check_output(text, endings)
        except ValueError as error:
            raise argparse.ArgumentTypeError(str(error)) from None

    return read


# The same of a folder to write into.
output_folder = output_file()


def _record_of(path: Path) -> str | None:
    """The run or gallery whose record a path belongs to."""
    whole = Path(os.path.realpath(path))  # also of links that lead in a circle
    for folder in whole.parents:
        part = whole.relative_to(folder).parts[0].lower()
        for file, names in _RECORDS.items():
            if any(fnmatch(part, name) for name in names) and (folder / file).is_file():
                return f"the {file.removesuffix('.json')} in {folder}"
    return None
