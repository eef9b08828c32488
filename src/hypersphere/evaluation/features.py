"""Features of many samples: extracted once, in batches, and kept on disk by the model's hash."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from .._optional import require
from .robustness.attacks import frozen

Progress = Callable[[int, int], object]


def model_hash(model: nn.Module) -> str:
    """16 hex digits that change with any weight, buffer, layer type or setting a layer prints.

    >>> a, b = nn.Linear(2, 2), nn.Linear(2, 2)
    >>> b.load_state_dict(a.state_dict()) and model_hash(a) == model_hash(b)
    True
    >>> _ = b.weight.data.mul_(2)
    >>> model_hash(a) == model_hash(b)
    False
    """
    digest = hashlib.sha256()
    for name, module in model.named_modules():
        digest.update(f"{name}:{type(module).__qualname__}({module.extra_repr()})\n".encode())
    for name, value in sorted(model.state_dict().items()):
        if isinstance(value, Tensor):
            digest.update(f"{name}:{value.dtype}:{tuple(value.shape)}\n".encode())
            digest.update(tensor_bytes(value))
    return digest.hexdigest()[:16]


def tensor_bytes(tensor: Tensor) -> memoryview:
    """The memory of a tensor of any type, without a copy where it is contiguous on the CPU."""
    flat = tensor.detach().cpu().contiguous().flatten()
    return memoryview(flat.view(torch.uint8).numpy().data) if flat.numel() else memoryview(b"")


def data_hash(images: Tensor) -> str:
    """16 hex digits of the samples' shape, type and values."""
    digest = hashlib.sha256(f"{images.dtype}:{tuple(images.shape)}".encode())
    for part in images.split(1024):
        digest.update(tensor_bytes(part))
    return digest.hexdigest()[:16]


def feature_function(model: nn.Module) -> Callable[[Tensor], Tensor]:
    """`model.features` where there is one (a `Classifier`), else the model itself."""
    function = getattr(model, "features", None)
    # In many networks `features` is a stack of convolutions and not the embedding.
    if function is not None and not isinstance(function, nn.Module):
        return function  # type: ignore[no-any-return]
    return model


@torch.no_grad()
def extract(
    model: nn.Module,
    images: Tensor | Any,
    *,
    flips: bool = False,
    transform: Callable[[Tensor], Tensor] | None = None,
    batch_size: int = 128,
    device: str | torch.device | None = None,
    logits: bool = False,
    cache: str | Path | None = None,
    progress: Progress | None = None,
) -> Tensor:
    """Features (n, d) of all samples, or (n, 2, d) with those of the mirror images.

    Args:
        model: with `features(x)` (a `Classifier`), or any module whose output is the feature.
        images: a tensor (n, ...), or a data set with `take(index)` and a length.
        flips: also extract the horizontally flipped pictures.
        transform: from stored pictures to the model's input (`data.Normalize`); by default uint8
            pictures are scaled to [0, 1].
        logits: the model's scores instead of its features.
        cache: folder that keeps results by the hash of the model and of the samples.
        progress: called with (samples done, samples in all).

    >>> extract(nn.Flatten(), torch.rand(5, 1, 2, 2), flips=True).shape
    torch.Size([5, 2, 4])
    """
    count = len(images)
    if count == 0:
        raise ValueError("images: expected at least one sample; got none")
    path = None
    if cache is not None:
        path = Path(cache) / (_key(model, images, flips, logits, transform) + ".safetensors")
        if path.is_file():
            stored = require("safetensors.torch", extra="train").load_file(path)["features"]
            if progress is not None:
                progress(count, count)
            return stored
    device = device or next((p.device for p in model.parameters()), torch.device("cpu"))
    function = model if logits else feature_function(model)
    found: Tensor | None = None
    with frozen(model):
        for rows in torch.arange(count).split(batch_size):
            x = _prepare(_take(images, rows), transform).to(device)
            out = _flat(function(x))
            if flips:
                out = torch.stack([out, _flat(function(x.flip(-1)))], 1)
            if found is None:
                found = torch.empty(count, *out.shape[1:], dtype=torch.float32)
            found[rows] = out.float().cpu()
            if progress is not None:
                progress(int(rows[-1]) + 1, count)
    assert found is not None  # count > 0
    if path is not None:
        save_tensors(path, {"features": found})
    return found


