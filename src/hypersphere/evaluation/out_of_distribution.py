"""Out-of-distribution detection from features: is a sample of the kind the network was trained on?

Four scores, higher for samples that look like the training set:

    knn          cosine to the k-th nearest training feature (Sun et al., ICML 2022)
    cosine       largest cosine to a class mean
    mahalanobis  minus the smallest distance to a class mean in the metric of the pooled covariance
                 (Lee et al., NeurIPS 2018)
    vmf          log likelihood of the direction under a mixture of von Mises-Fisher distributions,
                 one for each class
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from ..functional import normalize, vmf_concentration, vmf_log_normalizer
from .inputs import check_features, check_row_labels, to_common_type
from .recognition.roc import roc_curve
from .recognition.search import search
from .results import Result, percent

__all__ = ["METHODS", "OutOfDistributionResult", "familiarity", "out_of_distribution"]

METHODS = ("knn", "cosine", "mahalanobis", "vmf")
# Concentrations beyond this tell of too few samples, not of a narrow class.
MAX_CONCENTRATION = 1e5


@dataclass
class OutOfDistributionResult(Result):
    """Result of :func:`out_of_distribution`.

    Args:
        method: the score.
        auroc: chance that a test sample scores higher than one of the other set; 0.5 is guessing.
        fpr95: share of the other set that is accepted where 95 % of the test samples are.
        threshold: the score at that point.
        test: number of samples of the test set.
        other: number of samples of the other set.
    """

    method: str
    auroc: float
    fpr95: float
    threshold: float
    test: int
    other: int

    def rows(self) -> Iterator[Sequence[object]]:
        yield "score", self.method
        yield "AUROC", percent(self.auroc)
        yield "FPR at 95 % TPR", percent(self.fpr95)
        yield "threshold", f"{self.threshold:.4f}"
        yield "samples", f"{self.test} against {self.other}"


@torch.no_grad()
def out_of_distribution(
    train: Tensor,
    test: Tensor,
    other: Tensor,
    method: str = "knn",
    labels: Tensor | None = None,
    k: int = 50,
) -> OutOfDistributionResult:
    """How well features tell samples of another set from those of the test set.

    Args:
        train: (n, d) features of training samples.
        test: (t, d) features of test samples of the same kind; the positives.
        other: (o, d) features of another set; the negatives.
        method: "knn", "cosine", "mahalanobis" (classes must have some spread) or "vmf".
        labels: (n,) classes of the training samples. Default: all are one class. "knn" does not
            use them.
        k: which nearest neighbor "knn" takes; at most n.

    Returns:
        AUROC and the false-positive rate at 95 % true positives.

    >>> train, other = torch.eye(2).repeat(10, 1), torch.tensor([[-1.0, 0.0], [0.0, -1.0]])
    >>> result = out_of_distribution(train, train[:4], other, k=3)
    >>> result.auroc, result.fpr95
    (1.0, 0.0)
    """
    known = familiarity(train, test, method, labels, k)
    strange = familiarity(train, other, method, labels, k)
    scores = torch.cat([known, strange])
    same = torch.arange(len(scores)) < len(known)
    # At least 95 % of the test samples are at or above this score
    index = -(-95 * len(known) // 100) - 1
    threshold = float(known.sort(descending=True).values[index])
    return OutOfDistributionResult(
        method=method,
        auroc=float(roc_curve(scores, same).area()),
        fpr95=float((strange >= threshold).double().mean()),
        threshold=threshold,
        test=len(known),
        other=len(strange),
    )


@torch.no_grad()
def familiarity(
    train: Tensor,
    features: Tensor,
    method: str = "knn",
    labels: Tensor | None = None,
    k: int = 50,
) -> Tensor:
    """The score of each sample: higher if it looks like the training set.

    Args:
        train: (n, d) features of training samples.
        features: (m, d) features of the samples in question.
        method: "knn", "cosine", "mahalanobis" or "vmf".
        labels: (n,) classes of the training samples. Default: all are one class.
        k: which nearest neighbor "knn" takes; at most n.

    Returns:
        (m,) scores in float64.
    """
    if method not in METHODS:
        raise ValueError(f"method is one of {', '.join(METHODS)}; got {method!r}")
    train = check_features("train", train)
    features = check_features("features", features, train.shape[1])
    train, features = to_common_type(train, features)
    if method == "knn":
        if not k >= 1:
            raise ValueError(f"k is the number of a neighbor, at least 1; got {k}")
        unit, known = normalize(features), normalize(train)
        return search(unit, known, min(k, len(train)))[0][:, -1].double().cpu()
    if labels is None:
        labels = torch.zeros(len(train), dtype=torch.long)
    labels = check_row_labels("labels", labels, len(train)).to(train.device)
    index = torch.unique(labels, return_inverse=True)[1]
    score = {"cosine": _cosine, "mahalanobis": _mahalanobis, "vmf": _vmf}[method]
    return score(train.double(), index, features.double()).cpu()


def _class_means(rows: Tensor, index: Tensor) -> tuple[Tensor, Tensor]:
    """Means (C, d) and counts (C,) of the rows of each class."""
    counts = torch.bincount(index).double()
    total = rows.new_zeros(len(counts), rows.shape[1]).index_add_(0, index, rows)
    return total / counts[:, None], counts


def _cosine(train: Tensor, index: Tensor, features: Tensor) -> Tensor:
    means, _ = _class_means(normalize(train), index)
    return (normalize(features) @ normalize(means).T).amax(1)


def _mahalanobis(train: Tensor, index: Tensor, features: Tensor) -> Tensor:
    means, _ = _class_means(train, index)
    residual = train - means[index]
    covariance = residual.T @ residual / len(train)
    spread = covariance.diagonal().mean()
    # Within rounding of the means: equal rows need not give exactly 0
    if not bool(spread > 1e-24 * train.square().mean()):
        raise ValueError(
            "mahalanobis measures in units of the spread within classes; the training features of "
            "each class are all the same, so there is none. Take method cosine or knn"
        )
    # Directions without any spread count as if they had a little: the covariance may be singular
    covariance.diagonal().add_(1e-6 * spread)
    factor = torch.linalg.cholesky(covariance)

    def whiten(rows: Tensor) -> Tensor:
        return torch.linalg.solve_triangular(factor, rows.T, upper=False).T

    return -torch.cdist(whiten(features), whiten(means)).amin(1)


def _vmf(train: Tensor, index: Tensor, features: Tensor) -> Tensor:
    means, counts = _class_means(normalize(train), index)
    length = means.norm(dim=1).clamp(0, 1 - 1e-9)
    kappa = vmf_concentration(length, train.shape[1]).clamp(0, MAX_CONCENTRATION)
    weight = (counts / counts.sum()).log() - vmf_log_normalizer(kappa, train.shape[1])
    return (weight + kappa * (normalize(features) @ normalize(means).T)).logsumexp(1)
