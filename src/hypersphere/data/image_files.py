"""Decoding pictures with Pillow, many at a time, into memory or on demand."""

from __future__ import annotations

import os
import struct
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from .._optional import require
from .._reading import check_regular
from .dataset import ArrayDataset, Dataset
from .errors import DamagedData, damaged, missing
from .labeled import Labeled
from .limits import check_claim
from .unreadable import UnreadablePictures, read_or_replace

EXTENSIONS = (".jpg", ".jpeg", ".png", ".bmp", ".ppm", ".pgm", ".tif", ".tiff", ".webp")
ALIGNMENT = "alignment.json"  # beside the class folders: how `hypersphere align` made the pictures
ORIENTATION = 0x0112  # the EXIF entry
Size = int | tuple[int, int] | None


def read_image(path: Path | str, size: Size = None, mode: str | None = None) -> np.ndarray:
    """One picture, upright as its EXIF orientation says.

    Args:
        path: the file.
        size: bring the pictures to (height, width), or a square of this side, bilinear. Default: as
            in the files.
        mode: "L" (gray) or "RGB". Default: gray pictures stay gray, all others become RGB.

    Returns:
        (C, H, W) uint8.

    Raises:
        MissingData: if there is no such file.
        DamagedData: if it is no picture of 8 bits per channel.
    """
    Image = require("PIL.Image", extra="data")
    try:
        check_regular(path)
        with Image.open(path) as picture:
            claimed = picture.width * picture.height * len(picture.getbands())
            check_claim(Path(path), claimed)
            return to_pixels(picture, size, mode)
    except DamagedData:
        raise
    except FileNotFoundError:
        raise missing("the picture", Path(path), "the set it belongs to") from None
    # What Pillow raises for broken files, and for pictures that claim to be huge.
    except (OSError, ValueError, SyntaxError, Image.DecompressionBombError) as error:
        raise damaged(Path(path), "a picture", _reason(error)) from None


def _reason(error: Exception) -> str:
    """Pillow's words; those for a file of no known format only repeat its path."""
    text = str(error)
    return "no format that Pillow knows" if text.startswith("cannot identify image") else text


def to_pixels(picture: Any, size: Size = None, mode: str | None = None) -> np.ndarray:
    """The pixels of an open picture, upright as its EXIF orientation says.

    Args:
        picture: of Pillow.
        size: (height, width) or the side of a square, bilinear. Default: as it is.
        mode: "L" or "RGB". Default: gray pictures stay gray, all others become RGB.

    Returns:
        (C, H, W) uint8.
    """
    Image = require("PIL.Image", extra="data")
    if picture.mode[0] in "IF":  # 16 or 32 bits: converting would cut the values off
        raise ValueError(f"{picture.mode} pixels, not 8 bits per channel")
    picture = _upright(picture)
    if mode is None:
        mode = "L" if picture.mode in ("1", "L") else "RGB"
    if picture.mode != mode:
        picture = picture.convert(mode)
    if size is not None:
        height, width = (size, size) if isinstance(size, int) else size
        picture = picture.resize((width, height), Image.Resampling.BILINEAR)
    array = np.asarray(picture)
    return array[None] if array.ndim == 2 else array.transpose(2, 0, 1)


def _upright(picture: Any) -> Any:
    """Turned and mirrored as its EXIF says: cameras store pictures as the sensor lies."""
    try:
        if picture.getexif().get(ORIENTATION, 1) == 1:
            return picture
        return require("PIL.ImageOps", extra="data").exif_transpose(picture)
    except (KeyError, TypeError, struct.error):  # EXIF that is damaged; the pixels may be whole
        return picture


def read_images(paths: Sequence[str], size: Size = None, mode: str | None = None) -> Tensor:
    """Many pictures, decoded by as many threads as there are cores.

    Args:
        paths: the files.
        size: bring the pictures to (height, width), or a square of this side, bilinear. Default: as
            in the files, which then have to agree.
        mode: "L" (gray) or "RGB". Default: the first picture decides.

    Returns:
        (N, C, H, W) uint8.
    """
    images, _ = _decode(paths, size, mode, None)
    return images


