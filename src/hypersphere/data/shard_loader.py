"""Batches of streamed shards: each process has its own, shuffled, decoded by workers, resumable.

The shards of epoch e are shuffled by (seed, e), dealt out to the processes and then to the workers
of each. A worker streams its shards through a shuffle buffer; when they are used up before the
epoch is, it begins again. All processes have the same number of batches, so that none waits for
another at the end; in exchange a few samples of an epoch may come twice or not at all. The order
depends on (seed, epoch, rank, worker) alone: a resumed run passes over what it has seen, without
decoding it, and goes on with the same batches.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from itertools import count, cycle, islice
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor
from torch.utils.data import DataLoader, IterableDataset, get_worker_info

from .._optional import require
from ._random import generator
from .errors import DamagedData
from .normalize import Normalize
from .place import KeepsPlace
from .shard_samples import decode_sample, raw_samples, sample_name

if TYPE_CHECKING:
    from .shards import Shards

__all__ = ["ShardLoader"]

Augmentation = Callable[[Tensor, torch.Generator], Tensor]


class ShardLoader(KeepsPlace):
    """Iterate over batches (x, y) of shards; one `for` loop is one epoch.

    Args:
        shards: the shards.
        batch_size: samples per process.
        seed: seed of the order and the augmentation.
        augment: `augment(images, generator) -> images` on the raw batch. Default: none.
        normalize: makes the batch floating point: "unit", "symmetric", a `Normalize`, or None.
        drop_last: shards always do; False is for the signature of `BatchLoader`.
        rank: number of this process.
        world_size: number of processes; each needs a shard.
    """

    def __init__(
        self,
        shards: Shards,
        batch_size: int,
        *,
        seed: int = 0,
        augment: Augmentation | None = None,
        normalize: Normalize | str | None = "unit",
        drop_last: bool = True,
        rank: int = 0,
        world_size: int = 1,
    ) -> None:
        if len(shards.files) < world_size:
            raise ValueError(
                f"{len(shards.files)} shards for {world_size} processes: each needs one of its own"
            )
        if len(shards) < batch_size * world_size:
            raise ValueError(
                f"{len(shards)} samples do not give {world_size} processes a batch of {batch_size}"
            )
        self.dataset, self.batch_size, self.seed = shards, batch_size, seed
        self.augment = augment
        self.normalize = Normalize.named(normalize) if isinstance(normalize, str) else normalize
        self.rank, self.world_size = rank, world_size
        # The smallest share that a process can get; a worker without a shard would have nothing.
        self.workers = min(shards.workers, len(shards.files) // world_size)

    def __len__(self) -> int:
        """Batches of an epoch, the same for every rank."""
        return len(self.dataset) // (self.batch_size * self.world_size)

    def __iter__(self) -> Iterator[tuple[Tensor, Tensor]]:
        start = self._begin()
        stream = _Stream(self, self.epoch, start)
        loader = DataLoader(stream, batch_size=None, num_workers=self.workers)
        for batch, (images, labels) in zip(range(start, len(self)), loader, strict=False):
            self._served += 1
            if self.augment is not None:
                key = (self.seed, "augment", self.epoch, batch, self.rank)
                images = self.augment(images, generator(*key))
            yield images if self.normalize is None else self.normalize(images), labels
        self._end()

    def state_dict(self) -> dict[str, int]:
        """Where the loader stands; everything else is given by its arguments.

        Returns:
            Epoch, batch, and the arguments that a resumed loader has to share.
        """
        return super().state_dict() | {"workers": self.workers, "shards": len(self.dataset.files)}


class _Stream(IterableDataset):  # type: ignore[type-arg]
    """Batches of one worker in one epoch, from batch `start` of its process on."""

    def __init__(self, loader: ShardLoader, epoch: int, start: int) -> None:
        super().__init__()
        self.shards, self.batch_size, self.seed = loader.dataset, loader.batch_size, loader.seed
        self.rank, self.world_size = loader.rank, loader.world_size
        self.epoch, self.start, self.total = epoch, start, len(loader)

    def __iter__(self) -> Iterator[tuple[Tensor, Tensor]]:
        info = get_worker_info()
        worker, workers = (info.id, info.num_workers) if info else (0, 1)
        # The DataLoader takes batches from its workers in turn, worker 0 first: after `start` of
        # them the next belongs to worker `start % workers`, which is worker 0 of the new loader.
        own = (worker + self.start) % workers
        files = self._files(own, workers)
        seen = len(range(own, self.start, workers))
        samples = islice(self._samples(files, own), seen * self.batch_size, None)
        for _ in range(own + seen * workers, self.total, workers):
            chosen = islice(samples, self.batch_size)
            decoded = self._decode(chosen)
            images = torch.from_numpy(np.stack([picture for picture, _ in decoded]))
            yield images, torch.tensor([label for _, label in decoded])

    def _decode(self, samples: Iterable[dict[str, Any]]) -> list[tuple[np.ndarray, int]]:
        """Pictures and labels of a batch; where one cannot be read, another takes its place, so
        that the samples after it stay where they are and a resumed run finds them there.
        """
        found: list[tuple[np.ndarray, int] | None] = []
        unreadable = self.shards.unreadable
        for sample in samples:
            try:
                found.append(decode_sample(sample, self.shards.size, self.shards.mode))
            except DamagedData as error:
                if unreadable is None:
                    raise
                found.append(None)
                if sample_name(sample) not in unreadable.reasons:
                    unreadable.replace(sample_name(sample), str(error))
        whole = [one for one in found if one is not None]
        if not whole:
            raise DamagedData(f"no sample of a whole batch of {self.shards!r} can be read")
        spare = cycle(whole)
        return [next(spare) if one is None else one for one in found]

    def _files(self, worker: int, workers: int) -> list[str]:
        order = torch.randperm(
            len(self.shards.files), generator=generator(self.seed, "shards", self.epoch)
        )
        mine = order[self.rank :: self.world_size][worker::workers]
        return [self.shards.files[i] for i in mine.tolist()]

    def _samples(self, files: list[str], worker: int) -> Iterator[dict[str, Any]]:
        """Raw samples without end: the shards again and again, each time in another order."""
        wds = require("webdataset", extra="shards")
        for again in count():
            key = (self.seed, "buffer", self.epoch, self.rank, worker, again)
            seed = int(torch.randint(1 << 62, (), generator=generator(*key)))
            buffer = self.shards.buffer
            shuffle = wds.detshuffle(buffer, initial=buffer, seed=seed)
            empty = True
            for sample in shuffle.run(raw_samples(files)):
                empty = False
                yield sample
            if empty:  # without this the loop would go on for ever
                raise DamagedData(f"{', '.join(files)} gave no sample: write the shards anew")
