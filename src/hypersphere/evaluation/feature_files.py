"""Features on disk: named arrays in .npz or .safetensors files."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path

import torch
from torch import Tensor

from .._optional import require
from .._reading import check_replaceable, read_tensors
from ..data.npz import read_npz


def save_tensors(path: str | Path, tensors: dict[str, Tensor], **metadata: str) -> Path:
    """Write a safetensors file atomically: a reader sees the old file or the whole new one.

    Args:
        path: the file; missing folders are made.
        tensors: name -> tensor.
        metadata: texts that are stored with the tensors.

    Returns:
        The path.
    """
    save_file = require("safetensors.torch", extra="train").save_file
    path = Path(path)
    check_replaceable(path)
    path.parent.mkdir(parents=True, exist_ok=True)
    partial = path.with_name(f".{path.name}.{os.getpid()}.partial")
    try:
        partial.touch()
        mode = partial.stat().st_mode  # as the umask says; safetensors writes for the owner only
        save_file({k: v.contiguous() for k, v in tensors.items()}, partial, metadata or None)
        partial.chmod(mode)
        with open(partial, "rb") as handle:
            os.fsync(handle.fileno())
        os.replace(partial, path)
    finally:
        partial.unlink(missing_ok=True)
    return path


def load_features(path: str | Path) -> dict[str, Tensor]:
    """Read the named arrays of a .npz or .safetensors file, such as features and labels.

    Args:
        path: the file.

    Returns:
        name -> tensor; arrays of text are left out.
    """
    path = Path(path)
    if not path.is_file():
        raise FileNotFoundError(f"no features at {path}")
    if path.suffix == ".safetensors":
        return read_tensors(path)
    if path.suffix == ".npz":
        # Names of classes may lie beside the numbers.
        return {
            name: torch.from_numpy(array.astype(array.dtype.newbyteorder("="), copy=False))
            for name, array in read_npz(path).items()
            if array.dtype.kind in "biuf" and array.dtype.itemsize <= 8
        }
    raise ValueError(f"{path}: expected .npz or .safetensors; got {path.suffix or 'no ending'!r}")


def load_names(path: str | Path) -> list[str]:
    """A name per row of a file of features.

    Args:
        path: a .npz or .safetensors file.

    Returns:
        `names` (text, .npz only), else `labels` as text, else empty texts.
    """
    if Path(path).suffix == ".npz":
        arrays = read_npz(path)
        if "names" in arrays:
            return [str(name) for name in arrays["names"].reshape(-1)]
    tensors = load_features(path)
    if "labels" in tensors:
        return [str(label) for label in tensors["labels"].tolist()]
    return [""] * len(pick(tensors, "features", path))


def pick(
    tensors: dict[str, Tensor], name: str, path: str | Path, aliases: Sequence[str] = ()
) -> Tensor:
    """One of the arrays of a file, or an error that says which there are.

    Args:
        tensors: what `load_features` gave.
        name: the array wanted.
        path: the file, for the message.
        aliases: other names under which it may stand.

    Returns:
        The array.
    """
    for key in (name, *aliases):
        if key in tensors:
            return tensors[key]
    raise ValueError(f"{path}: has no array {name!r}; it has: {', '.join(sorted(tensors))}")
