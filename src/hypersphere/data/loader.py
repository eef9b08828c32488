"""Batches of a data set: seeded, resumable, sharded over processes."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any

import torch
from torch import Tensor

from ._random import generator
from .dataset import Dataset
from .normalize import Normalize

Augmentation = Callable[[Tensor, torch.Generator], Tensor]


class BatchLoader:
    """Iterate over batches (x, y); one `for` loop is one epoch.

    The order of epoch e depends on (seed, e) only, and the augmentation of a batch on (seed, e,
    batch, rank) only. So the state is two numbers, and a resumed run sees the same tensors bit for
    bit. An epoch that is left early starts again at its first batch.

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
        device: where the batches go. Default: where the samples are.
        prefetch: batches prepared ahead by a thread, for data that are decoded from files; 0 is
            right for data in memory.

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
        self.epoch = 0
        self._served = 0  # batches of this epoch that the caller has received
        self._resume = False

    def __len__(self) -> int:
        """Batches of an epoch, the same for every rank."""
        whole, rest = divmod(len(self.dataset), self.batch_size * self.world_size)
        return whole if self.drop_last or (rest < self.world_size and whole) else whole + 1

    def __iter__(self) -> Iterator[tuple[Tensor, Tensor]]:
        start = self._served if self._resume else 0
        self._resume = False
        self._served = start
        order = self._order(self.epoch)
        for batch in self._produce(order, self.epoch, range(start, len(self))):
            self._served += 1
            yield batch
        self.epoch += 1
        self._served = 0

    def state_dict(self) -> dict[str, int]:
        """Where the loader stands; everything else is given by its arguments.

        Returns:
            Epoch, batch, and the arguments that a resumed loader has to share.
        """
        done = self._served == len(self)
        return {
            "epoch": self.epoch + done,
            "batch": 0 if done else self._served,
            "seed": self.seed,
            "samples": len(self.dataset),
            "batch_size": self.batch_size,
            "world_size": self.world_size,
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Go on where a state was taken; the next `for` loop serves the rest of that epoch.

        Args:
            state: what `state_dict` returned.

        Raises:
            ValueError: if it is of a loader whose batches would be others.
        """
        for key, own in self.state_dict().items():
            if key not in state:
                raise ValueError(f"the loader state has no {key!r}; it has {sorted(state)}")
            if key not in ("epoch", "batch") and state[key] != own:
                raise ValueError(
                    f"the state is of a loader with {key}={state[key]}, this one has {key}={own}: "
                    f"its batches would be others. Use the same {key} to resume"
                )
        self.epoch = int(state["epoch"])
        self._served = int(state["batch"])
        self._resume = True

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

    def _make(self, order: Tensor, epoch: int, batch: int) -> tuple[Tensor, Tensor]:
        index = self._cell(order, batch)
        images = self.dataset.take(index)
        labels = self.dataset.labels
        labels = labels[index.to(labels.device)]
        if self.device is not None:
            images = images.to(self.device, non_blocking=True)
            labels = labels.to(self.device, non_blocking=True)
        if self.augment is not None:
            images = self.augment(images, generator(self.seed, "augment", epoch, batch, self.rank))
        return images if self.normalize is None else self.normalize(images), labels

    def _produce(
        self, order: Tensor, epoch: int, batches: range
    ) -> Iterator[tuple[Tensor, Tensor]]:
        if self.prefetch < 1:
            yield from (self._make(order, epoch, batch) for batch in batches)
            return
        waiting: deque[Future[tuple[Tensor, Tensor]]] = deque()
        with ThreadPoolExecutor(1) as pool:
            try:
                for batch in batches:
                    waiting.append(pool.submit(self._make, order, epoch, batch))
                    if len(waiting) > self.prefetch:
                        yield waiting.popleft().result()
                while waiting:
                    yield waiting.popleft().result()
            finally:  # an epoch left early does not decode what nobody will see
                for future in waiting:
                    future.cancel()
