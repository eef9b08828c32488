"""How well classes are separated by angle: angular Fisher score and angular visual hardness.

Both are made of sums, so both also come as objects that take a data set batch by batch.
"""

from __future__ import annotations

from collections.abc import Iterable

import torch
from torch import Tensor

from ...functional.angles import arccos, normalize, pairwise_cosine
from ...functional.labels import check_labels
from ..inputs import check_finite

__all__ = [
    "AngularFisherScore",
    "AngularVisualHardness",
    "angular_fisher_score",
    "angular_visual_hardness",
]


class AngularFisherScore:
    """S_w / S_b of Eq. A.1, batch by batch: lower is more discriminative.

    S_w = sum_i sum_{x in class i} (1 - cos(x, m_i)), S_b = sum_i n_i (1 - cos(m_i, m)), with m_i
    the mean vector of class i and m that of all features. One pass suffices, because the sum of
    cos(x, m_i) over a class is (sum of x/|x|) . m_i/|m_i|: per class it keeps two sums, of x and of
    x/|x|, in float64, for the classes that were seen, however large their numbers. A feature of
    length zero has cosine 0 with everything.

    >>> score = AngularFisherScore()
    >>> for angle in (0.0, 0.1):
    ...     x = torch.tensor([[1.0, angle], [angle, 1.0]])
    ...     score.update(x, torch.tensor([0, 1]))
    >>> round(score.compute(), 4)
    0.0048
    """

    def __init__(self) -> None:
        self.classes = torch.zeros(0, dtype=torch.long)  # the numbers seen, in order
        self.counts = torch.zeros(0, dtype=torch.long)
        self.sums = torch.zeros(0, 0, dtype=torch.float64)  # of x, per class
        self.directions = torch.zeros(0, 0, dtype=torch.float64)  # of x / |x|, per class

    @torch.no_grad()
    def update(self, features: Tensor, labels: Tensor) -> None:
        """Add a batch.

        Args:
            features: (B, d).
            labels: (B,) class numbers from 0 on.
        """
        _check(features, labels)
        if len(labels) == 0:
            return
        x = features.detach().to(torch.float64)
        y = labels.to(x.device).long()
        if int(y.min()) < 0:
            raise ValueError(f"labels are numbers of classes from 0 on, got {int(y.min())}")
        place = self._make_room(y, x)
        self.counts.index_add_(0, place, torch.ones_like(place))
        self.sums.index_add_(0, place, x)
        self.directions.index_add_(0, place, normalize(x))

    def _make_room(self, y: Tensor, x: Tensor) -> Tensor:
        """Make a row for each class that is new; the row of each of y."""
        if self.sums.shape[1] not in (0, x.shape[1]):
            raise ValueError(
                f"expected features of dimension {self.sums.shape[1]} as before, got {x.shape[1]}"
            )
        known = self.classes.to(x.device)
        self.classes = torch.cat([known, y]).unique()
        if len(self.classes) > len(known):
            kept = torch.searchsorted(self.classes, known)
            for name in ("sums", "directions"):
                new = x.new_zeros(len(self.classes), x.shape[1])
                if len(known):
                    new[kept] = getattr(self, name)
                setattr(self, name, new)
            counts = torch.zeros_like(self.classes)
            counts[kept] = self.counts.to(x.device)
            self.counts = counts
        return torch.searchsorted(self.classes, y)

    def merge(self, other: AngularFisherScore) -> None:
        """Add what another process or another part of the data has seen.

        Args:
            other: its score.
        """
        if len(other.counts) == 0:
            return
        place = self._make_room(other.classes, other.sums)
        self.counts[place] += other.counts
        self.sums[place] += other.sums
        self.directions[place] += other.directions

    def scatters(self) -> tuple[float, float]:
        """The scatter within and between classes.

        Returns:
            S_w and S_b.
        """
        if len(self.classes) < 2:
            raise ValueError(
                f"the angular Fisher score compares classes: it needs features of 2 or more, "
                f"got {len(self.classes)}"
            )
        n, sums = self.counts.to(torch.float64), self.sums
        everything = sums.sum(0)
        if not bool(sums.isfinite().all() and everything.isfinite().all()):
            raise ValueError(
                "features: expected values whose sum over a class is below 1.8e308, the end of "
                "float64; got larger ones: divide all features by one number"
            )
        means = normalize(sums)
        within = n.sum() - (self.directions * means).sum()
        between = (n * (1 - means @ normalize(everything))).sum()
        return float(within), float(between)

    def compute(self) -> float:
        """The score of everything seen.

        Returns:
            S_w / S_b; infinite where all class means have one direction, NaN where none has any.
        """
        within, between = self.scatters()
        if not bool(self.sums.any()):
            return float("nan")
        return within / between if between > 0 else float("inf")


