"""MNIST and Fashion-MNIST: idx files, plain or gzipped.

An idx file is: two zero bytes, a type code, the number of dimensions, each dimension as a
big-endian 32-bit number, then the values.
"""

from __future__ import annotations

import gzip
import math
import struct
import zlib
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from .._reading import check_regular
from ..registry import register
from .checksums import verify_files
from .dataset import ArrayDataset, Split
from .errors import damaged
from .files import find_folder
from .limits import check_claim
from .sources import SOURCES

FASHION = (
    "T-shirt/top", "Trouser", "Pullover", "Dress", "Coat",
    "Sandal", "Shirt", "Sneaker", "Bag", "Ankle boot",
)  # fmt: skip
DIGITS = tuple(str(c) for c in range(10))

_TYPES = {0x08: "u1", 0x09: "i1", 0x0B: ">i2", 0x0C: ">i4", 0x0D: ">f4", 0x0E: ">f8"}


def read_idx(path: Path | str, where: str = "the publisher of the set") -> Tensor:
    """The array of an idx file, in the machine's byte order.

    Args:
        path: the file; one that ends in `.gz` is unpacked on the way, as far as its header says and
            no further.
        where: where a fresh copy is available, for messages.

    Returns:
        The array, of the shape and type that the header gives.

    Raises:
        DamagedData: if it is no idx file, or holds more or less than its header says.
    """
    path = Path(path)
    on_disk = check_regular(path)
    packed = path.suffix == ".gz"
    try:
        with gzip.open(path) if packed else open(path, "rb") as file:
            start = file.read(4)
            if len(start) < 4 or start[:2] != b"\0\0" or start[2] not in _TYPES:
                raise damaged(path, "an idx file (00 00 type dimensions)", start.hex(" "), where)
            kind, dimensions = np.dtype(_TYPES[start[2]]), start[3]
            header = file.read(4 * dimensions)
            if len(header) < 4 * dimensions:
                expected = f"a header of {4 + 4 * dimensions} bytes"
                raise damaged(path, expected, f"{4 + len(header)} bytes", where)
            shape = struct.unpack(f">{dimensions}I", header)
            size = math.prod(shape) * kind.itemsize
            check_claim(path, size, where)
            # Packed values are never much larger than the values; gzip would look through all of
            # what follows them.
            if packed and on_disk > size + size // 64 + 4096:
                raise damaged(path, f"at most {size:,} bytes, packed", f"{on_disk:,}", where)
            content = file.read(size + 1)  # one more shows that there is more
    except (EOFError, gzip.BadGzipFile, zlib.error) as error:
        raise damaged(path, "a complete gzip file", str(error), where) from None
    if len(content) != size:
        whole = 4 + 4 * dimensions
        found = f"{whole + len(content):,}" if len(content) < size else "more"
        raise damaged(path, f"{whole + size:,} bytes for shape {shape}", found, where)
    try:
        values = np.frombuffer(content, kind).reshape(shape)
    except ValueError as error:  # more dimensions than an array may have
        raise damaged(path, "an array", str(error), where) from None
    return torch.from_numpy(values.astype(kind.newbyteorder("=")))


@register("data", "fashion-mnist")
@register("data", "mnist")
def load_idx(name: str, root: Path, verify: bool = False) -> Split:
    """MNIST or Fashion-MNIST from its four files.

    Args:
        name: "mnist" or "fashion-mnist".
        root: the data folder.
        verify: compare the files with the publisher's checksums.

    Returns:
        60,000 training and 10,000 test pictures (1, 28, 28) uint8.
    """
    source = SOURCES[name]
    stems = [
        f"{part}-{kind}" for part in ("train", "t10k") for kind in ("images-idx3", "labels-idx1")
    ]
    found = find_folder(
        root,
        source,
        [(f"{s}-ubyte.gz", f"{s}-ubyte", f"{s.replace('-idx', '.idx')}-ubyte") for s in stems],
    )
    if verify:
        verify_files(found, source)
    classes = DIGITS if name == "mnist" else FASHION
    parts = []
    for images_path, labels_path in (found[:2], found[2:]):
        images, labels = (read_idx(p, source.where) for p in (images_path, labels_path))
        if images.dim() != 3 or labels.dim() != 1 or len(images) != len(labels):
            raise damaged(
                labels_path,
                f"one label for each of the pictures {tuple(images.shape)} of {images_path.name}",
                f"labels {tuple(labels.shape)}",
                source.where,
            )
        if images.dtype != torch.uint8 or labels.dtype != torch.uint8 or _top(labels) > 9:
            raise damaged(
                labels_path,
                "pictures and labels of bytes, labels in 0..9",
                f"{images.dtype} and {labels.dtype}, labels up to {_top(labels)}",
                source.where,
            )
        parts.append(ArrayDataset(images.unsqueeze(1), labels.long(), list(classes)))
    return Split(train=parts[0], test=parts[1])


def _top(labels: Tensor) -> int:
    return int(labels.max()) if len(labels) else 0
