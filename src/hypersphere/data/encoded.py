"""Pictures as encoded bytes (JPEG, PNG) by their number, decoded when a batch asks for them."""

from __future__ import annotations

import io
import os
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace

import numpy as np
import torch
from torch import Tensor

from .._optional import require
from .errors import DamagedData
from .image_files import Size, to_pixels
from .labeled import Labeled
from .unreadable import UnreadablePictures, read_or_replace

__all__ = ["EncodedPictures", "decode_picture"]


def decode_picture(content: bytes, size: Size, mode: str, name: str) -> np.ndarray:
    """One picture from its bytes.

    Args:
        content: a JPEG, PNG or other file that Pillow reads.
        size: (height, width) or the side of a square. Default: as it is.
        mode: "L" or "RGB".
        name: what a message calls it.

    Returns:
        (C, H, W) uint8.

    Raises:
        DamagedData: if it is no picture.
    """
    Image = require("PIL.Image", extra="data")
    try:
        with Image.open(io.BytesIO(content)) as picture:
            return to_pixels(picture, size, mode)
    except (OSError, ValueError, SyntaxError, Image.DecompressionBombError) as error:
        raise DamagedData(f"{name} is no picture that can be read: {error}") from None


@dataclass(frozen=True)
class EncodedPictures(Labeled):
    """A data set of encoded pictures that `read(number)` gives, with all that loaders need.

    Args:
        read: number of a picture -> its bytes; called by several threads.
        rows: (N,) the number of each sample's picture.
        labels: (N,) int64, an index into `classes`.
        classes: names of the classes.
        size: (height, width) or the side of a square. Default: as they are, all of one size.
        mode: "L" or "RGB".
        source: where they come from, for messages.
        unreadable: receives the pictures that cannot be read, and whose place others of their class
            take. Default: they are an error.
    """

    read: Callable[[int], bytes]
    rows: Tensor
    labels: Tensor
    classes: Sequence[str]
    size: Size = None
    mode: str = "RGB"
    source: str = ""
    unreadable: UnreadablePictures | None = None

    def __repr__(self) -> str:
        return f"EncodedPictures({len(self):,} of {self.source}, {len(self.classes):,} classes)"

    def __len__(self) -> int:
        return len(self.rows)

    @property
    def shape(self) -> torch.Size:
        """Shape of one sample, (C, H, W); decodes the first picture."""
        return torch.Size(self._picture(0).shape)

    def subset(self, index: Tensor) -> EncodedPictures:
        """Some of the samples, with the same classes.

        Args:
            index: (B,) int64.

        Returns:
            A data set of these samples.
        """
        return replace(self, rows=self.rows[index], labels=self.labels[index])

    def take(self, index: Tensor) -> Tensor:
        """Samples by their index, decoded.

        Args:
            index: (B,) int64.

        Returns:
            (B, C, H, W) uint8.
        """
        with ThreadPoolExecutor(min(8, os.cpu_count() or 1)) as pool:
            pictures = list(pool.map(self._picture, index.tolist()))
        shapes = {picture.shape for picture in pictures}
        if len(shapes) > 1:
            raise ValueError(
                f"{self.source} has pictures of {' and '.join(map(str, sorted(shapes)[:2]))}: give "
                "size=(H, W) to bring all to one size (--data.options.size '[H, W]')"
            )
        return torch.from_numpy(np.stack(pictures))

    def _picture(self, place: int) -> np.ndarray:
        return read_or_replace(place, self.labels, self._decode, self._name, self.unreadable)

    def _decode(self, place: int) -> np.ndarray:
        content = self.read(int(self.rows[place]))
        return decode_picture(content, self.size, self.mode, self._name(place))

    def _name(self, place: int) -> str:
        return f"{self.source}, picture {int(self.rows[place])}"
