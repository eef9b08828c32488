"""Samples from lists and arrays in one tensor; what cannot be one is told in a sentence."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import torch
from torch import Tensor

MOST_TOLD = 3  # kinds of items that a message names


def stack(name: str, items: Any) -> Tensor:
    """Numbers or samples of one shape in one tensor, cut off from any autograd graph.

    Args:
        name: what a message calls them.
        items: an array, a list of tensors or arrays, or (nested) lists of numbers.

    Returns:
        (n, ...), a sample per row.

    Raises:
        ValueError: if the samples are no numbers, or of several shapes.

    >>> stack("features", [[1.0, 2.0], [3.0]])
    Traceback (most recent call last):
    ValueError: features: expected numbers, or samples of one shape; got a list of 2, a list of 1
    """
    try:
        if isinstance(items, np.ndarray):
            return torch.from_numpy(np.ascontiguousarray(items))
        rows = isinstance(items, (list, tuple)) and len(items) > 0
        if rows and isinstance(items[0], (Tensor, np.ndarray)):
            return torch.stack([torch.as_tensor(item).detach() for item in items])
        return torch.as_tensor(items)
    except (RuntimeError, TypeError, ValueError) as error:  # as torch finds what it cannot take
        raise ValueError(
            f"{name}: expected numbers, or samples of one shape; got {_kinds(items)}"
        ) from error


def refuse_mapping(name: str, samples: Any) -> None:
    """Refuse a dictionary, whose entries are no samples.

    Args:
        name: what a message calls the samples.
        samples: anything.

    Raises:
        TypeError: if it is a dictionary.
    """
    if isinstance(samples, Mapping):
        keys = list(samples)
        raise TypeError(
            f"{name}: expected samples in order; got a dictionary with "
            f"{', '.join(map(repr, keys[:MOST_TOLD])) or 'no entries'}: give one of its entries"
        )


def _kinds(items: Any) -> str:
    if isinstance(items, np.ndarray):
        return f"an array of {items.dtype}"
    if not isinstance(items, (list, tuple)):
        return f"a {type(items).__name__}"
    kinds = list(dict.fromkeys(map(_kind, items)))
    return ", ".join(kinds[:MOST_TOLD]) + (", ..." if len(kinds) > MOST_TOLD else "")


def _kind(item: Any) -> str:
    if isinstance(item, (Tensor, np.ndarray)):
        return f"shape {tuple(item.shape)}"
    if isinstance(item, (list, tuple)):
        return f"a list of {len(item)}"
    return type(item).__name__
