"""WebDataset shards: tar files of pictures and labels, streamed by the library `webdataset`."""

from __future__ import annotations

import tarfile
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from .._optional import require
from .._reading import check_regular, read_json, read_lines
from ..registry import register
from .dataset import ArrayDataset, Split
from .errors import DamagedData, damaged, missing
from .image_files import Size
from .labeled import Labeled
from .shard_loader import ShardLoader
from .shard_samples import PICTURES, decode_sample, raw_samples, read_label, sample_name
from .unreadable import UnreadablePictures

__all__ = ["Shards", "load_webdataset"]

WHERE = "your program: webdataset.ShardWriter('train-%06d.tar') with jpg (or png, webp) and cls"
MOST_IN_MEMORY = 1 << 32  # bytes of a decoded test part


@dataclass(frozen=True)
class Shards(Labeled):
    """Tar files that are streamed; `make_loader` serves them.

    Args:
        files: the shards.
        labels: (N,) int64 labels of all samples, in the order of the files.
        classes: names of the classes.
        size: (height, width) or the side of a square. Default: as they are, all of one size.
        mode: "RGB" or "L".
        workers: processes that read and decode; 0 does it in the training process.
        buffer: samples of the shuffle buffer of each worker.
        unreadable: receives the samples that cannot be read, and whose place others of their batch
            take. Default: they are an error.
    """

    files: Sequence[str]
    labels: Tensor
    classes: Sequence[str]
    size: Size = None
    mode: str = "RGB"
    workers: int = 2
    buffer: int = 1000
    unreadable: UnreadablePictures | None = None

    def __repr__(self) -> str:
        return f"Shards({len(self):,} in {len(self.files):,} files, {len(self.classes):,} classes)"

    def __len__(self) -> int:
        return len(self.labels)

    @property
    def shape(self) -> torch.Size:
        """Shape of one sample, (C, H, W); decodes the first picture that can be read."""
        for sample in raw_samples(self.files):
            with suppress(DamagedData):
                return torch.Size(decode_sample(sample, self.size, self.mode)[0].shape)
        raise DamagedData(f"none of {len(self)} pictures can be read, such as of {self.files[0]}")

    def take(self, index: Tensor) -> Tensor:
        """Refused: shards are streams.

        Args:
            index: (B,) int64.

        Returns:
            Nothing.
        """
        raise TypeError(
            "shards are read from front to back and give no single samples: use data.normalize "
            "unit or symmetric, which need none"
        )

    def subset(self, index: Tensor) -> Shards:
        """Refused: shards are streams.

        Args:
            index: (B,) int64.

        Returns:
            Nothing.
        """
        raise TypeError("shards are used whole: leave data.share and data.holdout as they are")

    def make_loader(self, batch_size: int, **settings: Any) -> ShardLoader:
        """Batches of these shards.

        Args:
            batch_size: samples per process.
            settings: seed, augment, normalize, drop_last, rank, world_size, as for `BatchLoader`.

        Returns:
            The loader.
        """
        for name in ("prefetch", "workers", "device"):  # its own workers prepare ahead
            settings.pop(name, None)
        return ShardLoader(self, batch_size, **settings)


def scan_labels(file: str) -> list[int]:
    """Labels of a shard: the headers are walked through, pictures are skipped.

    Args:
        file: a tar file.

    Returns:
        One label per sample.
    """
    split_name = require("webdataset.tariterators", extra="shards").base_plus_ext
    labels, keys = [], set()
    try:
        with tarfile.open(file, "r:") as archive:
            for entry in archive:
                key, ending = split_name(entry.name)
                ending = (ending or "").lower()  # as the library groups samples
                if ending == "cls" and entry.isfile() and entry.size < 64:
                    content = archive.extractfile(entry)
                    labels.append(read_label(content.read() if content else None, f"{file}, {key}"))
                elif ending in PICTURES:
                    keys.add(key)
    except (tarfile.TarError, EOFError, OSError) as error:
        raise damaged(Path(file), "a tar file", str(error), WHERE) from None
    if len(labels) != len(keys):
        found = f"{len(keys)} pictures and {len(labels)} labels"
        raise damaged(Path(file), "a .cls beside every picture", found, WHERE)
    return labels


