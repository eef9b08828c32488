"""Features on disk: named arrays in .npz or .safetensors files."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from .._optional import require
from .._reading import check_replaceable, read_tensors
from ..data.npz import read_npz
from .inputs import check_row_labels, number_names
from .writing import from_safetensors, naming


def save_tensors(path: str | Path, tensors: dict[str, Tensor], **metadata: str) -> Path:
    """Write a safetensors file atomically: a reader sees the old file or the whole new one.

    Args:
        path: the file; missing folders are made.
        tensors: name -> tensor.
        metadata: texts that are stored with the tensors.

    Returns:
        The path.

    Raises:
        OSError: if it cannot be written, such as on a full disk.
    """
    save_file = require("safetensors.torch", extra="train").save_file
    failure = require("safetensors", extra="train").SafetensorError
    path = Path(path)
    check_replaceable(path)
    path.parent.mkdir(parents=True, exist_ok=True)
    partial = path.with_name(f".{path.name}.{os.getpid()}.partial")
    try:
        with naming(path):
            partial.touch()
            mode = partial.stat().st_mode  # as the umask says; safetensors' is the owner's only
            save_file({k: v.contiguous() for k, v in tensors.items()}, partial, metadata or None)
            partial.chmod(mode)
            with open(partial, "rb") as handle:
                os.fsync(handle.fileno())
            os.replace(partial, path)
    except failure as error:
        raise from_safetensors(error, path) from None
    finally:
        partial.unlink(missing_ok=True)
    return path


class Arrays(dict[str, Tensor]):
    """The tensors of a file by name, and beside them the arrays that are none.

    Args:
        tensors: name -> tensor.
        others: arrays of text, such as names of classes, complex numbers or dates. Default: none.
    """

    def __init__(
        self, tensors: Mapping[str, Tensor], others: Mapping[str, np.ndarray] | None = None
    ) -> None:
        super().__init__(tensors)
        self.others = dict(others or {})

    def has(self, name: str) -> bool:
        """Whether the file has an array of that name, of whatever kind.

        Args:
            name: of the array.
        """
        return name in self or name in self.others

    def texts(self, name: str) -> list[str] | None:
        """The items of an array of text; None if there is no such array.

        Args:
            name: of the array.
        """
        array = self.others.get(name)
        if array is None or array.dtype.kind not in "US":
            return None
        if array.shape not in ((array.size,), (array.size, 1)):
            raise ValueError(f"{name}: expected a text per row, (n,); got shape {array.shape}")
        if array.dtype.kind == "S":
            try:
                array = np.char.decode(array, "utf-8")
            except UnicodeDecodeError:
                raise ValueError(f"{name}: expected text in UTF-8; got other bytes") from None
        return [str(text) for text in array.reshape(-1)]


def load_features(path: str | Path) -> Arrays:
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
        return Arrays(read_tensors(path))
    if path.suffix != ".npz":
        found = path.suffix or "no ending"
        raise ValueError(f"{path}: expected .npz or .safetensors; got {found!r}")
    tensors, others = {}, {}
    for name, array in read_npz(path).items():
        if array.dtype.kind in "biuf" and array.dtype.itemsize <= 8:
            native = array.astype(array.dtype.newbyteorder("="), copy=False)
            tensors[name] = torch.from_numpy(native)
        else:
            others[name] = array
    return Arrays(tensors, others)


def pick(arrays: Arrays, name: str, path: str | Path, aliases: Sequence[str] = ()) -> Tensor:
    """One of the arrays of a file, or an error that says which there are.

    Args:
        arrays: what `load_features` gave.
        name: the array wanted.
        path: the file, for the message.
        aliases: other names under which it may stand.

    Returns:
        The array.
    """
    for key in (name, *aliases):
        if key in arrays:
            return arrays[key]
    for key in (name, *aliases):
        if texts := arrays.texts(key):
            raise ValueError(
                f"{path}: {key}: expected numbers; got text, such as {texts[0]!r}: number it"
            )
        if key in arrays.others:
            kind = arrays.others[key].dtype
            raise ValueError(f"{path}: {key}: expected real numbers of at most 64 bits; got {kind}")
    there = ", ".join(sorted([*arrays, *arrays.others])) or "nothing"
    raise ValueError(f"{path}: has no array {name!r}; it has: {there}")


def pick_optional(arrays: Arrays, name: str, path: str | Path) -> Tensor | None:
    """One of the arrays of a file, if it is there.

    Args:
        arrays: what `load_features` gave.
        name: the array.
        path: the file, for the message where it holds no numbers.

    Returns:
        The array; None if the file has none of that name.
    """
    return pick(arrays, name, path) if arrays.has(name) else None


def pick_people(arrays: Arrays, path: str | Path, *names: str) -> list[Tensor]:
    """Arrays that only say who is who: texts are numbered, the same in all of them.

    Args:
        arrays: what `load_features` gave.
        path: the file, for messages.
        names: the arrays wanted.

    Returns:
        The arrays, as numbers.
    """
    return number_names(*[arrays.texts(name) or pick(arrays, name, path) for name in names])


def pick_names(arrays: Arrays, path: str | Path) -> list[str]:
    """A name per row of the features of a file.

    Args:
        arrays: what `load_features` gave.
        path: the file, for messages.

    Returns:
        `names`, else `labels`, texts or whole numbers; else empty texts.

    Raises:
        ValueError: if they are not one per row, or numbers with a fraction.
    """
    count = len(pick(arrays, "features", path))
    for key in ("names", "labels"):
        if (texts := arrays.texts(key)) is not None:
            return texts
        if (numbers := pick_optional(arrays, key, path)) is not None:
            if numbers.shape == (count, 1):
                numbers = numbers[:, 0]
            # Names may be any number, so also those of 64 bits without a sign.
            signed = numbers.view(torch.int64) if numbers.dtype == torch.uint64 else numbers
            check_row_labels(key, signed, count)
            return [str(number) for number in numbers.tolist()]
    return [""] * count
