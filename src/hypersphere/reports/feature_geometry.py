"""Uniformity and neural collapse of the test features that a run keeps, as tables of its report."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence

import numpy as np
import torch
from torch import Tensor

from .._reading import Unreadable
from ..evaluation import feature_uniformity, neural_collapse
from ..training.run.checkpoint import RunError, load_weights
from ..training.run.load import find_weights
from .run_data import RunData

__all__ = ["geometry_tables"]

Table = tuple[Sequence[str], Iterable[Sequence[object]]]


def geometry_tables(run: RunData) -> tuple[str, list[Table]]:
    """Uniformity relative to uniform directions, and NC1 to NC4.

    Args:
        run: what was read of a run folder.

    Returns:
        A note, and the tables as header and rows; none if the run keeps no features of two classes.
    """
    kept = run.features.get("directions", run.features.get("features"))
    labels = run.features.get("labels")
    if kept is None or labels is None or kept.ndim != 2 or len(kept) != len(labels):
        return "", []
    features = torch.from_numpy(np.asarray(kept, dtype=np.float64))
    classes = torch.from_numpy(np.asarray(labels).astype(np.int64))
    known = features.isfinite().all(1) & (classes >= 0)
    lengths = _lengths(run, len(features))[known]
    features, classes = features[known], classes[known]
    if features.shape[1] < 2 or len(classes.unique()) < 2:
        return "", []
    spread = feature_uniformity(features, classes)
    weight, bias = _classifier(run, features, classes)
    collapse = neural_collapse(features, classes, weight)
    note = (
        f"Of the directions of {len(features)} test features. Collapse is usually stated of "
        "training features, where it is closer to 0."
    )
    if weight is not None and bias is not None:
        # What the classifier takes a feature for depends on its length
        if bool(lengths.isfinite().all()):
            whole = neural_collapse(features * lengths[:, None], classes, weight, bias)
            collapse.disagreement = whole.disagreement
            note += " NC4 is of the features with their lengths, as the classifier has biases."
        else:
            collapse.disagreement = math.nan
            note += " NC4 is left out: the classifier has biases, and no lengths were kept."
    return note, [(spread.header(), spread.rows()), (collapse.header(), collapse.rows())]


def _lengths(run: RunData, count: int) -> Tensor:
    """What the features were divided by; NaN if the run, of an earlier version, lost it."""
    if "directions" not in run.features:
        return torch.ones(count, dtype=torch.float64)
    kept = run.features.get("lengths")
    if kept is None or kept.shape != (count,) or kept.dtype.kind not in "fiu":
        return torch.full((count,), math.nan, dtype=torch.float64)
    return torch.from_numpy(np.asarray(kept, dtype=np.float64))


def _classifier(
    run: RunData, features: Tensor, classes: Tensor
) -> tuple[Tensor | None, Tensor | None]:
    """The class weights and biases of the last checkpoint, if they fit the features."""
    try:
        weights = load_weights(find_weights(run.path)[0] / "model.safetensors")
    except (OSError, RunError, Unreadable, ValueError) as error:
        if (run.path / "checkpoints").exists():
            run.missing.append(f"the class weights could not be read: {error}")
        return None, None
    weight, bias = weights.get("head.weight"), weights.get("head.bias")
    if weight is None or weight.ndim != 2 or weight.shape[1] != features.shape[1]:
        return None, None
    if len(weight) <= int(classes.max()):
        return None, None
    if bias is None or bias.shape != weight.shape[:1]:
        return weight.double(), None
    return weight.double(), bias.double()
