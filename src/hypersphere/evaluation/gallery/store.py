"""Galleries on disk: gallery.json beside a safetensors file that it names.

The features go to a file named after their content; then gallery.json is replaced in one step. A
crash at any moment leaves the old gallery or the new one, never a mixture.

# Note [Readers beside a writer]
A reader takes gallery.json, then opens the features that it names. A writer may replace both in
between and remove the old features; the reader then finds no such file, sees that gallery.json
has changed, and begins again. Once it has opened a file, removing that file does not disturb it.

A gallery folder may come from an untrusted source: the features are a plain file of the folder,
every value has the type it should have, and the features and names match their checksums.
"""

from __future__ import annotations

import errno
import hashlib
import json
import math
import os
import re
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor

from ..._reading import Unreadable, read_json, read_tensors
from ..feature_files import save_tensors
from ..fingerprints import data_hash
from ..inputs import check_finite
from ..writing import naming
from .decision import Decision
from .gallery_error import GalleryError

FORMAT = 1
KEYS = {"format", "model", "flips", "threshold", "features", "names"}
FLIPS = ("unused", "concatenate")
FILE_NAME = re.compile(r"features-[0-9a-f]{16}\.safetensors")
NEW = ".new"  # a file that is there until the first gallery.json is: see `clear_unfinished`
ATTEMPTS = 100  # of a reader that is overtaken by writers

_held = threading.local()  # the folders that this thread has locked


class Stored(NamedTuple):
    """What a gallery folder holds.

    Args:
        features: (n, d) float32.
        names: the name of each row.
        model: the fingerprint of the model that made the features.
        settings: flips, aligned (None if unknown) and decision (the thresholds).
        state: changes whenever the folder is written with other content.
    """

    features: Tensor
    names: list[str]
    model: str
    settings: dict[str, Any]
    state: str


def write_gallery(
    folder: str | Path,
    features: Tensor,
    names: Sequence[str],
    model: str,
    settings: dict[str, Any],
) -> str:
    """Replace what the folder holds.

    Args:
        folder: made if it is missing.
        features: (n, d).
        names: the name of each row.
        model: the fingerprint of the model that made the features.
        settings: flips, aligned and threshold.

    Returns:
        The new state of the folder, as in `Stored`.

    Raises:
        ValueError: if a feature is NaN or infinite: what could not be read is not written.
    """
    check_finite("features", features)
    folder = Path(folder)
    with locked(folder):
        if not os.path.lexists(folder / "gallery.json"):
            (folder / NEW).touch()
        file = f"features-{data_hash(features)}.safetensors"
        save_tensors(folder / file, {"features": features.clone()})
        record = {
            "format": FORMAT,
            "model": model,
            **settings,
            "decision_hash": _decision_hash(settings),
            "features": file,
            "names_hash": _names_hash(names),
            "names": list(names),
        }
        partial = folder / f".gallery.json.{os.getpid()}.partial"
        try:
            with naming(folder / "gallery.json"), open(partial, "w", encoding="utf-8") as handle:
                json.dump(record, handle, allow_nan=False)
                handle.flush()
                os.fsync(handle.fileno())
            os.replace(partial, folder / "gallery.json")
        finally:
            partial.unlink(missing_ok=True)
        _remove(folder / NEW)
        # Note [Readers beside a writer]: whoever still wants an old file will read again.
        for old in folder.glob("features-*.safetensors"):
            if old.name != file and FILE_NAME.fullmatch(old.name):
                _remove(old)
    return _state(record)


def read_gallery(folder: str | Path) -> Stored:
    """Read and check a gallery folder.

    Args:
        folder: with gallery.json in it.

    Returns:
        What it holds.

    Raises:
        FileNotFoundError: if there is no gallery.
        GalleryError: if a file is missing or damaged, or does not match its checksum.
    """
    folder = Path(folder)
    record = _read_record(folder)
    for _ in range(ATTEMPTS):
        path = folder / record["features"]
        try:
            features = _read_features(path)
            break
        except FileNotFoundError:
            seen, record = record, _read_record(folder)
            # The same record and still no file: nobody is at work here.
            if record == seen and not path.is_file():
                raise GalleryError(f"{folder}: {record['features']} is missing") from None
    else:
        raise GalleryError(f"{folder}: it is being rewritten all the time; try again")
    names = record["names"]
    if features.ndim != 2 or len(features) != len(names):
        raise GalleryError(f"{folder}: {len(names)} names but features {tuple(features.shape)}")
    if features.dtype != torch.float32 or not bool(features.isfinite().all()):
        raise GalleryError(f"{path}: damaged (expected finite float32 features)")
    if path.name != f"features-{data_hash(features)}.safetensors":
        raise GalleryError(f"{path}: damaged (the features do not match their checksum)")
    if record.get("names_hash", _names_hash(names)) != _names_hash(names):
        raise GalleryError(f"{folder}: damaged (the names do not match their checksum)")
    try:
        decision = Decision.from_record(record["threshold"], record.get("calibration"))
    except ValueError as error:
        raise GalleryError(f"{folder / 'gallery.json'}: not a gallery ({error})") from None
    if record.get("decision_hash", _decision_hash(record)) != _decision_hash(record):
        raise GalleryError(f"{folder}: damaged (the threshold does not match its checksum)")
    aligned = record.get("aligned")  # older galleries do not say
    settings = {"flips": record["flips"], "aligned": aligned, "decision": decision}
    return Stored(features, names, record["model"], settings, _state(record))


