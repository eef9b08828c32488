"""A trained run opened for evaluation: its model, its preprocessing, its data."""

from __future__ import annotations

import inspect
import warnings
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from ... import data, registry
from ...data.image_files import read_readable
from ...data.image_folder import list_classes
from ...data.readers import reader_options
from ...data.unreadable import UnreadablePictures
from ...evaluation.extraction import Progress, extract
from ..build import make_loaders
from ..config import Config
from .checkpoint import RunError
from .load import find_weights, load_net
from .own_data import SPLIT, as_started, check_classes, differs, kept_normalization
from .records import data_of_run, read_record, run_config

__all__ = ["Preprocessing", "Samples", "TrainedRun"]

UNREADABLE = 0.05  # share of a folder's pictures that may be left out, as `data.load_folder` does


@dataclass
class Samples:
    """Pictures (or point clouds) in memory or in files, with labels and class names.

    Args:
        images: a tensor (n, ...), or a data set with `take(index)` and a length.
        labels: (n,) class numbers.
        classes: the name of each class.
    """

    images: Any
    labels: Tensor
    classes: Sequence[str]

    def __len__(self) -> int:
        return len(self.labels)

    def first(self, limit: int | None) -> Samples:
        """Evenly spread samples, so that every class keeps its share.

        Args:
            limit: how many samples to keep. Default: all.

        Returns:
            At most `limit` samples.
        """
        if limit is None or limit >= len(self):
            return self
        keep = torch.linspace(0, len(self) - 1, limit).long()
        images = self.images[keep] if isinstance(self.images, Tensor) else self.images.take(keep)
        return Samples(images, self.labels[keep], self.classes)


