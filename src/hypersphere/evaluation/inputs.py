"""What every evaluation takes: features and labels, checked at the door."""

from __future__ import annotations

import math
from numbers import Real
from pathlib import Path
from types import NoneType
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.utils.data import BatchSampler, DataLoader, IterableDataset, SequentialSampler

from .stacking import refuse_mapping, stack


def collect_rows(rows: Any, name: str = "features") -> Tensor | None:
    """Rows in one tensor, whatever holds them.

    Args:
        rows: a tensor, an array, a list of rows or numbers, a data set (with `take(index)`, or with
            items x or (x, label)), or a DataLoader of batches of them, in order.
        name: what a message calls them. Default: features.

    Returns:
        (n, ...) cut off from any autograd graph; None for paths of pictures, which are no rows.

    >>> collect_rows([torch.ones(2), torch.zeros(2)]).tolist()
    [[1.0, 1.0], [0.0, 0.0]]
    >>> collect_rows(["a.jpg"]) is None
    True
    """
    if isinstance(rows, Tensor):
        return rows.detach()
    if isinstance(rows, np.ndarray):  # first: it has a `take`, too
        return stack(name, rows)
    if isinstance(rows, (str, Path)):
        return None
    refuse_mapping(name, rows)
    if isinstance(rows, DataLoader):
        loader = check_in_order(rows)
        return torch.cat([torch.as_tensor(first_of(item)).detach() for item in loader])
    if hasattr(rows, "take") and hasattr(rows, "__len__"):
        return rows.take(torch.arange(len(rows))).detach()  # type: ignore[no-any-return]
    if isinstance(rows, (list, tuple)) and rows and isinstance(rows[0], (str, Path)):
        return None
    if isinstance(rows, (list, tuple)):
        return stack(name, rows)
    if hasattr(rows, "__getitem__") and hasattr(rows, "__len__"):
        return stack(name, [first_of(rows[i]) for i in range(len(rows))])
    return stack(name, rows)


def check_in_order(loader: DataLoader[Any]) -> DataLoader[Any]:
    """Refuse a DataLoader whose rows may come in another order than those of its data set.

    Args:
        loader: of anything.

    Returns:
        The loader.

    Raises:
        ValueError: if it shuffles, or has a sampler whose order nobody can tell.
    """
    batches: Any = loader.batch_sampler
    # A loader with a batch sampler of its own still has `sampler`, and never asks it; BatchSampler
    # by its exact type, as a class made from it may well order batches in a way of its own.
    sampler: Any = loader.sampler if batches is None else getattr(batches, "sampler", None)
    if loader.batch_size is None and type(sampler) is BatchSampler:
        sampler = sampler.sampler  # whole batches are asked of the data set
    in_order = isinstance(sampler, SequentialSampler) and type(batches) in (BatchSampler, NoneType)
    in_order = in_order or isinstance(loader.dataset, IterableDataset)
    if loader.num_workers > 0 and not getattr(loader, "in_order", True):
        in_order = False  # workers may overtake one another
    if not in_order:
        raise ValueError(
            "this DataLoader shuffles, or has a sampler whose order is unknown, so that features "
            "would not match their labels: make it with shuffle=False and without a sampler (for "
            "some of the rows, of a torch.utils.data.Subset)"
        )
    return loader


def first_of(item: Any) -> Any:
    """The sample of an item x or (x, label, ...).

    Args:
        item: of a data set or a DataLoader.

    Returns:
        x.
    """
    if isinstance(item, dict):
        raise ValueError(
            f"expected samples x or (x, label); got dictionaries with {', '.join(map(str, item))}: "
            "give the tensors alone, such as [item['image'] for item in dataset]"
        )
    return item[0] if isinstance(item, (list, tuple)) else item


def is_number(value: Any) -> bool:
    """Whether something is a real number, which a yes or no is not.

    Args:
        value: anything.

    >>> is_number(0.5), is_number(True), is_number("0.5")
    (True, False, False)
    """
    return isinstance(value, Real) and not isinstance(value, bool)


def check_features(name: str, features: Any, dim: int | None = None) -> Tensor:
    """Refuse features that cannot be evaluated.

    Args:
        name: what a message calls them.
        features: (n, d) tensor, array or nested list of floating point values, or a data set or
            DataLoader of such rows.
        dim: the dimension d they must have. Default: any.

    Returns:
        The features (n, d) as float32 or float64, finite, not empty, and cut off from any autograd
        graph: a result must not keep the network's activations alive.

    Raises:
        ValueError: if the shape or type is wrong, or a value is NaN or infinite.

    >>> check_features("probes", torch.tensor([[1.0, float("nan")]]))
    Traceback (most recent call last):
    ValueError: probes: row 0 has NaN or infinite values (1 row in all); look at ...
    """
    found = collect_rows(features, name)
    if found is None:
        raise ValueError(
            f"{name}: expected features (n, d); got paths of pictures, which a model has to turn "
            "into features first: evaluation.extract(model, paths)"
        )
    features = found
    if features.ndim != 2 or features.shape[0] == 0 or features.shape[1] == 0:
        raise ValueError(
            f"{name}: expected features (n, d) with n, d >= 1; got {tuple(features.shape)}"
        )
    if not features.is_floating_point():
        raise ValueError(f"{name}: expected floating point features; got {features.dtype}")
    if dim is not None and features.shape[1] != dim:
        raise ValueError(f"{name}: expected dimension {dim}; got {features.shape[1]}")
    check_finite(name, features)
    return features if features.dtype in (torch.float32, torch.float64) else features.float()


