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

from .checksums import verify_files
from .dataset import ArrayDataset, Split
from .errors import damaged
from .files import find_folder
from .sources import SOURCES

FASHION = (
    "T-shirt/top", "Trouser", "Pullover", "Dress", "Coat",
    "Sandal", "Shirt", "Sneaker", "Bag", "Ankle boot",
)  # fmt: skip
DIGITS = tuple(str(c) for c in range(10))

_TYPES = {0x08: "u1", 0x09: "i1", 0x0B: ">i2", 0x0C: ">i4", 0x0D: ">f4", 0x0E: ">f8"}


def read_idx(path: Path | str, where: str = "the publisher of the set") -> Tensor:
    """The array of an idx file (`.gz` is unpacked on the way), in the machine's byte order."""
    path = Path(path)
    try:
        content = gzip.decompress(path.read_bytes()) if path.suffix == ".gz" else path.read_bytes()
    except (EOFError, OSError, zlib.error) as error:
        if isinstance(error, FileNotFoundError):
            raise
        raise damaged(path, "a complete gzip file", str(error), where) from None
    if len(content) < 4 or content[:2] != b"\0\0" or content[2] not in _TYPES:
        raise damaged(path, "an idx file (00 00 type dimensions)", content[:4].hex(" "), where)
    kind, dimensions = np.dtype(_TYPES[content[2]]), content[3]
    start = 4 + 4 * dimensions
    if len(content) < start:
        raise damaged(path, f"a header of {start} bytes", f"{len(content)} bytes", where)
    shape = struct.unpack(f">{dimensions}I", content[4:start])
    expected = start + math.prod(shape) * kind.itemsize
    if len(content) != expected:
        raise damaged(path, f"{expected:,} bytes for shape {shape}", f"{len(content):,}", where)
    values = np.frombuffer(content, kind, offset=start).reshape(shape)
    return torch.from_numpy(values.astype(kind.newbyteorder("=")))


def load_idx(name: str, root: Path, verify: bool = False) -> Split:
    """MNIST ("mnist") or Fashion-MNIST ("fashion-mnist") from its four files below `root`."""
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
        parts.append(ArrayDataset(images.unsqueeze(1), labels.long(), list(classes)))
    return Split(train=parts[0], test=parts[1])
