"""Tiny files in the true formats, for the tests of the readers."""

from __future__ import annotations

import struct
from pathlib import Path

import numpy as np

IDX_CODES = {"u1": 0x08, "i1": 0x09, ">i2": 0x0B, ">i4": 0x0C, ">f4": 0x0D, ">f8": 0x0E}


def idx_bytes(array: np.ndarray, code: str = "u1") -> bytes:
    """An idx file: 00 00 type dimensions, sizes, values; all big-endian."""
    head = bytes([0, 0, IDX_CODES[code], array.ndim])
    head += struct.pack(f">{array.ndim}I", *array.shape)
    return head + array.astype(code).tobytes()


def save_picture(path: Path, shape: tuple[int, ...] = (5, 4, 3), seed: int = 0) -> np.ndarray:
    """A random picture (H, W, 3) or (H, W) in the format of the file's extension."""
    from PIL import Image

    path.parent.mkdir(parents=True, exist_ok=True)
    pixels = np.random.default_rng(seed).integers(0, 256, shape, np.uint8)
    Image.fromarray(pixels).save(path)
    return pixels
