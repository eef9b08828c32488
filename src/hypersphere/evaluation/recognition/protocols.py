"""The four named protocols of face verification, and how a threshold is chosen in each.

All of them compare by the cosine: the squared Euclidean distance of unit vectors is 2 - 2 cos, so a
grid over one is a grid over the other, and the sum and the mean of two flips have one direction.
"""

from __future__ import annotations

import difflib
from dataclasses import dataclass

import torch
from torch import Tensor

from .roc import Roc, roc_curve


@dataclass(frozen=True)
class Protocol:
    """How features of a picture and of its mirror image become an accuracy.

    flips: "concatenate", "sum", "mean" or "unused"; center: subtract the mean of the training
    folds; folds: choose the threshold on the other folds (False: one best threshold for all pairs,
    which is optimistic); grid: candidate thresholds on the cosine (None: every possible one);
    ties: which of several equally good thresholds, "mean" or "strictest".
    """

    name: str
    flips: str = "unused"
    center: bool = False
    folds: bool = True
    grid: tuple[float, float, int] | None = None
    ties: str = "mean"

    def threshold(self, scores: Tensor, same: Tensor) -> float:
        """The threshold with the best accuracy on these pairs."""
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
    """A protocol by name, or itself."""
    if isinstance(protocol, Protocol):
        return protocol
    if protocol not in PROTOCOLS:
        near = difflib.get_close_matches(str(protocol), PROTOCOLS, n=1)
        hint = f"; did you mean {near[0]!r}?" if near else ""
        raise ValueError(f"unknown protocol {protocol!r}: one of {', '.join(PROTOCOLS)}{hint}")
    return PROTOCOLS[protocol]


def correct_at(curve: Roc, thresholds: Tensor) -> Tensor:
    """How many pairs are decided rightly at each threshold (accepted when score >= threshold)."""
    rising = -curve.thresholds.double()
    i = torch.searchsorted(rising, -thresholds, right=True) - 1
    return curve.accepted[i] + curve.negatives - curve.false[i]


def exact_threshold(curve: Roc) -> float:
    """The mean of all best thresholds between the scores: the limit of an ever finer grid.

    Accuracy is constant on each interval (s_{i+1}, s_i] between neighbouring scores; intervals that
    are equally good count by their length.

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
    """(n, 2, d) features of pictures and their mirror images -> (n, 2 d) or (n, d).

    Features (n, d) pass: they are final, whatever the protocol would do with flips.
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


def fold_index(folds: int | Tensor, count: int) -> Tensor:
    """The fold of each pair, (n,): a number of folds cuts the list into equal runs, as LFW's list.

    >>> fold_index(2, 4)
    tensor([0, 0, 1, 1])
    """
    if isinstance(folds, Tensor):
        index = folds.long()
        if index.shape != (count,):
            raise ValueError(f"folds: expected one per pair, ({count},); got {tuple(index.shape)}")
        empty = (torch.bincount(index) == 0).nonzero().flatten().tolist()
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
    """Each set of training folds needs both kinds of pairs."""
    for f in range(int(fold.max()) + 1):
        rest = same[fold != f]
        if bool(rest.all()) or not bool(rest.any()):
            kind = "positive" if bool(rest.all()) else "negative"
            raise ValueError(
                f"folds: without fold {f} only {kind} pairs are left to set a threshold"
            )
