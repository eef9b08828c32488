"""Few-shot classification (7.5.3, F.3): a new linear or cosine classifier on frozen features.

All episodes are trained at once: their classifiers are one (E, way, d) tensor, each with its own
order of mini-batches, so 600 episodes cost as many matrix products as one.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

from .inputs import check_features, check_row_labels, number_names
from .results import Result, percent

METHODS = ("baseline", "baseline++", "nearest_mean")


@dataclass
class FewShotResult(Result):
    """Result of `fewshot`.

    Args:
        method: the classifier.
        way: classes per episode.
        shot: samples per class to learn from.
        queries: samples per class to test on.
        accuracy: mean over the episodes.
        half_width: half width of its 95 % interval.
        episodes: accuracy of each episode.
    """

    method: str
    way: int
    shot: int
    queries: int
    accuracy: float
    half_width: float
    episodes: list[float]

    def rows(self) -> Iterator[Sequence[object]]:
        yield "method", self.method
        yield "episodes", f"{len(self.episodes)} of {self.way}-way {self.shot}-shot"
        yield "accuracy", f"{percent(self.accuracy)} +- {100 * self.half_width:.2f}"


def fewshot(
    features: Tensor,
    labels: Any,
    method: str = "baseline++",
    *,
    way: int = 5,
    shot: int = 5,
    queries: int = 16,
    episodes: int = 600,
    scale: float = 2.0,
    epochs: int = 100,
    lr: float = 1e-2,
    batch_size: int = 4,
    seed: int = 0,
) -> FewShotResult:
    """Accuracy over random episodes of new classes, on features of a frozen network.

    Args:
        features: (n, d).
        labels: (n,) numbers or names.
        method: "baseline" trains scores w . x + b; "baseline++" scale * cos(w, x) (F.3, c = 2);
            "nearest_mean" compares with the class means by the cosine and trains nothing.
        way: classes per episode.
        shot: samples per class to learn from.
        queries: samples per class to test on.
        episodes: how many episodes.
        scale: of the cosine in "baseline++".
        epochs: of SGD with momentum 0.9, dampening 0.9, weight decay 1e-3 (F.3).
        lr: learning rate of SGD.
        batch_size: samples per step of SGD.
        seed: seed of the episodes and of the training.

    Classes with fewer than shot + queries samples are left out.

    Returns:
        Mean accuracy with its interval.

    >>> g = torch.Generator().manual_seed(0)
    >>> labels = torch.arange(8).repeat_interleave(20)
    >>> features = 3 * torch.eye(8)[labels] + 0.1 * torch.randn(160, 8, generator=g)
    >>> fewshot(features, labels, way=5, shot=1, queries=5, episodes=20).accuracy
    1.0
    """
    wide = check_features("features", features)
    features = wide.float()
    lost = (wide != 0).any(1) & (features == 0).all(1)
    if bool(lost.any()) or not bool(features.isfinite().all()):
        raise _out_of_range(wide)
    labels = check_row_labels("labels", number_names(labels)[0], len(features))
    if method not in METHODS:
        raise ValueError(f"unknown method {method!r}: one of {', '.join(METHODS)}")
    for name, number in (("shot", shot), ("queries", queries)):
        if number < 1:
            raise ValueError(f"{name}: expected a whole number >= 1; got {number}")
    generator = torch.Generator().manual_seed(seed)
    index = sample_episodes(labels, way, shot + queries, episodes, generator)
    accuracies = []
    # Some hundred episodes at a time: enough to fill the products, little enough memory.
    for part in index.split(200):
        support, query = part[:, :, :shot], part[:, :, shot:]
        x, z = features[support].flatten(1, 2), features[query].flatten(1, 2)
        y = torch.arange(way).repeat_interleave(shot)
        if method == "nearest_mean":
            means = F.normalize(x.view(len(x), way, shot, -1).mean(2), dim=-1)
            scores = z @ means.transpose(1, 2)
        else:
            cosine = method == "baseline++"
            weight, bias = train_classifiers(
                x, y, way, scale if cosine else None, epochs, lr, batch_size, generator
            )
            scores = classify(z, weight, bias, scale if cosine else None)
        if not bool(scores.isfinite().all()):  # squares in float32, or the training
            raise _out_of_range(wide)
        truth = torch.arange(way).repeat_interleave(queries)
        accuracies.append((scores.argmax(2) == truth).double().mean(1))
    values = torch.cat(accuracies)
    half = 1.96 * float(values.std()) / len(values) ** 0.5 if len(values) > 1 else float("nan")
    return FewShotResult(method, way, shot, queries, float(values.mean()), half, values.tolist())


def _out_of_range(features: Tensor) -> ValueError:
    return ValueError(
        "features: expected lengths near 1, as classifiers are trained in float32; got values up "
        f"to {float(features.abs().max()):.3g}: multiply all features by one number"
    )


def sample_episodes(
    labels: Tensor, way: int, count: int, episodes: int, generator: torch.Generator
) -> Tensor:
    """Random episodes: some classes each, and distinct samples of each class.

    Args:
        labels: (n,); negative ones are left out.
        way: classes per episode.
        count: samples per class.
        episodes: how many episodes.
        generator: of the choices.

    Returns:
        Rows (episodes, way, count).
    """
    if min(way, count, episodes) < 1:
        raise ValueError(
            f"way, samples and episodes: expected >= 1; got {way}, {count}, {episodes}"
        )
    classes = [(labels == c).nonzero().flatten() for c in labels.unique() if c >= 0]
    members = [rows for rows in classes if len(rows) >= count]
    if len(members) < way:
        raise ValueError(
            f"{way}-way episodes need {way} classes with {count} samples (shot + queries); "
            f"{len(members)} of {len(classes)} classes have them"
        )
    chosen = torch.empty(episodes, way, count, dtype=torch.long)
    for e in range(episodes):
        for w, c in enumerate(torch.randperm(len(members), generator=generator)[:way].tolist()):
            order = torch.randperm(len(members[c]), generator=generator)[:count]
            chosen[e, w] = members[c][order]
    return chosen


def classify(x: Tensor, weight: Tensor, bias: Tensor | None, scale: float | None) -> Tensor:
    """Scores w . x + b, or scale * cos(w, x).

    Args:
        x: (E, n, d), the samples of each episode.
        weight: (E, way, d).
        bias: (E, way) or None.
        scale: of the cosine. Default: no cosine.

    Returns:
        (E, n, way).
    """
    if scale is not None:
        return scale * F.normalize(x, dim=-1) @ F.normalize(weight, dim=-1).transpose(1, 2)
    scores = x @ weight.transpose(1, 2)
    return scores if bias is None else scores + bias.unsqueeze(1)


def train_classifiers(
    x: Tensor,
    y: Tensor,
    way: int,
    scale: float | None,
    epochs: int,
    lr: float,
    batch_size: int,
    generator: torch.Generator,
) -> tuple[Tensor, Tensor | None]:
    """Fit the classifiers of all episodes at once.

    Args:
        x: (E, n, d).
        y: (n,), the same in each episode.
        way: number of classes.
        scale: of the cosine. Default: no cosine.
        epochs: passes over the samples.
        lr: learning rate.
        batch_size: samples per step.
        generator: of the start and of the order.

    Returns:
        Weights (E, way, d), and biases (E, way) or None.
    """
    count, n, dim = x.shape
    bound = dim**-0.5  # the default start of a linear layer
    weight = (torch.rand(count, way, dim, generator=generator) * 2 - 1) * bound
    weight.requires_grad_(True)
    bias = None
    parameters = [weight]
    if scale is None:
        bias = ((torch.rand(count, way, generator=generator) * 2 - 1) * bound).requires_grad_(True)
        parameters.append(bias)
    optimizer = torch.optim.SGD(parameters, lr=lr, momentum=0.9, dampening=0.9, weight_decay=1e-3)
    rows = torch.arange(count).unsqueeze(1)
    with torch.enable_grad():
        for _ in range(epochs):
            order = torch.rand(count, n, generator=generator).argsort(1)
            for batch in order.split(batch_size, dim=1):
                scores = classify(x[rows, batch], weight, bias, scale)
                # Mean over a mini-batch, sum over the episodes: they do not see each other.
                loss = F.cross_entropy(scores.flatten(0, 1), y[batch].flatten(), reduction="sum")
                optimizer.zero_grad()
                (loss / batch.shape[1]).backward()
                optimizer.step()
    return weight.detach(), None if bias is None else bias.detach()
