"""Galleries on disk: gallery.json beside a safetensors file that it names.

The features go to a file named after their content; then gallery.json is replaced in one step. A
crash at any moment leaves the old gallery or the new one, never a mixture.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from torch import Tensor

from ..._optional import require
from ..features import data_hash, save_tensors

FORMAT = 1
KEYS = {"format", "model", "flips", "threshold", "features", "names"}


class GalleryError(ValueError):
    """A gallery that does not fit: another model or dimension, a damaged file, an unknown name."""


def write_gallery(
    folder: str | Path,
    features: Tensor,
    names: Sequence[str],
    model: str,
    settings: dict[str, Any],
) -> Path:
    """Replace what the folder holds by these features (n, d) and names (n)."""
    folder = Path(folder)
    folder.mkdir(parents=True, exist_ok=True)
    before = _named_file(folder)
    file = f"features-{data_hash(features)}.safetensors"
    save_tensors(folder / file, {"features": features.clone()})
    record = {"format": FORMAT, "model": model, **settings, "features": file, "names": list(names)}
    partial = folder / f".gallery.json.{os.getpid()}.partial"
    with open(partial, "w") as handle:
        json.dump(record, handle)
        handle.flush()
        os.fsync(handle.fileno())
    os.replace(partial, folder / "gallery.json")
    if before and before != file:
        (folder / before).unlink(missing_ok=True)
    return folder


def read_gallery(folder: str | Path) -> tuple[Tensor, list[str], str, dict[str, Any]]:
    """(features, names, model, settings) of a folder."""
    folder = Path(folder)
    record = _record(folder)
    path = folder / record["features"]
    if not path.is_file():
        raise GalleryError(f"{folder}: {record['features']} is missing")
    try:
        features = require("safetensors.torch", extra="train").load_file(path)["features"]
    except (ModuleNotFoundError, MemoryError):
        raise
    except Exception as error:  # the library has error types of its own
        raise GalleryError(f"{path}: damaged ({error})") from None
    names = record["names"]
    if features.ndim != 2 or len(features) != len(names):
        raise GalleryError(f"{folder}: {len(names)} names but features {tuple(features.shape)}")
    settings = {"flips": record["flips"], "threshold": record["threshold"]}
    return features, [str(name) for name in names], str(record["model"]), settings


@contextmanager
def locked(folder: str | Path) -> Iterator[None]:
    """Keep others from changing the gallery while this one loads, adds and saves."""
    folder = Path(folder)
    folder.mkdir(parents=True, exist_ok=True)
    try:
        import fcntl
    except ModuleNotFoundError:  # not on this system: the files stay whole, the last one wins
        yield
        return
    with open(folder / ".lock", "w") as handle:
        fcntl.flock(handle, fcntl.LOCK_EX)
        yield


def _named_file(folder: Path) -> str | None:
    try:
        return str(_record(folder)["features"])
    except (OSError, ValueError):
        return None


def _record(folder: Path) -> dict[str, Any]:
    path = folder / "gallery.json"
    if not path.is_file():
        raise FileNotFoundError(f"no gallery at {folder} (no gallery.json in it)")
    try:
        record = json.loads(path.read_text())
        missing = KEYS - set(record)
    except (json.JSONDecodeError, TypeError, UnicodeDecodeError) as error:
        raise GalleryError(f"{path}: not a gallery ({error})") from None
    if missing:
        raise GalleryError(f"{path}: not a gallery; it lacks {', '.join(sorted(missing))}")
    if record["format"] > FORMAT:
        raise GalleryError(
            f"{path}: written in format {record['format']}, this version reads up to {FORMAT}"
        )
    return record  # type: ignore[no-any-return]
