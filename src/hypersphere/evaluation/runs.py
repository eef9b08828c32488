"""A trained run opened for evaluation: its model, its preprocessing, its data."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from .features import Progress, extract


@dataclass
class Samples:
    """Pictures (or point clouds) in memory or in files, with labels and class names."""

    images: Any
    labels: Tensor
    classes: Sequence[str]

    def __len__(self) -> int:
        return len(self.labels)

    def first(self, limit: int | None) -> Samples:
        """Evenly spread `limit` samples, so that every class keeps its share."""
        if limit is None or limit >= len(self):
            return self
        keep = torch.linspace(0, len(self) - 1, limit).long()
        images = self.images[keep] if isinstance(self.images, Tensor) else self.images.take(keep)
        return Samples(images, self.labels[keep], self.classes)


@dataclass
class TrainedRun:
    """A run folder: config, weights, and everything needed to feed the network as in training."""

    folder: Path
    model: nn.Module
    config: Any
    shape: tuple[int, ...]
    classes: list[str]
    weights: str = "last"
    step: int | None = None

    @classmethod
    def open(cls, folder: str | Path, weights: str = "last") -> TrainedRun:
        """Load the "last" weights of a run of `hypersphere train`, or those of its "best" test."""
        from .. import training
        from ..training.run.load import find_weights

        folder = Path(folder)
        record = folder / "run.json"
        if not record.is_file():
            raise FileNotFoundError(f"{folder} is not a run folder (no run.json in it)")
        details = json.loads(record.read_text("utf-8"))
        if "data" not in details:
            raise ValueError(f"{folder} is a run of {details.get('task')!r}, not of a classifier")
        try:
            place, step = find_weights(folder, weights)
            model = training.load_net(folder, place)
        except training.RunError as error:  # no checkpoint, or a damaged one
            raise ValueError(f"{folder}: {error}") from None
        config = training.Config.from_dict(details["config"])
        data = details["data"]
        shape, classes = tuple(data["shape"]), list(data["classes"])
        return cls(folder, model.eval(), config, shape, classes, weights, step)

    @cached_property
    def loaders(self) -> Any:
        """The run's own data, read again."""
        from ..training.build import make_loaders

        return make_loaders(self.config.data, self.config.seed)

    @cached_property
    def normalize(self) -> Any:
        """From pixels to the network's input; only a fitted normalization needs the data."""
        from ..data import Normalize

        name = self.config.data.normalize
        return Normalize.named(name) if name in ("unit", "symmetric") else self.loaders.normalize

    def transform(self, images: Tensor) -> Tensor:
        """Crop as in testing, then normalize."""
        return self.normalize(self._crop(images, torch.Generator()))

    @cached_property
    def _crop(self) -> Any:
        from ..data import augmentation

        return augmentation(self.config.data.augment, train=False)

    def test_samples(self) -> Samples:
        """The run's own test part."""
        part = self.loaders.split.test
        return Samples(part, part.labels, [str(c) for c in part.classes])

    def read(self, paths: Sequence[str | Path]) -> Tensor:
        """Pictures brought to the size and color of the run, (n, C, H, W) uint8."""
        from ..data.images import read_images

        channels, *size = self.shape
        mode = "L" if channels == 1 else "RGB"
        return read_images([str(p) for p in paths], (size[0], size[1]), mode)

    def folder_samples(self, folder: str | Path) -> Samples:
        """Pictures of a folder with one folder per class."""
        from ..data.folder import list_classes

        if not Path(folder).is_dir():
            raise FileNotFoundError(f"no folder of pictures at {folder}")
        paths, labels, classes = list_classes(Path(folder))
        return Samples(self.read(paths), torch.tensor(labels), classes)

    def load_split(self, name: str, root: str | None) -> Any:
        """A named data set, in the size and color of the run where its reader can do that."""
        import inspect

        from .. import data
        from ..data.registry import _READERS

        known = inspect.signature(_READERS[name]).parameters if name in _READERS else {}
        channels, *size = self.shape
        options: dict[str, Any] = {}
        if "size" in known and len(size) == 2:
            options["size"] = (size[0], size[1])
        if "mode" in known:
            options["mode"] = "L" if channels == 1 else "RGB"
        return data.load(name, root, **options)

    def check(self, dataset: Any, name: str) -> Any:
        """The data set, if its samples have the shape the run was trained on."""
        if tuple(dataset.shape) != self.shape:
            raise ValueError(
                f"samples of {name} are {tuple(dataset.shape)}; "
                f"this run was trained on {self.shape}"
            )
        return dataset

    def dataset_samples(self, name: str, root: str | None, part: str = "test") -> Samples:
        """A part of a named data set."""
        found = getattr(self.load_split(name, root), part, None)
        if found is None:
            raise ValueError(f"{name} has no part {part!r}")
        self.check(found, name)
        return Samples(found, found.labels, [str(c) for c in found.classes])

    def extract(
        self,
        images: Any,
        *,
        flips: bool = False,
        logits: bool = False,
        batch_size: int = 128,
        cache: bool = True,
        progress: Progress | None = None,
    ) -> Tensor:
        """Features (n, d) or (n, 2, d), or scores (n, C); kept in the run folder by model hash."""
        return extract(
            self.model,
            images,
            flips=flips,
            transform=Preprocessing(self),
            batch_size=batch_size,
            logits=logits,
            cache=self.folder / "cache" if cache else None,
            progress=progress,
        )


class Preprocessing:
    """`run.transform` with a name that tells one preprocessing from another, for the cache."""

    def __init__(self, run: TrainedRun) -> None:
        self._run = run

    def __call__(self, images: Tensor) -> Tensor:
        return self._run.transform(images)

    def fingerprint(self) -> str:
        data, rule = self._run.config.data, self._run.normalize
        values = [torch.as_tensor(v).double().sum().item() for v in (rule.mean, rule.std)]
        return f"{data.augment}:{data.normalize}:{values}"