def read_readable(
    paths: Sequence[str], size: Size, mode: str | None, unreadable: UnreadablePictures
) -> tuple[Tensor, list[int]]:
    """Many pictures without those that cannot be read.

    Args:
        paths: the files.
        size: as for `read_images`.
        mode: as for `read_images`.
        unreadable: receives the others.

    Returns:
        (N, C, H, W) uint8, and the places in `paths` they come from.
    """
    unreadable.total += len(paths)
    return _decode(paths, size, mode, unreadable)


def _none_readable(paths: Sequence[str], unreadable: UnreadablePictures | None) -> DamagedData:
    why = unreadable.reasons.get(paths[0], "") if unreadable else ""
    such = f"none of {len(paths)} pictures can be read, such as {paths[0]}"
    return DamagedData(f"{such} ({why})" if why else such)


def _decode(
    paths: Sequence[str], size: Size, mode: str | None, unreadable: UnreadablePictures | None
) -> tuple[Tensor, list[int]]:
    if not paths:
        raise ValueError("no pictures to read")

    def read(path: str) -> np.ndarray | None:
        try:
            return read_image(path, size, mode)
        except DamagedData as error:
            if unreadable is None:
                raise
            unreadable.add(path, str(error))
            return None

    found = ((i, read(path)) for i, path in enumerate(paths))
    start, first = next(((i, p) for i, p in found if p is not None), (0, None))
    if first is None:
        raise _none_readable(paths, unreadable)
    if mode is None:
        mode = "L" if len(first) == 1 else "RGB"
    shape = first.shape
    images = np.empty((len(paths), *shape), np.uint8)
    whole = np.ones(len(paths), bool)
    whole[:start] = False

    def fill(part: range) -> None:
        for i in part:
            picture = read(paths[i])
            if picture is None:
                whole[i] = False
                continue
            if picture.shape != shape:
                raise ValueError(
                    f"{paths[i]} is {picture.shape[1]}x{picture.shape[2]}, {paths[start]} is "
                    f"{shape[1]}x{shape[2]}: give size=(H, W) to bring all to one size "
                    f"(on the command line --data.options.size '[H, W]')"
                )
            images[i] = picture

    # Whole slices per task: a task per picture would cost as much as decoding a small one.
    parts = [range(i, min(i + 64, len(paths))) for i in range(start, len(paths), 64)]
    with ThreadPoolExecutor(min(8, os.cpu_count() or 1)) as pool:
        for _ in pool.map(fill, parts):
            pass
    if whole.all():
        return torch.from_numpy(images), list(range(len(paths)))
    kept = whole.nonzero()[0]
    return torch.from_numpy(images[kept]), kept.tolist()


def check_headers(paths: Sequence[str], unreadable: UnreadablePictures) -> list[int]:
    """Open every picture without decoding it, for sets that are decoded on demand.

    Args:
        paths: the files.
        unreadable: receives those whose beginning is no picture.

    Returns:
        The places of the others in `paths`.
    """
    Image = require("PIL.Image", extra="data")

    def opens(path: str) -> bool:
        try:
            check_regular(path)
            with Image.open(path):
                return True
        except (OSError, ValueError, SyntaxError, Image.DecompressionBombError) as error:
            unreadable.add(path, str(error))
            return False

    unreadable.total += len(paths)
    with ThreadPoolExecutor(min(8, os.cpu_count() or 1)) as pool:
        good = list(pool.map(opens, paths, chunksize=256))
    return [i for i, fine in enumerate(good) if fine]


