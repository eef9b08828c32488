"""Samples of WebDataset shards: grouped by `webdataset`, decoded here."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np

from .._optional import require
from .encoded import decode_picture
from .errors import DamagedData
from .image_files import Size

__all__ = ["PICTURES", "decode_sample", "raw_samples", "read_label", "sample_name"]

PICTURES = ("jpg", "jpeg", "png", "webp", "ppm")


def raw_samples(files: Sequence[str]) -> Iterator[dict[str, Any]]:
    """Samples of tar files as `webdataset` groups them: a dictionary of bytes by ending.

    Args:
        files: local paths.

    Returns:
        An iterator; a file is closed when the next begins.
    """
    tars = require("webdataset.tariterators", extra="shards")

    def streams() -> Iterator[dict[str, Any]]:
        for file in files:  # opened here: the library's own opener leaves files to the collector
            with open(file, "rb") as stream:
                yield {"url": file, "stream": stream}

    yield from tars.group_by_keys(tars.tar_file_expander(streams()))


def decode_sample(sample: dict[str, Any], size: Size, mode: str) -> tuple[np.ndarray, int]:
    """Picture and label of a sample.

    Args:
        sample: bytes by ending.
        size: (height, width) or the side of a square. Default: as it is.
        mode: "RGB" or "L".

    Returns:
        (C, H, W) uint8, and the label.
    """
    name = sample_name(sample)
    content = next((sample[ending] for ending in PICTURES if ending in sample), None)
    if content is None:
        raise DamagedData(f"{name} has no picture ({', '.join(PICTURES)})")
    return decode_picture(content, size, mode, name), read_label(sample.get("cls"), name)


def sample_name(sample: dict[str, Any]) -> str:
    """What a message calls a sample.

    Args:
        sample: bytes by ending.

    Returns:
        Its file and its key.
    """
    return f"{sample.get('__url__')}, sample {sample.get('__key__')}"


def read_label(content: bytes | None, name: str) -> int:
    """The number in a .cls entry.

    Args:
        content: its bytes.
        name: what a message calls the sample.

    Returns:
        The label.
    """
    try:
        return int((content or b"").decode("ascii"))
    except (ValueError, UnicodeDecodeError):
        raise DamagedData(f"{name}: expected a class number in .cls; got {content!r:.40}") from None
