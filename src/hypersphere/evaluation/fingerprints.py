"""What tells one model, one set of samples or one preprocessing from another."""

from __future__ import annotations

import dataclasses
import hashlib
import types
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from .._version import __version__


def model_hash(model: nn.Module) -> str:
    """16 hex digits that change with any weight, buffer, layer type or setting a layer prints.

    Args:
        model: any module.

    Returns:
        The first 16 hex digits of a SHA-256.

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
    """The memory of a tensor of any type, without a copy where it is contiguous on the CPU.

    Args:
        tensor: any shape and type.

    Returns:
        Its values as bytes.
    """
    flat = tensor.detach().cpu().contiguous().flatten()
    return memoryview(flat.view(torch.uint8).numpy().data) if flat.numel() else memoryview(b"")


def data_hash(images: Tensor) -> str:
    """16 hex digits of the shape, type and values of a tensor.

    Args:
        images: (n, ...).

    Returns:
        The first 16 hex digits of a SHA-256.
    """
    digest = hashlib.sha256(f"{images.dtype}:{tuple(images.shape)}".encode())
    for part in images.split(1024):
        digest.update(tensor_bytes(part))
    return digest.hexdigest()[:16]


def fingerprint(value: Any) -> str | None:
    """A text that two preprocessings share only if they do the same, or None if there is none.

    None, numbers, texts, tensors, arrays, and collections of them are known by their values;
    parts of this package and dataclasses by their type and all their attributes; built-in
    functions by their name; anything with a method `fingerprint()` by what that returns.
    Everything else (lambdas, functions, partials, modules) may differ in ways that cannot be
    seen, and has none.

    Args:
        value: a preprocessing, or an attribute of one.

    Returns:
        The text, or None.

    >>> fingerprint((0.5, "unit")) == fingerprint((0.5, "unit")), fingerprint(lambda x: x)
    (True, None)
    """
    if value is None or isinstance(value, (bool, int, float, complex, str, bytes)):
        return f"{type(value).__name__}:{value!r}"
    if isinstance(value, np.ndarray) and value.dtype.kind in "biuf":
        value = torch.from_numpy(np.ascontiguousarray(value))
    if isinstance(value, Tensor):
        return f"tensor:{value.dtype}:{tuple(value.shape)}:{bytes(tensor_bytes(value)).hex()}"
    if isinstance(value, (list, tuple)):
        return _joined(type(value).__name__, {str(i): v for i, v in enumerate(value)})
    if isinstance(value, dict):
        return _joined("dict", {repr(key): item for key, item in value.items()})
    own = getattr(value, "fingerprint", None)
    if callable(own):
        return f"own:{type(value).__qualname__}:{own()}"
    if isinstance(value, types.BuiltinFunctionType) and isinstance(
        value.__self__, (types.ModuleType, type, type(None))
    ):
        return f"builtin:{value.__module__}.{value.__qualname__}:{torch.__version__}"
    kind = type(value)
    ours = kind.__module__.split(".")[0] == "hypersphere" and not isinstance(value, nn.Module)
    if ours and hasattr(value, "__dict__"):
        return _joined(f"{kind.__module__}.{kind.__qualname__}:{__version__}", vars(value))
    if dataclasses.is_dataclass(value) and "__call__" not in vars(kind):
        names = [f.name for f in dataclasses.fields(value)]
        return _joined(kind.__qualname__, {name: getattr(value, name) for name in names})
    return None


def _joined(kind: str, parts: dict[str, Any]) -> str | None:
    """One text of all parts, or None if one of them has none."""
    found = {name: fingerprint(part) for name, part in sorted(parts.items())}
    if None in found.values():
        return None
    return f"{kind}({','.join(f'{name}={text}' for name, text in found.items())})"
