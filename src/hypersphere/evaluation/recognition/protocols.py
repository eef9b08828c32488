"""The four named protocols of face verification, and how a threshold is chosen in each.

All of them compare by the cosine: the squared Euclidean distance of unit vectors is 2 - 2 cos, so a
grid over one is a grid over the other, and the sum and the mean of two flips have one direction.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from ...registry import nearest
from ..inputs import to_int64
from .roc import Roc, roc_curve


@dataclass(frozen=True)
class Protocol:
    """How features of a picture and of its mirror image become an accuracy.

    Args:
        name: what results call it.
        flips: "concatenate", "sum", "mean" or "unused".
        center: subtract the mean of the training folds.
        folds: choose the threshold on the other folds; False: one best threshold for all pairs,
            which is optimistic.
        grid: candidate thresholds on the cosine, (first, last, count). Default: every possible
            one.
        ties: which of several equally good thresholds to take, "mean" or "strictest".
    """

    name: str
    flips: str = "unused"
    center: bool = False
    folds: bool = True
    grid: tuple[float, float, int] | None = None
    ties: str = "mean"

    def threshold(self, scores: Tensor, same: Tensor) -> float:
        """The threshold with the best accuracy on these pairs.

        Args:
            scores: (n,) cosines.
            same: (n,) bool.

        Returns:
            The threshold; a pair is accepted if its score is at least this.
        """
        curve = roc_curve(scores, same)
        if self.grid is None:
            return exact_threshold(curve)
        start, stop, steps = self.grid
        grid = torch.linspace(start, stop, steps, dtype=torch.float64)
        best = grid[(right := correct_at(curve, grid)) == right.max()]
        return float(best.max()) if self.ties == "strictest" else float(best.mean())


PROTOCOLS = {
    protocol.name: protocol
    for protocol in (
        # the dissertation's 2.3.6; 20,001 thresholds over [-1, 1], the mean of the best ones
        Protocol("sphereface", "concatenate", center=True, grid=(-1.0, 1.0, 20_001)),
        # squared distances 0, 0.01, ... 3.99 = cosines 1 ... -0.995; the first of the best ones
        Protocol("insightface", "sum", grid=(-0.995, 1.0, 400), ties="strictest"),
        Protocol("opensphere", "mean", folds=False),
        Protocol("plain"),
    )
}


def get_protocol(protocol: str | Protocol) -> Protocol:
    """A protocol by name.

    Args:
        protocol: a name of `PROTOCOLS`, or a protocol.

    Returns:
        The protocol.
    """
    if isinstance(protocol, Protocol):
        return protocol
    if protocol not in PROTOCOLS:
        near = nearest(str(protocol), PROTOCOLS)
        hint = f"; did you mean {near!r}?" if near else ""
        raise ValueError(f"unknown protocol {protocol!r}: one of {', '.join(PROTOCOLS)}{hint}")
    return PROTOCOLS[protocol]


def correct_at(curve: Roc, thresholds: Tensor) -> Tensor:
    """How many pairs are decided rightly at each threshold (accepted when score >= threshold).

    Args:
        curve: the ROC of the pairs.
        thresholds: (T,).

    Returns:
        Counts (T,).
    """
    rising = -curve.thresholds.double()
    i = torch.searchsorted(rising, -thresholds, right=True) - 1
    return curve.accepted[i] + curve.negatives - curve.false[i]


def exact_threshold(curve: Roc) -> float:
    """The mean of all best thresholds between the scores: the limit of an ever finer grid.

    Accuracy is constant on each interval (s_{i+1}, s_i] between neighboring scores; intervals that
    are equally good count by their length.

    Args:
        curve: the ROC of the pairs.

    Returns:
        The threshold.

    >>> curve = roc_curve(torch.tensor([0.75, 0.25]), torch.tensor([True, False]))
    >>> exact_threshold(curve)
    0.5
    """
    right = curve.accepted + curve.negatives - curve.false
    scores = curve.thresholds.double()
    # The outermost intervals are endless; a small step beyond the scores stands for them.
    step = 1e-6 * max(1.0, float(scores[1:].abs().max()))
    upper = torch.cat([scores[1:2] + step, scores[1:]])
    lower = torch.cat([scores[1:], scores[-1:] - step])
    best = right == right.max()
    length = (upper - lower)[best]
    middle = ((upper + lower) / 2)[best]
    return float((length * middle).sum() / length.sum())


def merge_flips(features: Tensor, flips: str) -> Tensor:
    """One feature per picture from those of the picture and its mirror image.

    Args:
        features: (n, 2, d); features (n, d) pass: they are final, whatever `flips` is.
        flips: "concatenate", "sum", "mean" or "unused".

    Returns:
        (n, 2 d) for "concatenate", else (n, d).
    """
    if features.ndim == 2:
        return features
    if features.ndim != 3 or features.shape[1] != 2:
        raise ValueError(
            "expected features (n, d), or (n, 2, d) for a picture and its mirror image; "
            f"got {tuple(features.shape)}"
        )
    if flips == "concatenate":
        return features.flatten(1)
    if flips == "sum":
        return features.sum(1)
    if flips == "mean":
        return features.mean(1)
    if flips == "unused":
        return features[:, 0]
    raise ValueError(f"flips: one of concatenate, sum, mean, unused; got {flips!r}")


def fold_index(folds: int | Tensor | Sequence[int], count: int) -> Tensor:
    """The fold of each pair.

    Args:
        folds: a number, which cuts the list into equal runs, as LFW's list; or the fold of each
            pair, (n,) as a tensor, array or list.
        count: the number of pairs n.

    Returns:
        The folds (n,), numbered 0, 1, 2, ...

    >>> fold_index(2, 4)
    tensor([0, 0, 1, 1])
    """
    if not isinstance(folds, (int, np.integer)):
        index = torch.as_tensor(folds)
        if index.is_floating_point():
            raise ValueError(f"folds: expected whole numbers; got {index.dtype}")
        index = to_int64("folds", index)
        if index.shape != (count,):
            raise ValueError(f"folds: expected one per pair, ({count},); got {tuple(index.shape)}")
        if int(index.min()) < 0:
            raise ValueError(f"folds: number the folds 0, 1, 2, ...; got {int(index.min())}")
        seen = index.unique()  # not a count of each number up to the largest, which may be huge
        empty = (seen != torch.arange(len(seen), device=seen.device)).nonzero().flatten().tolist()
        if empty:
            raise ValueError(f"folds: fold {empty[0]} is empty; number the folds 0, 1, 2, ...")
        if int(index.max()) == 0:
            raise ValueError("folds: all pairs are in fold 0; at least two folds are needed")
        return index
    if folds < 2 or folds > count:
        raise ValueError(
            f"folds: {count} pairs cannot be cut into {folds} folds without an empty one"
            if folds > count
            else f"folds: expected at least 2; got {folds}"
        )
    return (torch.arange(count) * folds) // count


def check_folds(same: Tensor, fold: Tensor) -> None:
    """Refuse folds without which only one kind of pairs is left.

    Args:
        same: (n,) bool.
        fold: (n,).
    """
    for f in range(int(fold.max()) + 1):
        rest = same[fold != f]
        if bool(rest.all()) or not bool(rest.any()):
            kind = "positive" if bool(rest.all()) else "negative"
            raise ValueError(
                f"folds: without fold {f} only {kind} pairs are left to set a threshold"
            )
