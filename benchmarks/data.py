"""Data: seconds to load whole sets, and the time of a batch against the training step it feeds.

    HYPERSPHERE_DATA=FOLDER python benchmarks/data.py

Loading needs the real sets; the batches are of random pictures in the shapes of MNIST and CIFAR-10.
A batch is made in the training thread, so its share of the step is all the waiting there is.
"""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Callable, Iterator

import torch
from torch import Tensor
from torch.utils.data import DataLoader, TensorDataset

import hypersphere as hs
from hypersphere.data import ArrayDataset, BatchLoader, Normalize, augmentation

from harness import Row, measure, write

LOAD_LIMIT = 10.0  # seconds: "seconds, not minutes"
SHARE_LIMIT = 0.10  # of the smallest training step, that of the MLP


def loading() -> list[Row]:
    """Each set completely from its files; the best of two, so that the disk cache is warm."""
    rows = []
    for name, options in (
        ("mnist", {}),
        ("lfw", {}),
        ("modelnet40", {}),
        ("cifar10", {"batches": 2}),
    ):
        times = []
        try:
            for _ in range(2):
                start = time.perf_counter()
                hs.data.load(name, **options)
                times.append(time.perf_counter() - start)
        except hs.data.MissingData as error:
            print(f"{name} is left out: {error}")
            continue
        rows.append(Row(f"load {name}", value=min(times), unit="s", limit=LOAD_LIMIT))
    return rows


def random_set(count: int, *shape: int) -> ArrayDataset:
    images = torch.randint(0, 256, (count, *shape), dtype=torch.uint8)
    return ArrayDataset(images, torch.randint(0, 10, (count,)), [str(c) for c in range(10)])


def endless(loader: BatchLoader) -> Iterator[tuple[Tensor, Tensor]]:
    while True:
        yield from loader


def training_step(
    backbone: torch.nn.Module, size: int, batch: tuple[Tensor, Tensor]
) -> Callable[[], object]:
    """One step on a fixed batch: forward, backward, SGD with momentum."""
    net = hs.models.Classifier(backbone, hs.heads.SoftmaxHead(size, 10))
    optimizer = torch.optim.SGD(net.parameters(), lr=0.01, momentum=0.9)
    x, y = batch

    def step() -> None:
        optimizer.zero_grad()
        net.loss(x, y).backward()
        optimizer.step()

    return step


def against_step(
    loader: BatchLoader, backbone: torch.nn.Module, size: int, limit: float, repeats: int
) -> list[Row]:
    batches = endless(loader)
    step = training_step(backbone, size, next(batches))
    return measure(
        {"training step": step, "one batch": lambda: next(batches)},
        baseline="training step",
        limits={"one batch": limit},
        repeats=repeats,
        memory=False,
    )


def against_dataloader(loader: BatchLoader, dataset: ArrayDataset) -> list[Row]:
    """An epoch of 10,000 MNIST pictures, without augmentation, which the others do one by one."""
    tensors = TensorDataset(dataset.images.float() / 255, dataset.labels)

    def ours() -> None:
        for _ in loader:
            pass

    def theirs() -> None:
        for _ in DataLoader(tensors, loader.batch_size, shuffle=True):
            pass

    return measure(
        {"BatchLoader, an epoch": ours, "torch DataLoader over TensorDataset": theirs},
        baseline="torch DataLoader over TensorDataset",
        limits={"BatchLoader, an epoch": 0.5},
        repeats=7,
        memory=False,
    )


def main() -> int:
    torch.manual_seed(0)
    tables: dict[str, list[Row]] = {}
    if os.environ.get("HYPERSPHERE_DATA"):
        tables["Whole sets into memory"] = loading()
    else:
        print("HYPERSPHERE_DATA is not set: loading real sets is left out")
    mnist = random_set(10_000, 1, 28, 28)
    plain = BatchLoader(mnist, 100)
    mlp = hs.models.create("mlp")
    tables["MNIST, batch 100, MLP 784-256-256-10"] = against_step(
        plain, mlp, mlp.out_features, SHARE_LIMIT, 200
    )
    cifar = random_set(10_000, 3, 32, 32)
    augmented = BatchLoader(
        cifar, 128, augment=augmentation("cifar"), normalize=Normalize.fit(cifar, "channel")
    )
    cnn = hs.models.create("cnn9", in_channels=3, widths=(16, 32, 64), features=64)
    tables["CIFAR-10, batch 128, pad + crop + flip + normalize, CNN-9 (16/32/64)"] = against_step(
        augmented, cnn, cnn.out_features, 0.02, 7
    )
    tables["An epoch of 10,000 MNIST pictures"] = against_dataloader(plain, mnist)
    rates = []
    for name, loader in (("MNIST, batch 100", plain), ("CIFAR-10 augmented, batch 128", augmented)):
        start = time.perf_counter()
        count = sum(1 for _ in range(3) for _ in loader)
        rate = count / (time.perf_counter() - start)
        rates.append(Row(name, value=rate, unit="batches/s"))
    tables["Batches a second"] = rates
    return 0 if write("data", tables) else 1


if __name__ == "__main__":
    sys.exit(main())