def clear_unfinished(folder: str | Path) -> None:
    """Remove what a process left that was ended while it wrote the first gallery of a folder.

    Args:
        folder: a gallery folder without a gallery.json; locked.

    Raises:
        GalleryError: if there are features that nobody left so: their gallery.json was lost.
    """
    folder = Path(folder)
    left = [p for p in folder.glob("features-*.safetensors") if FILE_NAME.fullmatch(p.name)]
    if left and not (folder / NEW).exists():
        raise GalleryError(
            f"{folder} has features ({left[0].name}) but no gallery.json, which names whose they "
            f"are: restore it, or choose another folder"
        )
    for path in left:
        _remove(path)


def gallery_state(folder: str | Path) -> str | None:
    """The state of a folder, as in `Stored`, without reading its features.

    Args:
        folder: a gallery folder.

    Returns:
        The state; None if there is no readable gallery.
    """
    try:
        return _state(_read_record(Path(folder)))
    except (OSError, GalleryError):
        return None


@contextmanager
def locked(folder: str | Path) -> Iterator[None]:
    """Keep others from changing a gallery while this one loads, adds and saves.

    A thread that holds the lock may take it again.

    Args:
        folder: made if it is missing.
    """
    folder = Path(folder)
    folder.mkdir(parents=True, exist_ok=True)
    held: set[Path] = _held.__dict__.setdefault("folders", set())
    key = folder.resolve()
    if key in held:
        yield
        return
    handle = _lock(folder)
    held.add(key)
    try:
        yield
    finally:
        held.discard(key)
        if handle is not None:
            os.close(handle)  # which gives the lock back


def _lock(folder: Path) -> int | None:
    try:
        import fcntl
    except ModuleNotFoundError:  # not on this system: the files stay whole, the last writer wins
        return None
    handle = os.open(folder, os.O_RDONLY)
    try:
        fcntl.flock(handle, fcntl.LOCK_EX)
        return handle
    except OSError as error:
        os.close(handle)
        if error.errno not in (errno.EBADF, errno.EINVAL, errno.ENOTSUP):
            raise
    # A network file system that locks files only.
    handle = os.open(folder / ".lock", os.O_RDWR | os.O_CREAT, 0o666)
    fcntl.flock(handle, fcntl.LOCK_EX)
    return handle


def _remove(path: Path) -> None:
    # Open elsewhere, on a system that then refuses: the next writer tries again.
    with suppress(OSError):
        path.unlink(missing_ok=True)


def _names_hash(names: Sequence[str]) -> str:
    return hashlib.sha256(json.dumps(list(names)).encode()).hexdigest()[:16]


def _state(record: dict[str, Any]) -> str:
    return f"{record['features']}:{_names_hash(record['names'])}:{_decision_hash(record)}"


def _decision_hash(record: dict[str, Any]) -> str:
    decision = json.dumps([record["threshold"], record.get("calibration")], sort_keys=True)
    return hashlib.sha256(decision.encode()).hexdigest()[:16]


def _read_features(path: Path) -> Tensor:
    try:
        return read_tensors(path)["features"]
    except Unreadable as error:
        raise GalleryError(str(error)) from None
    except KeyError:
        raise GalleryError(f"{path}: damaged (it has no features)") from None


def _read_record(folder: Path) -> dict[str, Any]:
    """gallery.json, every value of the type it should have."""
    path = folder / "gallery.json"
    if not path.is_file():
        raise FileNotFoundError(f"no gallery at {folder} (no gallery.json in it)")
    try:
        record = read_json(path)
    except Unreadable as error:
        raise GalleryError(f"{path}: not a gallery ({error})") from None
    if not isinstance(record, dict):
        raise GalleryError(f"{path}: not a gallery (a {type(record).__name__}, not an object)")
    if missing := KEYS - set(record):
        raise GalleryError(f"{path}: not a gallery; it lacks {', '.join(sorted(missing))}")
    if isinstance(record["format"], int) and record["format"] > FORMAT:
        raise GalleryError(
            f"{path}: written in format {record['format']}, this version reads up to {FORMAT}"
        )
    for key, (fits, expected) in RULES.items():
        if not fits(record.get(key)):
            shown = repr(record.get(key))
            shown = shown if len(shown) <= 60 else shown[:60] + "..."
            raise GalleryError(f"{path}: not a gallery; {key}: expected {expected}, got {shown}")
    return record


def _is_number(value: Any) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool) and math.isfinite(value)


# key -> whether a value fits, and what a message says that it should be
RULES: dict[str, tuple[Any, str]] = {
    "format": (lambda v: isinstance(v, int) and not isinstance(v, bool), "a whole number"),
    "model": (lambda v: isinstance(v, str), "a text"),
    "flips": (lambda v: v in FLIPS, f"one of {', '.join(FLIPS)}"),
    "aligned": (lambda v: v is None or isinstance(v, bool), "true, false or null"),
    "threshold": (lambda v: v is None or _is_number(v), "a finite number or null"),
    "features": (
        lambda v: isinstance(v, str) and FILE_NAME.fullmatch(v) is not None,
        "features-<16 hex digits>.safetensors in the same folder",
    ),
    "names": (
        lambda v: isinstance(v, list) and all(isinstance(n, str) and n.strip() for n in v),
        "a list of names",
    ),
}
