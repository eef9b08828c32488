"""Features of many samples: extracted in batches, and kept on disk by what made them."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader, IterableDataset

from .._reading import Unreadable, read_tensors
from ..data.image_files import read_images
from .feature_files import save_tensors
from .fingerprints import code_fingerprint, data_hash, fingerprint, model_hash, tensor_bytes
from .inputs import check_in_order, collect_rows, first_of
from .robustness.attacks import frozen
from .stacking import refuse_mapping, stack

Progress = Callable[[int, int], object]
Transform = Callable[[Tensor], Tensor]


def feature_function(model: nn.Module) -> Transform:
    """The part of a model that gives its features.

    Args:
        model: any module.

    Returns:
        `model.features` where that is a method (a `Classifier`), else the model itself.
    """
    function = getattr(model, "features", None)
    # In many networks `features` is a stack of convolutions and not the embedding.
    if function is not None and not isinstance(function, nn.Module):
        return function  # type: ignore[no-any-return]
    return model


@torch.no_grad()
def extract(
    model: nn.Module,
    images: Any,
    *,
    flips: bool = False,
    transform: Transform | None = None,
    batch_size: int = 128,
    device: str | torch.device | None = None,
    logits: bool = False,
    cache: str | Path | None = None,
    progress: Progress | None = None,
) -> Tensor:
    """Features of all samples, in order.

    Args:
        model: with `features(x)` (a `Classifier`), or any module whose output is the feature.
        images: n samples: a tensor or array (n, ...), a list of them, a list of picture files of
            one size, a data set (with `take(index)`, or with items x or (x, label)), or a
            DataLoader that does not shuffle (one of an IterableDataset is read into memory).
        flips: also extract the horizontally flipped pictures.
        transform: from stored pictures to the model's input (`data.Normalize`). Default: uint8
            pictures are scaled to [0, 1].
        batch_size: samples per forward pass; a DataLoader has its own.
        device: where to compute. Default: where the model's parameters are.
        logits: the model's scores instead of its features.
        cache: folder that keeps results by the hash of the model, of the samples and of the
            transform. What has no fingerprint is computed anew: a transform that is a lambda, a
            function of your own, a partial or a module; a model with a class of your own (unless it
            has a method `fingerprint()` that returns a text), a function as an attribute or a
            forward hook; samples of a DataLoader or of a data set without `take`.
        progress: called with (samples done, samples in all).

    Returns:
        Features (n, d) in float32 on the CPU, or (n, 2, d) with those of the mirror images.

    >>> extract(nn.Flatten(), torch.rand(5, 1, 2, 2), flips=True).shape
    torch.Size([5, 2, 4])
    """
    samples = _samples(images)
    count = len(samples)
    if count == 0:
        raise ValueError("images: expected at least one sample; got none")
    path = None
    if cache is not None and (key := _key(model, samples, flips, logits, transform)) is not None:
        path = Path(cache) / f"{key}.safetensors"
        stored = _kept(path, count)
        if stored is not None:
            if progress is not None:
                progress(count, count)
            return stored
    device = device or next((p.device for p in model.parameters()), torch.device("cpu"))
    kind = next((p.dtype for p in model.parameters() if p.is_floating_point()), None)
    function = model if logits else feature_function(model)
    found: Tensor | None = None
    done = 0
    with frozen(model):
        for batch in samples.batches(batch_size):
            x = _prepare(batch, transform).to(device)
            x = x.to(kind) if x.is_floating_point() else x
            out = _flat(function(x))
            if flips:
                out = torch.stack([out, _flat(function(x.flip(-1)))], 1)
            if found is None:
                found = torch.empty(count, *out.shape[1:], dtype=torch.float32)
            found[done : done + len(out)] = out.float().cpu()
            done += len(out)
            if progress is not None:
                progress(done, count)
    if found is None or done != count:
        raise ValueError(f"images: expected {count} samples, as their length says; got {done}")
    if path is not None:
        # The features are found: a folder that cannot be written costs time later, nothing else.
        with suppress(OSError):
            save_tensors(path, {"features": found, "checksum": _checksum(found)})
    return found


def _kept(path: Path, count: int) -> Tensor | None:
    """The features of an earlier call; None if there are none, or not as they were written."""
    try:
        tensors = read_tensors(path)
        features = tensors["features"]
        whole = len(features) == count and torch.equal(tensors["checksum"], _checksum(features))
    except (FileNotFoundError, Unreadable, KeyError, TypeError):
        return None
    return features if whole else None


def _checksum(features: Tensor) -> Tensor:
    return torch.tensor(list(bytes.fromhex(data_hash(features))), dtype=torch.uint8)


def batches(
    images: Any, labels: Tensor, transform: Any = None, batch_size: int = 128
) -> Iterator[tuple[Tensor, Tensor]]:
    """Batches in the model's input space, for `robustness`.

    Args:
        images: n samples, as `extract` takes them.
        labels: (n,).
        transform: from stored pictures to the model's input.
        batch_size: samples per batch.

    Returns:
        Pairs (x, y).
    """
    done = 0
    for batch in _samples(images).batches(batch_size):
        yield _prepare(batch, transform), labels[done : done + len(batch)]
        done += len(batch)


class _Rows:
    """Samples that `take(rows)` gives by their numbers."""

    def __init__(self, count: int, take: Callable[[Tensor], Tensor], source: Any = None) -> None:
        self.count, self.take, self.source = count, take, source

    def __len__(self) -> int:
        return self.count

    def batches(self, size: int) -> Iterator[Tensor]:
        if size < 1 or int(size) != size:
            raise ValueError(f"batch_size: expected a whole number >= 1; got {size!r}")
        for rows in torch.arange(self.count).split(size):
            yield self.take(rows)

    def hash(self) -> str | None:
        """16 hex digits of the samples; None where they may come out differently each time."""
        if self.source is None:
            return None
        if isinstance(self.source, Tensor):
            return data_hash(self.source)
        digest = hashlib.sha256()
        for batch in self.batches(256):
            digest.update(f"{batch.dtype}:{tuple(batch.shape)}".encode())
            digest.update(tensor_bytes(batch))
        return digest.hexdigest()[:16]


class _Loader:
    """Samples of a DataLoader, in its own batches."""

    def __init__(self, loader: DataLoader[Any]) -> None:
        self.loader = check_in_order(loader)

    def __len__(self) -> int:
        return len(self.loader.dataset)  # type: ignore[arg-type]

    def batches(self, size: int) -> Iterator[Tensor]:
        for item in self.loader:
            yield torch.as_tensor(first_of(item))

    def hash(self) -> None:
        return None


def _samples(images: Any) -> _Rows | _Loader:
    if isinstance(images, DataLoader):
        if not isinstance(images.dataset, IterableDataset):
            return _Loader(images)
        images = collect_rows(images, "images")  # a stream does not say how long it is
    if isinstance(images, (list, tuple)) and images and isinstance(images[0], (str, Path)):
        files = [str(path) for path in images]
        return _Rows(len(files), lambda rows: read_images([files[i] for i in rows.tolist()]))
    if isinstance(images, (np.ndarray, list, tuple)):
        images = stack("images", images)
    if isinstance(images, Tensor):
        stored = images
        return _Rows(len(stored), lambda rows: stored[rows], stored)
    if hasattr(images, "take") and hasattr(images, "__len__"):
        # A data set of this package: in memory it is known by its tensor, else by what it reads.
        inside = getattr(images, "images", None)
        return _Rows(len(images), images.take, inside if isinstance(inside, Tensor) else images)
    refuse_mapping("images", images)
    if isinstance(images, (str, Path)):
        raise TypeError(f"images: expected a list of files; got one path: give [{str(images)!r}]")
    if hasattr(images, "__getitem__") and hasattr(images, "__len__"):
        return _Rows(
            len(images),
            lambda rows: stack("images", [first_of(images[i]) for i in rows.tolist()]),
        )
    raise TypeError(
        "images: expected a tensor, an array, a list of samples or paths, a data set or a "
        f"DataLoader; got {type(images).__name__}"
    )


def _flat(out: Tensor) -> Tensor:
    return out.flatten(1) if out.ndim > 2 else out


def _prepare(x: Tensor, transform: Transform | None) -> Tensor:
    if transform is not None:
        return transform(x)
    return x.float() / 255 if x.dtype == torch.uint8 else x


def _key(
    model: nn.Module, samples: _Rows | _Loader, flips: bool, logits: bool, transform: Any
) -> str | None:
    """The name under which a result is kept; None if something cannot be told apart."""
    settings, code = fingerprint(transform), code_fingerprint(model)
    content = None if settings is None or code is None else samples.hash()
    if content is None:
        return None
    how = hashlib.sha256(f"{flips}:{logits}:{settings}:{code}".encode()).hexdigest()[:16]
    return f"{model_hash(model)}-{content}-{how}"
