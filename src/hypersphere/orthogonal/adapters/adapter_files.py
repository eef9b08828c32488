"""Adapters on disk: a sealed JSON, and the safetensors file that it names.

    adapter.json                   options of every layer, hashes of the base, checksum of the rest
    adapter-1a2b3c4d.safetensors   what was trained

The tensors carry their checksum in their name and are written first; replacing the JSON, in one
operation, makes them the adapter. A process killed at any moment leaves the old one or the new one.
"""

from __future__ import annotations

import os
import zlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

from torch import Tensor

from ..._optional import require
from ..._reading import Unreadable, check_replaceable, read_sealed, read_tensors, sealed_text
from ..._version import __version__
from .adapter import Adapter, AdapterLayer

__all__ = [
    "RECORD",
    "read_adapter",
    "remove_adapter",
    "replace_file",
    "safetensors_bytes",
    "write_adapter",
]

RECORD = "adapter.json"
_FORMAT = "hypersphere adapter"
_VERSION = 1
_OPTIONS: dict[str, type] = {"method": str, "blocks": int, "share_blocks": bool}


def replace_file(path: Path, content: bytes) -> None:
    """Write a file so that a reader sees the old or the new one, never half of it.

    Args:
        path: the file; its folder must be there.
        content: what it will hold.
    """
    check_replaceable(path)
    temporary = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        with open(temporary, "wb") as file:
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
        os.replace(temporary, path)
    except BaseException:
        temporary.unlink(missing_ok=True)
        raise


def safetensors_bytes(tensors: dict[str, Tensor], metadata: dict[str, str] | None = None) -> bytes:
    """The content of a safetensors file.

    Args:
        tensors: by name.
        metadata: of the file.

    Returns:
        Its bytes.
    """
    save: Callable[..., bytes] = require("safetensors.torch", extra="transformers").save
    return save({k: v.contiguous() for k, v in tensors.items()}, metadata=metadata)


def write_adapter(adapter: Adapter, folder: Path) -> None:
    """Write an adapter, in place of the one that may be there.

    Args:
        adapter: what to write.
        folder: made if it is not there.
    """
    tensors = {
        f"layers.{path}:{key}": value
        for path, layer in adapter.layers.items()
        for key, value in layer.tensors.items()
    }
    tensors |= {f"values.{name}": value for name, value in adapter.values.items()}
    content = safetensors_bytes(tensors)
    checksum = f"{zlib.crc32(content):08x}"
    file = f"adapter-{checksum}.safetensors"
    record = {
        "format": _FORMAT,
        "version": _VERSION,
        "hypersphere": __version__,
        "task": adapter.task,
        "numbers": adapter.numbers,
        "tensors": {"file": file, "crc32": checksum},
        "layers": {path: layer.options for path, layer in adapter.layers.items()},
        "base": adapter.base,
    }
    folder.mkdir(parents=True, exist_ok=True)
    replace_file(folder / file, content)
    replace_file(folder / RECORD, sealed_text(record, indent=1).encode())
    _remove_tensors(folder, file)


def remove_adapter(folder: Path) -> None:
    """Remove an adapter, if there is one; other files stay.

    Args:
        folder: where it may be.
    """
    if (folder / RECORD).exists():
        (folder / RECORD).unlink(missing_ok=True)
        _remove_tensors(folder)


def _remove_tensors(folder: Path, keep: str = "") -> None:
    for old in folder.glob("adapter-????????.safetensors"):
        if old.name != keep:
            old.unlink(missing_ok=True)


def read_adapter(folder: Path) -> Adapter:
    """Read an adapter, and refuse one that is damaged.

    Args:
        folder: what :func:`write_adapter` has written.

    Returns:
        The adapter.

    Raises:
        FileNotFoundError: if there is none.
        Unreadable: if a file is damaged, or of another format.
    """
    path = folder / RECORD
    record = read_sealed(path)
    if record.get("format") != _FORMAT or record.get("version") != _VERSION:
        raise Unreadable(
            f"{path} is no adapter that this version reads: expected format {_FORMAT!r}, version "
            f"{_VERSION}; got {record.get('format')!r}, version {record.get('version')!r}"
        )
    layers = {name: AdapterLayer(o, {}) for name, o in _entry(path, record, "layers", dict).items()}
    for name, layer in layers.items():
        _check_options(path, name, layer.options)
    source = _entry(path, record, "tensors", dict)
    file = folder / Path(str(source.get("file"))).name  # never outside of the folder
    values = {}
    for key, tensor in _checked_tensors(file, str(source.get("crc32"))).items():
        kind, _, rest = key.partition(".")
        name, _, part = rest.rpartition(":")
        if kind == "values":
            values[rest] = tensor
        elif kind == "layers" and name in layers:
            layers[name].tensors[part] = tensor
        else:
            raise Unreadable(f"{file} holds {key!r}, of which {path} knows nothing")
    base = record.get("base")
    if base is not None and not isinstance(base, dict):
        raise Unreadable(f"{path} is damaged: 'base' should be an object or null")
    return Adapter(layers, values, base, str(record.get("task")))


def _entry(path: Path, record: dict[str, Any], name: str, kind: type) -> Any:
    if not isinstance(record.get(name), kind):
        raise Unreadable(f"{path} is damaged: {name!r} should be of type {kind.__name__}")
    return record[name]


def _check_options(path: Path, name: str, options: object) -> None:
    if not isinstance(options, dict):
        raise Unreadable(f"{path} is damaged: the layer {name!r} has no options")
    for option, kind in _OPTIONS.items():
        if not isinstance(options.get(option), kind):
            raise Unreadable(f"{path} is damaged: {option!r} of {name!r} is no {kind.__name__}")


def _checked_tensors(file: Path, checksum: str) -> dict[str, Tensor]:
    tensors = read_tensors(file)
    value = 0
    with open(file, "rb") as stream:
        while block := stream.read(1 << 22):
            value = zlib.crc32(block, value)
    if f"{value:08x}" != checksum:
        raise Unreadable(
            f"{file} is damaged or was changed after it was written: its checksum differs from the "
            f"recorded one"
        )
    return tensors