@dataclass
class TrainedRun:
    """A run folder: config, weights, and everything needed to feed the network as in training.

    Args:
        folder: the run folder.
        model: the trained network, in evaluation mode.
        config: the config of the run.
        shape: shape of one sample, such as (C, H, W).
        classes: the names of the classes it was trained on.
        weights: which weights were loaded, "last" or "best".
        step: the training step of these weights, if known.
    """

    folder: Path
    model: nn.Module
    config: Any
    shape: tuple[int, ...]
    classes: list[str]
    weights: str = "last"
    step: int | None = None

    @classmethod
    def open(cls, folder: str | Path, weights: str = "last") -> TrainedRun:
        """Open a run of `hypersphere train`.

        Args:
            folder: the run folder.
            weights: "last", or "best" for the weights of the best test.

        Returns:
            The run with its network in evaluation mode.

        Raises:
            FileNotFoundError: if the folder is not a run folder.
            ValueError: if it is not the run of a classifier, or has no readable checkpoint.
        """
        folder = Path(folder)
        record = folder / "run.json"
        if not record.is_file():
            raise FileNotFoundError(f"{folder} is not a run folder (no run.json in it)")
        try:
            details = read_record(record)
            shape, classes = data_of_run(details, record)
            config = Config.from_dict(run_config(details, record))
            place, step = find_weights(folder, weights)
            model = load_net(folder, place)
        except RunError as error:  # no checkpoint, or a damaged one
            raise ValueError(f"{folder}: {error}") from None
        return cls(folder, model.eval(), config, shape, classes, weights, step)

    @cached_property
    def loaders(self) -> Any:
        """The run's own data, read again, with the people divided as they were."""
        try:
            task = registry.entry("task", self.config.task).target
            found = make_loaders(
                as_started(self.config.data, self.folder),
                self.config.seed,
                new_classes=getattr(task, "tests_new_classes", False),
            )
            check_classes(found, self.folder)
            change = differs(found, self.folder)
        except RunError as error:  # other data, or a damaged record of them
            raise ValueError(str(error)) from None
        if change:
            message = f"{change}; its test part may hold samples that it was trained on"
            warnings.warn(message, stacklevel=3)
        return found

    @cached_property
    def normalize(self) -> Any:
        """From pixels to the network's input, as in training."""
        name = self.config.data.normalize
        if name in ("unit", "symmetric"):
            return data.Normalize.named(name)
        # Fitted anew only for runs of earlier versions, which did not keep it.
        try:
            return kept_normalization(self.folder) or self.loaders.normalize
        except RunError as error:
            raise ValueError(str(error)) from None

    @cached_property
    def aligned(self) -> bool | None:
        """Whether the pictures of its data were made by `hypersphere align`; None if unknown."""
        try:
            return True if "alignment" in read_record(self.folder / SPLIT) else None
        except FileNotFoundError:
            return None
        except RunError as error:
            raise ValueError(str(error)) from None

    def transform(self, images: Tensor) -> Tensor:
        """Crop as in testing, then normalize.

        Args:
            images: (n, C, H, W) stored pictures.

        Returns:
            The network's input, (n, C, h, w).
        """
        return self.normalize(self._crop(images, torch.Generator()))  # type: ignore[no-any-return]

    @cached_property
    def _crop(self) -> Any:
        return data.augmentation(self.config.data.augment, train=False)

    def test_samples(self) -> Samples:
        """The run's own test part.

        Returns:
            Its samples, labels and class names.
        """
        part = self.loaders.split.test
        return Samples(part, part.labels, [str(c) for c in part.classes])

    def read(self, paths: Sequence[str | Path]) -> Tensor:
        """Read pictures in the size and color of the run.

        Args:
            paths: picture files.

        Returns:
            (n, C, H, W) uint8.
        """
        channels, *size = self.shape
        mode = "L" if channels == 1 else "RGB"
        return data.read_images([str(p) for p in paths], (size[0], size[1]), mode)

    def read_usable(self, paths: Sequence[str | Path]) -> tuple[Tensor, list[int], dict[str, str]]:
        """Read pictures in the size and color of the run, without those that cannot be read.

        Args:
            paths: picture files.

        Returns:
            (n, C, H, W) uint8, the places in `paths` they come from, and file -> what is wrong.
        """
        channels, *size = self.shape
        skipped = UnreadablePictures(1.0)
        mode = "L" if channels == 1 else "RGB"
        files = [str(path) for path in paths]
        images, kept = read_readable(files, (size[0], size[1]), mode, skipped)
        return images, kept, skipped.reasons

    def in_its_classes(self, samples: Samples) -> Samples:
        """Samples labeled by the run's own classes, for what compares them with its scores.

        Args:
            samples: of any classes, known by their names.

        Returns:
            The same samples, each with the number that its class has in the run.

        Raises:
            ValueError: if the run was not trained on one of their classes.
        """
        names = [str(name) for name in samples.classes]
        if names == self.classes:
            return samples
        unknown = [n for n in (names[i] for i in samples.labels.unique()) if n not in self.classes]
        if unknown:
            raise ValueError(
                f"scores are of the {len(self.classes)} classes that {self.folder} was trained on "
                f"({', '.join(self.classes[:3])}, ...), and {len(unknown)} of the classes of these "
                f"samples are none of them ({', '.join(unknown[:3])}): name them as in the run"
            )
        number = {name: i for i, name in enumerate(self.classes)}
        own = torch.tensor([number.get(name, -1) for name in names])
        return Samples(samples.images, own[samples.labels], self.classes)

    def folder_samples(self, folder: str | Path) -> Samples:
        """Read the pictures of a folder with one folder per class.

        Args:
            folder: the folder of folders.

        Returns:
            All its pictures, labeled by folder.
        """
        if not Path(folder).is_dir():
            raise FileNotFoundError(f"no folder of pictures at {folder}")
        paths, labels, classes = list_classes(Path(folder))
        skipped = UnreadablePictures(UNREADABLE)
        channels, *size = self.shape
        mode = "L" if channels == 1 else "RGB"
        images, kept = read_readable(paths, (size[0], size[1]), mode, skipped)
        skipped.report()
        return Samples(images, torch.tensor(labels)[kept], classes)

    def load_split(self, name: str, root: str | None) -> Any:
        """Load a named data set, in the size and color of the run where its reader can do that.

        Args:
            name: name of the data set.
            root: folder that holds the data sets. Default: as `hypersphere.data.load`.

        Returns:
            What `hypersphere.data.load` gives.
        """
        known: Mapping[str, Any] = {}
        if name in registry.names("data"):
            known = inspect.signature(registry.entry("data", name).target).parameters
        channels, *size = self.shape
        options: dict[str, Any] = {}
        if "size" in known and len(size) == 2:
            options["size"] = (size[0], size[1])
        if "mode" in known:
            options["mode"] = "L" if channels == 1 else "RGB"
        return data.load(name, root, **options)

    def check(self, dataset: Any, name: str) -> Any:
        """Refuse samples of another shape than the run was trained on.

        Args:
            dataset: a data set with `shape`.
            name: what the message calls it.

        Returns:
            The data set.
        """
        if tuple(dataset.shape) != self.shape:
            raise ValueError(
                f"samples of {name} are {tuple(dataset.shape)}; "
                f"this run was trained on {self.shape}"
            )
        return dataset

    def dataset_samples(self, name: str, root: str | None, part: str = "test") -> Samples:
        """A part of a named data set.

        Args:
            name: name of the data set.
            root: folder that holds the data sets.
            part: "train", "test", "validation"; of a split by person also "calibration" and
                "reserved".

        Returns:
            Its samples, labels and class names.
        """
        own = name == self.config.data.name and root is None
        split = self.loaders.split if own else self.load_split(name, root)
        found = split.pairs.dataset if part == "calibration" and split.pairs else None
        found = getattr(split, part, None) if found is None else found
        if found is None:
            hint = ""
            if part in ("calibration", "reserved"):
                hint = ": give pictures of other people, a folder each, with --images DIR"
                if "protocol" in reader_options(name):
                    hint += ", or train with data.options.protocol open_set"
            raise ValueError(f"{name} has no part {part!r}{hint}")
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
        """Features or scores of pictures, kept in the run folder by the hash of the model.

        Args:
            images: (n, C, H, W) pictures, or a data set with `take(index)` and a length.
            flips: also extract the horizontally flipped pictures.
            logits: the scores of all classes instead of the features.
            batch_size: pictures per forward pass.
            cache: keep the result in the folder `cache` of the run.
            progress: called with (samples done, samples in all).

        Returns:
            Features (n, d), or (n, 2, d) with flips; scores (n, C) with `logits`.
        """
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
    """`run.transform` with a name that tells one preprocessing from another, for the cache.

    Args:
        run: the run whose preprocessing this is.
    """

    def __init__(self, run: TrainedRun) -> None:
        self._run = run

    def __call__(self, images: Tensor) -> Tensor:
        return self._run.transform(images)

    def fingerprint(self) -> str:
        """What tells this preprocessing from another one.

        Returns:
            A text that changes with the cropping and with every value of mean and deviation.
        """
        settings, rule = self._run.config.data, self._run.normalize
        values = [torch.as_tensor(v).double().flatten().tolist() for v in (rule.mean, rule.std)]
        return f"{settings.augment}:{settings.normalize}:{values}"
