"""Any training state as tensors plus JSON: nothing has to be pickled, so nothing can run on load.

`pack` walks a nested state (dictionaries, lists, tuples, numbers, strings, tensors, NumPy arrays)
and splits it into a JSON tree and a flat dictionary of tensors; `unpack` puts it together again,
exactly.
"""

from __future__ import annotations

import random
from typing import Any

import numpy as np
import torch
from torch import Tensor

__all__ = ["pack", "rng_state", "set_rng_state", "unpack"]

_PLAIN = (bool, int, float, str, type(None))


def pack(state: Any) -> tuple[Any, dict[str, Tensor]]:
    """State -> (JSON tree, tensors by name).

    >>> tree, tensors = pack({"lr": 0.1, "moments": (torch.ones(2), 3)})
    >>> sorted(tensors), unpack(tree, tensors)["moments"][1]
    (['moments.0'], 3)
    """
    tensors: dict[str, Tensor] = {}

    def walk(value: Any, path: str) -> Any:
        if isinstance(value, np.generic):
            value = value.item()
        if isinstance(value, np.ndarray):
            tensors[path] = torch.from_numpy(np.ascontiguousarray(value).copy())
            return {"@array": path}
        if isinstance(value, Tensor):
            tensors[path] = value.detach().to("cpu", copy=True).contiguous()
            return {"@tensor": path}
        if isinstance(value, _PLAIN):
            return value
        if isinstance(value, tuple):
            return {"@tuple": [walk(v, f"{path}.{i}".lstrip(".")) for i, v in enumerate(value)]}
        if isinstance(value, list):
            return [walk(v, f"{path}.{i}".lstrip(".")) for i, v in enumerate(value)]
        if isinstance(value, dict):
            # pairs, not an object: JSON would turn the integer keys of an optimizer into strings
            items = [[k, walk(v, f"{path}.{k}".lstrip("."))] for k, v in value.items()]
            bad = [k for k, _ in items if not isinstance(k, (str, int))]
            if bad:
                raise TypeError(f"state keys must be str or int; got {bad[0]!r} at '{path}'")
            return {"@dict": items}
        raise TypeError(
            f"cannot save a {type(value).__name__} at '{path}': training state holds only "
            "numbers, strings, lists, tuples, dictionaries, tensors and arrays"
        )

    return walk(state, ""), tensors


def unpack(tree: Any, tensors: dict[str, Tensor]) -> Any:
    """The inverse of `pack`."""
    if isinstance(tree, list):
        return [unpack(v, tensors) for v in tree]
    if isinstance(tree, dict):
        ((kind, value),) = tree.items()
        if kind == "@tensor":
            return tensors[value]
        if kind == "@array":
            return tensors[value].numpy()
        if kind == "@tuple":
            return tuple(unpack(v, tensors) for v in value)
        if kind == "@dict":
            return {k: unpack(v, tensors) for k, v in value}
        raise ValueError(f"unknown entry {kind!r} in the saved state")
    return tree


def rng_state() -> dict[str, Any]:
    """Every global random generator: Python, NumPy, torch, and each CUDA device."""
    version, words, gauss = random.getstate()
    name, keys, position, has_gauss, cached = np.random.get_state(legacy=True)  # noqa: NPY002
    return {
        "python": [version, np.asarray(words, dtype=np.int64), gauss],
        "numpy": [name, keys.astype(np.int64), position, has_gauss, cached],  # type: ignore[union-attr]
        "torch": torch.get_rng_state(),
        "cuda": torch.cuda.get_rng_state_all() if torch.cuda.is_available() else [],
    }


def set_rng_state(state: dict[str, Any]) -> None:
    """Put the generators back where `rng_state` saw them."""
    version, words, gauss = state["python"]
    random.setstate((version, tuple(int(w) for w in words), gauss))
    name, keys, position, has_gauss, cached = state["numpy"]
    np.random.set_state(  # noqa: NPY002
        (name, np.asarray(keys).astype(np.uint32), position, has_gauss, cached)
    )
    torch.set_rng_state(state["torch"])
    if state["cuda"] and torch.cuda.is_available():
        torch.cuda.set_rng_state_all(state["cuda"])
