"""Refusing bad input with the name of the culprit."""

from __future__ import annotations

import torch
from torch import Tensor


def check_features(name: str, features: Tensor, dim: int | None = None) -> Tensor:
    """Features (n, d) that are finite and not empty, as float32 or float64; else a ValueError.

    >>> check_features("probes", torch.tensor([[1.0, float("nan")]]))
    Traceback (most recent call last):
    ValueError: probes: row 0 has NaN or infinite values (1 row in all); look at ...
    """
    features = torch.as_tensor(features)
    if features.ndim != 2 or features.shape[0] == 0 or features.shape[1] == 0:
        raise ValueError(
            f"{name}: expected features (n, d) with n, d >= 1; got {tuple(features.shape)}"
        )
    if not features.is_floating_point():
        raise ValueError(f"{name}: expected floating point features; got {features.dtype}")
    if dim is not None and features.shape[1] != dim:
        raise ValueError(f"{name}: expected dimension {dim}; got {features.shape[1]}")
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
    return features if features.dtype in (torch.float32, torch.float64) else features.float()


def check_labels(name: str, labels: Tensor, count: int) -> Tensor:
    """Whole numbers, one per row."""
    labels = torch.as_tensor(labels)
    if labels.ndim != 1 or len(labels) != count:
        raise ValueError(
            f"{name}: expected one label for each of the {count} rows; "
            f"got shape {tuple(labels.shape)}"
        )
    if labels.is_floating_point() or labels.is_complex():
        raise ValueError(f"{name}: expected whole numbers; got {labels.dtype}")
    return labels.long()


def check_two_classes(name: str, labels: Tensor) -> Tensor:
    """Labels with at least two different values."""
    if len(labels) and bool((labels == labels[0]).all()):
        raise ValueError(
            f"{name}: all {len(labels)} labels are {int(labels[0])}; "
            "at least two classes are needed"
        )
    return labels