@register("data", "webdataset")
def load_webdataset(
    root: Path,
    path: str = ".",
    size: Size = None,
    mode: str = "RGB",
    workers: int = 2,
    buffer: int = 1000,
    unreadable: float = 0.05,
) -> Split:
    """Tar files of the library `webdataset`: KEY.jpg (or png, webp) and KEY.cls per sample.

    train-*.tar are streamed for training and test-*.tar (or val-*.tar) read into memory; where no
    file has such a name, the last of all *.tar is the test part. classes.txt, a name per line, and
    classes.json, a list, name the classes.

    Args:
        root: the folder of the files, or one above it.
        path: the folder below `root`. Default: `root` itself.
        size: bring the pictures to (height, width), or a square of this side, bilinear. Default: as
            in the files.
        mode: "RGB" or "L" (gray).
        workers: processes that read and decode.
        buffer: samples of the shuffle buffer of each worker.
        unreadable: share of the pictures that may be unreadable. Those of the test part are left
            out; in training each is named in a warning when it is met, and another of its batch
            takes its place. More than that, in any process, is an error.

    Returns:
        A training part that is streamed, and a test part in memory.
    """
    folder = root / Path(path).expanduser()
    files = sorted(str(file) for file in folder.glob("*.tar"))
    if len(files) < 2:
        raise missing("at least two shards (*.tar)", [folder.absolute()], WHERE)
    for file in files:
        check_regular(file)
    named = {
        part: [f for f in files if Path(f).name.startswith(part)]
        for part in ("train", "test", "val")
    }
    test = named["test"] or named["val"] or files[-1:]
    train = named["train"] or [f for f in files if f not in test]
    scanned = {file: scan_labels(file) for file in train}
    train = [file for file in train if scanned[file]]  # writers may leave an empty one at the end
    if not train:
        raise DamagedData(f"{folder}: no sample in the training shards, of {', '.join(PICTURES)}")
    labels = torch.tensor([label for file in train for label in scanned[file]])
    classes = _classes(folder, labels)
    skipped = UnreadablePictures(unreadable, len(labels))
    shards = Shards(train, labels, classes, size, mode, workers, buffer, skipped)
    pictures = []
    for sample in _within(test, shards.shape):
        skipped.total += 1
        try:
            pictures.append(decode_sample(sample, size, mode))
        except DamagedData as error:
            skipped.add(sample_name(sample), str(error))
    skipped.report()
    if not pictures:
        raise DamagedData(f"{folder}: no sample in the test shards, of {', '.join(PICTURES)}")
    images = torch.from_numpy(np.stack([picture for picture, _ in pictures]))
    held = ArrayDataset(images, torch.tensor([k for _, k in pictures]), classes)
    return Split(shards, held, notes={"unreadable": skipped.paths} if skipped.paths else {})


def _within(files: Sequence[str], shape: Sequence[int]) -> Any:
    """Samples of the test part, as long as they fit in memory."""
    size = int(np.prod(shape))
    for count, sample in enumerate(raw_samples(files)):
        if count * size > MOST_IN_MEMORY:
            raise ValueError(
                f"the test part has more than {count:,} pictures of {tuple(shape)}, which do not "
                "fit in memory: take fewer test shards"
            )
        yield sample


def _classes(folder: Path, labels: Tensor) -> list[str]:
    if (folder / "classes.txt").is_file():
        names = read_lines(folder / "classes.txt")
    elif (folder / "classes.json").is_file():
        names = read_json(folder / "classes.json")
        if not isinstance(names, list):
            raise DamagedData(f"{folder / 'classes.json'}: expected a list of names")
        names = [str(name) for name in names]
    else:
        names = [str(i) for i in range(int(labels.max()) + 1)]
    if len(labels) == 0 or int(labels.min()) < 0 or int(labels.max()) >= len(names):
        raise DamagedData(f"{folder}: labels reach from 0 to {len(names) - 1}; some do not")
    return names
