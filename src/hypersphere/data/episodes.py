"""Few-shot episodes: a few classes, a few labeled samples of each, and samples to classify."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import torch
from torch import Tensor

from ._random import generator


@dataclass(frozen=True)
class Episode:
    """One few-shot task, as indices of samples.

    Row w of `support` and `query` belongs to way w, so ``episode.labels(episode.query)`` are 0, 0,
    ..., 1, 1, ...

    Args:
        classes: (ways,), the class of each way.
        support: (ways, shots), the labeled samples.
        query: (ways, queries), the samples to classify.
    """

    classes: Tensor
    support: Tensor
    query: Tensor

    @staticmethod
    def labels(part: Tensor) -> Tensor:
        """The way of each sample of a flattened part.

        Args:
            part: (ways, k), `support` or `query`.

        Returns:
            (ways k,) int64.
        """
        return torch.arange(part.shape[0]).repeat_interleave(part.shape[1])


class EpisodeSampler:
    """Draw few-shot episodes; episode i depends on (seed, i) only.

    The numbers of section F.3 and its setting [189]: 5 ways, 5 (or 1) shots, 16 queries, 600
    episodes. Classes with fewer than shots + queries samples are left out.

    Args:
        labels: (N,) class of each sample; negative ones are left out.
        ways: classes per episode.
        shots: labeled samples per class.
        queries: samples to classify per class.
        episodes: number of episodes.
        seed: seed of all episodes.

    >>> sampler = EpisodeSampler(torch.arange(200) % 8, ways=5, shots=1, queries=4, episodes=2)
    >>> episode = sampler[0]
    >>> tuple(episode.support.shape), tuple(episode.query.shape), len(sampler)
    ((5, 1), (5, 4), 2)
    """

    def __init__(
        self,
        labels: Tensor,
        ways: int = 5,
        shots: int = 5,
        queries: int = 16,
        episodes: int = 600,
        seed: int = 0,
    ) -> None:
        if min(ways, shots, queries, episodes) < 1:
            raise ValueError(
                "ways, shots, queries and episodes are at least 1; got "
                f"{ways}, {shots}, {queries}, {episodes}"
            )
        labels = labels.cpu()
        known = labels[labels >= 0]
        counts = torch.bincount(known)
        self.classes = (counts >= shots + queries).nonzero().squeeze(1)
        if len(self.classes) < ways:
            raise ValueError(
                f"{ways} ways of {shots} shots + {queries} queries need {ways} classes with "
                f"{shots + queries} samples; {len(self.classes)} of {len(counts)} have them"
            )
        self.members = {int(c): (labels == c).nonzero().squeeze(1) for c in self.classes}
        self.ways, self.shots, self.queries = ways, shots, queries
        self.episodes, self.seed = episodes, seed

    def __len__(self) -> int:
        return self.episodes

    def __getitem__(self, number: int) -> Episode:
        if not 0 <= number < self.episodes:
            raise IndexError(f"episode {number} of {self.episodes}")
        random = generator(self.seed, "episode", number)
        classes = self.classes[torch.randperm(len(self.classes), generator=random)[: self.ways]]
        rows = []
        for label in classes.tolist():
            members = self.members[label]
            order = torch.randperm(len(members), generator=random)
            rows.append(members[order[: self.shots + self.queries]])
        support, query = torch.stack(rows).split([self.shots, self.queries], dim=1)
        return Episode(classes, support, query)

    def __iter__(self) -> Iterator[Episode]:
        return (self[number] for number in range(self.episodes))
