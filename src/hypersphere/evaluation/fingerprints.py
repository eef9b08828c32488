"""What tells one model, one set of samples or one preprocessing from another."""

from __future__ import annotations

import dataclasses
import enum
import hashlib
import sys
import types
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

# Packages whose code is known by their version.
PACKAGES = ("hypersphere", "torch", "torchvision", "timm")
# What `nn.Module` keeps in a module that is no setting of it, or that `model_hash` has.
_KEPT_BY_TORCH = frozenset(vars(nn.Module()))
_FORWARD_HOOKS = ("_forward_hooks", "_forward_pre_hooks")


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


def code_fingerprint(model: nn.Module) -> str | None:
    """What a model computes beside its weights: a text that two models of one `model_hash` share
    only if they compute the same, or None if that cannot be told.

    Looks at the classes of all modules, their attributes, forward hooks, and buffers that are not
    saved. None if a class is of none of the packages that are known by their version
    (hypersphere, torch, torchvision, timm) and has no method `fingerprint()`, or if an attribute
    or a hook has no `fingerprint`.

    Args:
        model: any module.

    Returns:
        The text, or None.

    >>> code_fingerprint(nn.Linear(2, 2)) == code_fingerprint(nn.Linear(2, 2))
    True
    >>> changed = nn.Linear(2, 2)
    >>> changed.forward = lambda x: 2 * x
    >>> code_fingerprint(changed) is None
    True
    """
    found = []
    if nn.modules.module._global_forward_hooks or nn.modules.module._global_forward_pre_hooks:
        return None
    for name, module in model.named_modules():
        settings = {hooks: list(vars(module)[hooks].values()) for hooks in _FORWARD_HOOKS}
        if callable(own := getattr(module, "fingerprint", None)):
            text = _joined(f"own:{type(module).__qualname__}:{own()}", settings)
        else:
            kinds = [_place(kind) for kind in type(module).__mro__[:-1]]
            settings |= {key: v for key, v in vars(module).items() if key not in _KEPT_BY_TORCH}
            settings |= {key: module._buffers[key] for key in module._non_persistent_buffers_set}
            text = _joined(None if None in kinds else str(kinds), settings)
        if text is None:
            return None
        found.append(f"{name}:{text}")
    return "\n".join(found)


def _place(value: Any) -> str | None:
    """Where a class or function is defined, with the version of its package; None if that does not
    tell its code.
    """
    package = str(value.__module__).split(".")[0]
    version = getattr(sys.modules.get(package), "__version__", None)
    if package not in PACKAGES or version is None:
        return None
    return f"{value.__module__}.{value.__qualname__}:{version}"


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

    None, numbers, texts, types, tensors, arrays, and collections of them are known by their values;
    parts of this package, and dataclasses that are not called, by their type and all their
    attributes; functions and classes of hypersphere, torch, torchvision and timm, and built-in
    functions, by their name; anything with a method `fingerprint()` by what that returns.
    Everything else (lambdas, functions of your own, partials, modules) may differ in ways that
    cannot be seen, and has none.

    Args:
        value: a preprocessing, or an attribute of one.

    Returns:
        The text, or None.

    >>> fingerprint((0.5, "unit")) == fingerprint((0.5, "unit")), fingerprint(lambda x: x)
    (True, None)
    """
    if value is None or isinstance(value, (bool, int, float, complex, str, bytes)):
        return f"{type(value).__name__}:{value!r}"
    if isinstance(value, (torch.dtype, torch.device, torch.memory_format, range, slice)):
        return repr(value)
    if isinstance(value, enum.Enum):
        return _joined(_place(type(value)), {"name": value.name})
    if isinstance(value, np.ndarray) and value.dtype.kind in "biuf":
        value = torch.from_numpy(np.ascontiguousarray(value))
    if isinstance(value, Tensor):
        digest = hashlib.sha256(tensor_bytes(value)).hexdigest()
        return f"tensor:{value.dtype}:{tuple(value.shape)}:{digest}"
    if isinstance(value, (list, tuple)):
        return _joined(type(value).__name__, {str(i): v for i, v in enumerate(value)})
    if isinstance(value, (set, frozenset)):
        texts = [fingerprint(item) for item in value]
        return None if None in texts else f"set({sorted(map(str, texts))})"
    if isinstance(value, dict):
        return _joined("dict", {repr(key): item for key, item in value.items()})
    if isinstance(value, (types.FunctionType, type)):
        return _place(value) if _is_named(value) else None
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
        return _joined(_place(kind), vars(value))
    # What is called, by a method of its own or an inherited one, does what its code says.
    if dataclasses.is_dataclass(value) and not callable(value):
        found = {f.name: getattr(value, f.name) for f in dataclasses.fields(value)}
        return _joined(kind.__qualname__, found | getattr(value, "__dict__", {}))
    return None


def _is_named(value: Any) -> bool:
    """Whether its module has a class or function under its own name."""
    found: Any = sys.modules.get(value.__module__)
    for name in value.__qualname__.split("."):
        found = getattr(found, name, None)
    return found is value


def _joined(kind: str | None, parts: dict[str, Any]) -> str | None:
    """One text of all parts, or None if one of them has none."""
    found = {name: fingerprint(part) for name, part in sorted(parts.items())}
    if kind is None or None in found.values():
        return None
    return f"{kind}({','.join(f'{name}={text}' for name, text in found.items())})"
