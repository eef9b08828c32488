"""Named arrays in a .npz file, without pickles and without trust in its headers."""

from __future__ import annotations

import math
import zipfile
import zlib
from pathlib import Path

import numpy as np

from .errors import damaged
from .limits import check_claim

__all__ = ["read_npz"]

_DAMAGE = (zipfile.BadZipFile, zlib.error, EOFError, ValueError, OSError, NotImplementedError)


def read_npz(path: Path | str, where: str = "whoever wrote it") -> dict[str, np.ndarray]:
    """All arrays of a .npz file.

    Args:
        path: the file, as ``numpy.savez`` or ``numpy.savez_compressed`` writes it.
        where: where a fresh copy is available, for messages.

    Returns:
        The arrays by name.

    Raises:
        DamagedData: if it is no such file, is cut off, claims more than it holds, or has an array
            of Python objects.
    """
    path = Path(path)
    if not path.is_file():
        raise FileNotFoundError(f"no file of arrays at {path}")
    try:
        with zipfile.ZipFile(path) as archive:
            members = [item for item in archive.infolist() if item.filename.endswith(".npy")]
            check_claim(path, sum(item.file_size for item in members), where)
            return {
                item.filename.removesuffix(".npy"): _array(archive, item, path, where)
                for item in members
            }
    except (*_DAMAGE, KeyError, RuntimeError) as error:  # RuntimeError: an encrypted archive
        if type(error).__module__.startswith("hypersphere"):
            raise
        raise damaged(path, "a .npz file of arrays", _reason(error), where) from None


def _array(archive: zipfile.ZipFile, item: zipfile.ZipInfo, path: Path, where: str) -> np.ndarray:
    with archive.open(item) as file:
        version = np.lib.format.read_magic(file)
        read_header = (
            np.lib.format.read_array_header_1_0
            if version == (1, 0)
            else np.lib.format.read_array_header_2_0
        )
        shape, _, kind = read_header(file)
        needed = math.prod(shape) * kind.itemsize
        # See Note [Claims of a file]: numpy would allocate what the header says.
        if kind.hasobject or min(shape, default=0) < 0 or needed > item.file_size:
            raise damaged(
                path,
                f"{item.filename} of numbers in {item.file_size:,} bytes",
                f"shape {shape} of {kind}",
                where,
            )
    with archive.open(item) as file:
        array: np.ndarray = np.lib.format.read_array(file, allow_pickle=False)
    return array


def _reason(error: Exception) -> str:
    text = f"{type(error).__name__}: {error}"
    return type(error).__name__ if " object at 0x" in text else text