def _flat(out: Tensor) -> Tensor:
    return out.flatten(1) if out.ndim > 2 else out


def _take(images: Any, rows: Tensor) -> Tensor:
    return images[rows] if isinstance(images, Tensor) else images.take(rows)


def _prepare(x: Tensor, transform: Callable[[Tensor], Tensor] | None) -> Tensor:
    if transform is not None:
        return transform(x)
    return x.float() / 255 if x.dtype == torch.uint8 else x


def _key(model: nn.Module, images: Any, flips: bool, logits: bool, transform: Any) -> str:
    if isinstance(images, Tensor):
        samples = data_hash(images)
    elif isinstance(getattr(images, "images", None), Tensor):
        samples = data_hash(images.images)
    else:
        digest = hashlib.sha256()
        for rows in torch.arange(len(images)).split(256):
            digest.update(tensor_bytes(images.take(rows)))
        samples = digest.hexdigest()[:16]
    how = hashlib.sha256(f"{flips}:{logits}:{_settings(transform)}".encode()).hexdigest()[:8]
    return f"{model_hash(model)}-{samples}-{how}"


def _settings(transform: Any) -> str:
    """What tells one preprocessing from another; tensors by their values."""
    if transform is None:
        return "none"
    if hasattr(transform, "fingerprint"):
        return str(transform.fingerprint())
    parts = [type(transform).__qualname__, getattr(transform, "__qualname__", "")]
    for name, value in sorted(getattr(transform, "__dict__", {}).items()):
        shown = bytes(tensor_bytes(value)).hex() if isinstance(value, Tensor) else repr(value)
        parts.append(f"{name}={shown}")
    return ";".join(parts)


def save_tensors(path: str | Path, tensors: dict[str, Tensor], **metadata: str) -> Path:
    """Write a safetensors file atomically: whoever reads sees the old file or the whole new one."""
    save_file = require("safetensors.torch", extra="train").save_file
    path = Path(path)
    path.parent.mkdir(parents=True, exist_ok=True)
    partial = path.with_name(f".{path.name}.{os.getpid()}.partial")
    try:
        save_file({k: v.contiguous() for k, v in tensors.items()}, partial, metadata or None)
        with open(partial, "rb") as handle:
            os.fsync(handle.fileno())
        os.replace(partial, path)
    finally:
        partial.unlink(missing_ok=True)
    return path


def load_features(path: str | Path) -> dict[str, Tensor]:
    """Named arrays of a .npz or .safetensors file, e.g. features and labels."""
    path = Path(path)
    if not path.is_file():
        raise FileNotFoundError(f"no features at {path}")
    if path.suffix == ".safetensors":
        return require("safetensors.torch", extra="train").load_file(path)  # type: ignore[no-any-return]
    if path.suffix == ".npz":
        import numpy as np

        with np.load(path, allow_pickle=False) as arrays:
            loaded = {name: arrays[name] for name in arrays.files}
        # Names of classes may lie beside the numbers.
        return {k: torch.from_numpy(a) for k, a in loaded.items() if a.dtype.kind in "biuf"}
    raise ValueError(f"{path}: expected .npz or .safetensors; got {path.suffix or 'no ending'!r}")


def load_names(path: str | Path) -> list[str]:
    """A name per row: `names` (text, .npz only), or else `labels` as text; empty without both."""
    if Path(path).suffix == ".npz":
        import numpy as np

        with np.load(path, allow_pickle=False) as arrays:
            if "names" in arrays.files:
                return [str(name) for name in arrays["names"]]
    tensors = load_features(path)
    if "labels" in tensors:
        return [str(label) for label in tensors["labels"].tolist()]
    return [""] * len(pick(tensors, "features", path))


def pick(
    tensors: dict[str, Tensor], name: str, path: str | Path, aliases: Sequence[str] = ()
) -> Tensor:
    """One of the arrays, or an error that says which there are."""
    for key in (name, *aliases):
        if key in tensors:
            return tensors[key]
    raise ValueError(f"{path}: has no array {name!r}; it has: {', '.join(sorted(tensors))}")


def batches(
    images: Any, labels: Tensor, transform: Any = None, batch_size: int = 128
) -> Iterator[tuple[Tensor, Tensor]]:
    """(x, y) in the model's input space, for `robustness`."""
    for rows in torch.arange(len(labels)).split(batch_size):
        yield _prepare(_take(images, rows), transform), labels[rows]
