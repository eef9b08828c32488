"""Figures take plain arrays: whatever numpy or torch gives, checked once."""

from __future__ import annotations

from typing import Any

import numpy as np


def array(values: Any, name: str, ndim: int | tuple[int, ...], kind: type = float) -> np.ndarray:
    """Values as a finite numpy array.

    Args:
        values: what numpy or torch gives.
        name: what a message calls them.
        ndim: the number of dimensions, or several that will do.
        kind: float or int.

    Returns:
        The array.

    Raises:
        ValueError: if it has other dimensions, is empty, or holds NaN or infinite values.
    """
    if hasattr(values, "detach"):
        values = values.detach().cpu().numpy()
    result: np.ndarray = np.asarray(values, dtype=kind)
    wanted = (ndim,) if isinstance(ndim, int) else ndim
    if result.ndim not in wanted:
        shape = " or ".join(f"{n}-dimensional" for n in wanted)
        raise ValueError(f"{name} should be {shape}, got shape {result.shape}")
    if result.size == 0:
        raise ValueError(f"{name} is empty, there is nothing to draw")
    if kind is float and not np.isfinite(result).all():
        raise ValueError(f"{name} holds NaN or infinite values")
    return result


def class_numbers(values: Any, count: int) -> np.ndarray:
    """Labels as an array, one per point.

    Args:
        values: (count,).
        count: the number of points.

    Returns:
        The labels (count,).
    """
    result = array(values, "labels", 1, kind=int)
    if len(result) != count:
        raise ValueError(f"expected one label per point ({count}), got {len(result)}")
    return result


def class_names(classes: Any, count: int) -> list[str]:
    """The name of each class.

    Args:
        classes: names. Default: the numbers of the classes.
        count: the number of classes.

    Returns:
        One text per class.
    """
    return [str(c) for c in classes] if classes is not None else [str(c) for c in range(count)]
