"""Few-shot episodes: disjoint support and query, reproducible one by one."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from hypersphere.data import Episode, EpisodeSampler


@given(
    ways=st.integers(1, 5),
    shots=st.integers(1, 4),
    queries=st.integers(1, 4),
    seed=st.integers(0, 9),
)
def test_every_episode_is_what_it_says(ways, shots, queries, seed):
    labels = torch.cat([torch.arange(60) % 6, torch.tensor([6, 6, -1])])  # class 6 is too small
    sampler = EpisodeSampler(labels, ways, shots, queries, episodes=3, seed=seed)
    for episode in sampler:
        assert episode.support.shape == (ways, shots) and episode.query.shape == (ways, queries)
        both = torch.cat([episode.support, episode.query], dim=1)
        assert both.unique().numel() == both.numel()
        assert episode.classes.unique().numel() == ways
        assert (labels[both] == episode.classes[:, None]).all()
    again = EpisodeSampler(labels, ways, shots, queries, episodes=3, seed=seed)
    assert torch.equal(again[2].query, sampler[2].query)


def test_labels_count_the_ways():
    part = torch.zeros(2, 3).long()
    assert Episode.labels(part).tolist() == [0, 0, 0, 1, 1, 1]


def test_too_little_data_is_said_in_numbers():
    labels = torch.arange(40) % 4
    with pytest.raises(ValueError, match="need 5 classes with 6 samples; 4 of 4 have them"):
        EpisodeSampler(labels, ways=5, shots=1, queries=5)
    with pytest.raises(ValueError, match="at least 1"):
        EpisodeSampler(labels, ways=0)
    with pytest.raises(IndexError):
        EpisodeSampler(labels, ways=2, shots=1, queries=1, episodes=2)[2]