@dataclass(frozen=True)
class ImageFiles(Labeled):
    """A data set whose pictures stay in their files and are decoded batch by batch.

    For sets that do not fit in memory; give `BatchLoader` a `prefetch` so that decoding runs beside
    training.

    Args:
        paths: the files.
        labels: (N,) int64, an index into `classes`; -1 stands for "nobody known".
        classes: names of the classes.
        size: (height, width) or the side of a square; needed where the files differ in size.
        mode: "L" (gray) or "RGB".
        unreadable: receives the pictures that cannot be read, and whose place others of their class
            take. Default: they are an error.
    """

    paths: Sequence[str]
    labels: Tensor
    classes: Sequence[str]
    size: Size = None
    mode: str = "RGB"
    unreadable: UnreadablePictures | None = None

    def __post_init__(self) -> None:
        if len(self.paths) != len(self.labels):
            raise ValueError(f"{len(self.paths)} pictures but {len(self.labels)} labels")

    def __repr__(self) -> str:
        size = f"size {self.size}, " if self.size else ""
        return f"ImageFiles({len(self):,} {self.mode}, {size}{self.num_classes:,} classes)"

    def __len__(self) -> int:
        return len(self.paths)

    @property
    def shape(self) -> torch.Size:
        """Shape of one sample, (C, H, W); decodes the first picture."""
        return self.take(torch.tensor([0])).shape[1:]

    def subset(self, index: Tensor) -> ImageFiles:
        """Some of the samples, with the same classes.

        Args:
            index: (B,) int64.

        Returns:
            A data set of these samples.
        """
        paths = [self.paths[i] for i in index.tolist()]
        return replace(self, paths=paths, labels=self.labels[index])

    def take(self, index: Tensor) -> Tensor:
        """Samples by their index, decoded.

        Args:
            index: (B,) int64.

        Returns:
            (B, C, H, W) uint8.
        """
        try:
            return read_images([self.paths[i] for i in index.tolist()], self.size, self.mode)
        except DamagedData:  # seldom, so that the search for the bad one may take its time
            paths = [self._readable(i) for i in index.tolist()]
            return read_images(paths, self.size, self.mode)

    def _readable(self, place: int) -> str:
        """The file of a sample, or of another of its class where it cannot be read."""

        def tried(place: int) -> str:
            read_image(self.paths[place], self.size, self.mode)
            return self.paths[place]

        return read_or_replace(place, self.labels, tried, self.paths.__getitem__, self.unreadable)

    def load(self) -> ArrayDataset:
        """Everything in memory.

        Returns:
            The same samples, decoded.
        """
        return ArrayDataset(self.take(torch.arange(len(self))), self.labels, self.classes)


def make_dataset(
    paths: Sequence[str],
    labels: Sequence[int],
    classes: Sequence[str],
    size: Size,
    mode: str | None,
    lazy: bool,
    unreadable: UnreadablePictures | None = None,
) -> Dataset:
    """The pictures in memory, or (`lazy`) in their files; `unreadable` ones are left out."""
    numbers = torch.tensor(labels, dtype=torch.int64)
    if lazy:
        if unreadable is not None:
            kept = check_headers(paths, unreadable)
            if not kept:
                raise _none_readable(paths, unreadable)
            paths, numbers = [paths[i] for i in kept], numbers[kept]
        if mode is None:
            mode = "L" if is_gray(paths[0]) else "RGB"
        return ImageFiles(paths, numbers, classes, size, mode, unreadable)
    if unreadable is None:
        return ArrayDataset(read_images(paths, size, mode), numbers, classes)
    images, kept = read_readable(paths, size, mode, unreadable)
    return ArrayDataset(images, numbers[kept], classes)


def is_gray(path: Path | str) -> bool:
    """Whether a picture has one channel, by its header."""
    with require("PIL.Image", extra="data").open(path) as picture:
        return picture.mode in ("1", "L")


def list_pictures(folder: Path | str) -> list[str]:
    """The picture files in `folder` and below, in alphabetical order."""
    found: list[str] = []
    with os.scandir(folder) as entries:
        for entry in entries:
            if entry.is_dir():
                found.extend(list_pictures(entry.path))
            elif entry.name.lower().endswith(EXTENSIONS) and not entry.name.startswith("."):
                found.append(entry.path)
    return sorted(found)