class AngularVisualHardness:
    """theta(w_y, x) / sum_i theta(w_i, x), Eq. 1.1, batch by batch: smaller is easier.

    Args:
        weight: (C, d), the classifier of a class per row; a bias plays no part.
        chunk: classes are taken this many at a time, so the (B, C) angles are never all in memory.
    """

    def __init__(self, weight: Tensor, chunk: int = 4096) -> None:
        if weight.ndim != 2 or weight.shape[0] < 1:
            raise ValueError(f"expected weight (C, d), a class per row; got {tuple(weight.shape)}")
        check_finite("weight", weight.detach())
        self.weight, self.chunk = weight.detach(), chunk
        self.total = torch.zeros(weight.shape[0], dtype=torch.float64)
        self.counts = torch.zeros(weight.shape[0], dtype=torch.long)

    @torch.no_grad()
    def update(self, features: Tensor, labels: Tensor) -> Tensor:
        """Add a batch.

        Args:
            features: (B, d).
            labels: (B,) class numbers.

        Returns:
            The hardness of each sample, (B,).
        """
        _check(features, labels)
        if features.shape[1] != self.weight.shape[1]:
            raise ValueError(
                f"expected features of shape (B, {self.weight.shape[1]}) like the class weights "
                f"{tuple(self.weight.shape)}, got {tuple(features.shape)}"
            )
        check_labels(labels, self.weight.shape[0])
        x = features.detach().to(torch.float64)  # so that angles down to 1e-8 are right
        y = labels.to(x.device).long()
        everything, own = x.new_zeros(len(x)), x.new_zeros(len(x))
        for start in range(0, self.weight.shape[0], self.chunk):
            w = self.weight[start : start + self.chunk].to(x)
            angles = arccos(pairwise_cosine(x, w))
            everything += angles.sum(1)
            here = (y >= start) & (y < start + len(w))
            place = (y - start).clamp(0, len(w) - 1)[:, None]
            own = torch.where(here, angles.gather(1, place)[:, 0], own)
        # No angle at all: one class, and the feature right on it.
        hardness = torch.where(everything > 0, own / everything, torch.zeros_like(own))
        self.total.index_add_(0, y.cpu(), hardness.cpu())
        self.counts += torch.bincount(y.cpu(), minlength=len(self.counts))
        return hardness.to(torch.promote_types(features.dtype, torch.float32))

    def compute(self) -> float:
        """The mean over everything seen.

        Returns:
            The mean hardness.
        """
        seen = int(self.counts.sum())
        if seen == 0:
            raise ValueError("no samples yet: call update(features, labels) first")
        return float(self.total.sum()) / seen

    def by_class(self) -> Tensor:
        """The mean of every class.

        Returns:
            (C,); NaN where no sample was seen.
        """
        return self.total / torch.where(self.counts > 0, self.counts.double(), torch.nan)


def angular_fisher_score(
    features: Tensor | Iterable[tuple[Tensor, Tensor]], labels: Tensor | None = None
) -> float:
    """Angular Fisher score S_w / S_b, Eq. A.1; see :class:`AngularFisherScore`.

    Args:
        features: (N, d), or an iterable of pairs (features, labels).
        labels: (N,) class numbers from 0 on.

    Returns:
        The score; lower is more discriminative.

    >>> x = torch.tensor([[1.0, 0.0], [1.0, 0.1], [0.0, 1.0], [0.1, 1.0]])
    >>> round(angular_fisher_score(x, torch.tensor([0, 0, 1, 1])), 4)
    0.0048
    """
    score = AngularFisherScore()
    for x, y in _batches(features, labels):
        score.update(x, y)
    return score.compute()


def angular_visual_hardness(
    features: Tensor | Iterable[tuple[Tensor, Tensor]],
    labels: Tensor | None = None,
    weight: Tensor | None = None,
) -> Tensor:
    """Angular visual hardness of each sample (N,), Eq. 1.1; see :class:`AngularVisualHardness`.

    Args:
        features: (N, d), or an iterable of pairs (features, labels).
        labels: (N,) class numbers.
        weight: (C, d), the classifier of a class per row.

    Returns:
        The hardness of each sample, (N,), in [0, 1].

    >>> angular_visual_hardness(torch.tensor([[1.0, 1.0]]), torch.tensor([0]), torch.eye(2))
    tensor([0.5000])
    """
    if weight is None:
        raise ValueError("angular_visual_hardness needs weight (C, d), e.g. head.weight")
    hardness = AngularVisualHardness(weight)
    found = [hardness.update(x, y) for x, y in _batches(features, labels)]
    return torch.cat(found) if found else torch.zeros(0)


def _batches(
    features: Tensor | Iterable[tuple[Tensor, Tensor]], labels: Tensor | None
) -> Iterable[tuple[Tensor, Tensor]]:
    if not isinstance(features, Tensor):
        return features
    if labels is None:
        raise ValueError("labels (N,) are needed beside features (N, d)")
    _check(features, labels)
    size = 8192  # bounds the copies in float64
    return zip(features.split(size), labels.split(size), strict=True)


def _check(features: Tensor, labels: Tensor) -> None:
    if features.ndim != 2 or tuple(labels.shape) != (features.shape[0],):
        raise ValueError(
            f"expected features (N, d) and labels (N,), got {tuple(features.shape)} and "
            f"{tuple(labels.shape)}"
        )
    check_finite("features", features.detach())