def check_finite(name: str, features: Tensor) -> None:
    """Refuse rows (n, d) with NaN or infinite values, and say which they are.

    Args:
        name: what a message calls them.
        features: (n, d).
    """
    # A sum is NaN or infinite when a term is: one pass without an (n, d) mask.
    bad = (~features.sum(1).isfinite()).nonzero().flatten()
    bad = bad[~features[bad].isfinite().all(1)]
    if len(bad):
        some = ", ".join(map(str, bad[:5].tolist()))
        count = f"{len(bad)} row{'s' if len(bad) > 1 else ''} in all"
        raise ValueError(
            f"{name}: row {some} has NaN or infinite values ({count}); "
            "look at the model or the pictures behind these rows"
        )


def to_unit_scale(*features: Tensor) -> tuple[list[Tensor], int]:
    """Features over one power of two, so that their squares neither overflow nor vanish.

    Args:
        features: tensors of float32 or float64, finite.

    Returns:
        The tensors, with 1/2 <= largest entry < 1 unless all are zero, and the exponent of 2.

    >>> to_unit_scale(torch.tensor([3.0, 4.0]))
    ([tensor([0.3750, 0.5000])], 3)
    """
    exponent = binary_exponent(*features)
    return [times_power(f, -exponent) for f in features], exponent


def binary_exponent(*features: Tensor) -> int:
    """The exponent of the power of two just above the largest entry; 0 if all are zero.

    Args:
        features: tensors, finite.

    >>> binary_exponent(torch.tensor([3.0, -4.0]))
    3
    """
    return math.frexp(max(float(f.abs().max()) for f in features))[1]


def times_power(features: Tensor, exponent: int) -> Tensor:
    """Features times a power of two, which rounds nothing but what vanishes.

    Args:
        features: of float32 or float64.
        exponent: of 2, as `binary_exponent` gives it, or its negative.

    >>> times_power(torch.tensor([0.375]), 3)
    tensor([3.])
    """
    half = exponent // 2  # two steps: 2**1074 is no number of float64
    return features * 2.0**half * 2.0 ** (exponent - half)


def to_common_type(*features: Tensor) -> list[Tensor]:
    """Features in the widest of their types, so that they can be multiplied.

    Args:
        features: tensors of float32 or float64.

    Returns:
        The same tensors in one type.
    """
    wide = torch.float64 if any(f.dtype == torch.float64 for f in features) else torch.float32
    return [f.to(wide) for f in features]


def number_names(*labels: Any) -> list[Any]:
    """Names as whole numbers; the same name has the same number in all of them.

    For labels that only say who is who: where a label is the number of a class, names cannot tell
    which.

    Args:
        labels: of one set of rows each, such as probes and gallery: lists or arrays of texts, or of
            numbers, which stay as they are.

    Returns:
        The labels, with names numbered in alphabetical order.

    Raises:
        ValueError: if some are names and others numbers.

    >>> number_names(["eve", "ada", "eve"], ["bob", "eve"])
    [tensor([2, 0, 2]), tensor([1, 2])]
    """
    named = [_example_name(one) is not None for one in labels]
    if not any(named):
        return list(labels)
    if not all(named):
        raise ValueError("labels: expected all names or numbers, not both; give one kind of them")
    texts = [[str(name) for name in one] for one in labels]
    number = {name: i for i, name in enumerate(sorted({name for one in texts for name in one}))}
    return [torch.tensor([number[name] for name in one]) for one in texts]


def _example_name(labels: Any) -> str | None:
    """A label that is a text; None if there is none."""
    if isinstance(labels, np.ndarray):
        labels = labels.flatten().tolist() if labels.dtype.kind in "UO" else []
    if not isinstance(labels, (list, tuple)):
        return None
    return next((label for label in labels if isinstance(label, str)), None)


def check_row_labels(name: str, labels: Any, count: int) -> Tensor:
    """Refuse labels that are not one whole number per row.

    Args:
        name: what a message calls them.
        labels: (count,) tensor, array or list.
        count: the number of rows.

    Returns:
        The labels (count,) as int64.
    """
    example = _example_name(labels)
    if example is not None:
        raise ValueError(
            f"{name}: expected whole numbers; got names, such as {example!r}: give the number of "
            "each class"
        )
    labels = torch.as_tensor(labels).detach()
    if labels.ndim != 1 or len(labels) != count:
        raise ValueError(
            f"{name}: expected one label for each of the {count} rows; "
            f"got shape {tuple(labels.shape)}"
        )
    if labels.is_floating_point() or labels.is_complex():
        raise ValueError(f"{name}: expected whole numbers; got {labels.dtype}")
    return to_int64(name, labels)


def to_int64(name: str, numbers: Tensor) -> Tensor:
    """Whole numbers as int64; refuse those that would come out negative.

    Args:
        name: what a message calls them.
        numbers: of any type of whole numbers.

    Returns:
        The numbers as int64.
    """
    found = numbers.long()
    if numbers.dtype == torch.uint64 and bool((found < 0).any()):
        raise ValueError(f"{name}: expected numbers below 2**63; got {max(numbers.tolist())}")
    return found


def check_two_classes(name: str, labels: Tensor) -> Tensor:
    """Refuse labels (n,) that are all the same.

    Args:
        name: what a message calls them.
        labels: (n,).

    Returns:
        The labels.
    """
    if len(labels) and bool((labels == labels[0]).all()):
        raise ValueError(
            f"{name}: all {len(labels)} labels are {int(labels[0])}; "
            "at least two classes are needed"
        )
    return labels
