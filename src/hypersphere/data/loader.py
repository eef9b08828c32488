"""Batches of a data set: seeded, resumable, sharded over processes."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import torch
from torch import Tensor

from ._random import generator
from .dataset import Dataset
from .feeding import Decoders, copied_ahead, decode, in_order
from .normalize import Normalize
from .place import KeepsPlace

Augmentation = Callable[[Tensor, torch.Generator], Tensor]


class BatchLoader(KeepsPlace):
    """Iterate over batches (x, y); one `for` loop is one epoch.

    The order of epoch e depends on (seed, e) only, and the augmentation of a batch on (seed, e,
    batch, rank) only. So the state is two numbers, and a resumed run sees the same tensors bit for
    bit. In a loader that lives on, an epoch that is left early starts again at its first batch; a
    loader that takes over its state goes on with the next batch (see `state_dict`).

    Processes share each global batch of `world_size` x `batch_size` samples: together they see
    every sample exactly once per epoch, none twice, and all have the same number of batches, so no
    process waits for another at the end. The last batch is smaller where the number does not
    divide; fewer left-over samples than processes join the batch before.

    Args:
        dataset: the samples.
        batch_size: samples per process.
        shuffle: another order each epoch. False keeps that of the data set.
        seed: seed of the order and the augmentation.
        augment: `augment(images, generator) -> images` on the raw batch. Default: none.
        normalize: makes the batch floating point: "unit" (0..1), "symmetric", a `Normalize`, or
            None for raw values.
        drop_last: leave the incomplete global batch out (other samples every epoch).
        rank: number of this process.
        world_size: number of processes.
        device: where the batches go; to a graphics card they are copied one ahead, from pinned
            memory. Default: where the samples are.
        prefetch: batches prepared ahead by a thread, for data that are decoded from files; 0 is
            right for data in memory.
        workers: processes that decode samples, each a batch at a time, for files that one thread
            cannot decode fast enough; 0 is right for data in memory. The batches are the same.

    >>> from hypersphere.data import ArrayDataset
    >>> data = ArrayDataset(torch.rand(10, 1, 8, 8), torch.zeros(10).long(), ["a"])
    >>> loader = BatchLoader(data, batch_size=4, seed=1)
    >>> [len(y) for x, y in loader], loader.epoch
    ([4, 4, 2], 1)
    """

    def __init__(
        self,
        dataset: Dataset,
        batch_size: int,
        *,
        shuffle: bool = True,
        seed: int = 0,
        augment: Augmentation | None = None,
        normalize: Normalize | str | None = "unit",
        drop_last: bool = False,
        rank: int = 0,
        world_size: int = 1,
        device: torch.device | str | None = None,
        prefetch: int = 0,
        workers: int = 0,
    ) -> None:
        if batch_size < 1:
            raise ValueError(f"batch_size is at least 1; got {batch_size}")
        if not 0 <= rank < world_size:
            raise ValueError(f"rank is in 0..world_size-1; got rank {rank} of {world_size}")
        if len(dataset) < world_size * (batch_size if drop_last else 1):
            raise ValueError(
                f"{len(dataset)} samples do not give {world_size} processes a batch each "
                f"(batch_size={batch_size}, drop_last={drop_last})"
            )
        self.dataset = dataset
        self.batch_size = batch_size
        self.shuffle = shuffle
        self.seed = seed
        self.augment = augment
        self.normalize = Normalize.named(normalize) if isinstance(normalize, str) else normalize
        self.drop_last = drop_last
        self.rank = rank
        self.world_size = world_size
        self.device = device
        self.prefetch = prefetch
        self.workers = workers
        self._decoders: Decoders | None = None

    def __len__(self) -> int:
        """Batches of an epoch, the same for every rank."""
        whole, rest = divmod(len(self.dataset), self.batch_size * self.world_size)
        return whole if self.drop_last or (rest < self.world_size and whole) else whole + 1

    def __iter__(self) -> Iterator[tuple[Tensor, Tensor]]:
        start, order = self._begin(), self._order(self.epoch)
        for batch in self._produce(order, self.epoch, range(start, len(self))):
            self._served += 1
            yield batch
        self._end()

    def indices(self, epoch: int) -> list[Tensor]:
        """The sample indices of this rank's batches.

        Args:
            epoch: which epoch.

        Returns:
            One (B,) int64 tensor per batch.
        """
        order = self._order(epoch)
        return [self._cell(order, batch) for batch in range(len(self))]

    def _order(self, epoch: int) -> Tensor:
        n = len(self.dataset)
        if not self.shuffle:
            return torch.arange(n)
        return torch.randperm(n, generator=generator(self.seed, "order", epoch))

    def _cell(self, order: Tensor, batch: int) -> Tensor:
        """Indices of one batch of this rank."""
        size = self.batch_size * self.world_size
        begin, end = batch * size, min((batch + 1) * size, len(order))
        mine = order[begin:end][self.rank :: self.world_size]
        last = batch == len(self) - 1 and not self.drop_last
        if last and end < len(order):  # fewer left over than processes: one more for some
            mine = torch.cat([mine, order[end:][self.rank :: self.world_size]])
        return mine

    def _make(
        self, order: Tensor, epoch: int, batch: int, images: Tensor | None = None
    ) -> tuple[Tensor, Tensor]:
        index = self._cell(order, batch)
        images = self.dataset.take(index) if images is None else images
        labels = self.dataset.labels
        labels = labels[index.to(labels.device)]
        if self.device is not None and not self._on_card:
            images = images.to(self.device, non_blocking=True)
            labels = labels.to(self.device, non_blocking=True)
        if self.augment is not None:
            images = self.augment(images, generator(self.seed, "augment", epoch, batch, self.rank))
        return images if self.normalize is None else self.normalize(images), labels

    @property
    def _on_card(self) -> bool:
        return self.device is not None and torch.device(self.device).type == "cuda"

    def _produce(
        self, order: Tensor, epoch: int, batches: range
    ) -> Iterator[tuple[Tensor, Tensor]]:
        made = self._made(order, epoch, batches)
        if not self._on_card:
            return made
        # Augmented in the memory of the host, so that a run is the same on every device.
        return copied_ahead(made, torch.device(self.device))  # type: ignore[arg-type, return-value]

    def _made(self, order: Tensor, epoch: int, batches: range) -> Iterator[tuple[Tensor, Tensor]]:
        if self.workers > 0:
            if self._decoders is None:  # they stay for the epochs to come
                self._decoders = Decoders(self.dataset, self.workers)
            indices = ((self._cell(order, batch).numpy(),) for batch in batches)
            ahead = max(self.prefetch, 2 * self.workers)
            decoded = in_order(self._decoders.pool, decode, indices, ahead)
            for batch, images in zip(batches, decoded, strict=True):
                yield self._make(order, epoch, batch, torch.from_numpy(images))
        elif self.prefetch > 0:
            with ThreadPoolExecutor(1) as pool:
                calls = ((order, epoch, batch) for batch in batches)
                yield from in_order(pool, self._make, calls, self.prefetch)
        else:
            yield from (self._make(order, epoch, batch) for batch in batches)

    def close(self) -> None:
        """End the processes that decode, if there are any; a later epoch starts new ones."""
        if self._decoders is not None:
            self._decoders.close()
            self._decoders = None

    def __del__(self) -> None:
        if getattr(self, "_decoders", None) is not None:
            self.close()

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_decoders": None}
