"""Evaluation straight from the definitions: loops over samples, thresholds and pairs."""

from __future__ import annotations

import math

import torch
from torch import Tensor


def cosine(a: Tensor, b: Tensor) -> float:
    a, b = a.double(), b.double()
    scale = float(a.norm() * b.norm())
    return float(a @ b) / scale if scale else 0.0


def accuracy(scores: list[float], same: list[bool], threshold: float) -> float:
    return sum((s >= threshold) == t for s, t in zip(scores, same, strict=True)) / len(same)


def sphereface_accuracies(a: Tensor, b: Tensor, same: list[bool], folds: int = 10) -> list[float]:
    """Concatenated flips, training mean removed, best of 20,001 thresholds on the other folds."""
    n = len(a)
    a, b = a.double().flatten(1), b.double().flatten(1)
    fold = [i * folds // n for i in range(n)]
    found = []
    for f in range(folds):
        train = [i for i in range(n) if fold[i] != f]
        test = [i for i in range(n) if fold[i] == f]
        mean = torch.cat([a[train], b[train]]).mean(0)
        score = [cosine(a[i] - mean, b[i] - mean) for i in range(n)]
        values = torch.tensor([score[i] for i in train], dtype=torch.float64)
        truth = torch.tensor([same[i] for i in train])
        grid = torch.arange(-10_000, 10_001, dtype=torch.float64) / 10_000
        right = ((values >= grid.unsqueeze(1)) == truth).sum(1)
        threshold = float(grid[right == right.max()].mean())
        found.append(accuracy([score[i] for i in test], [same[i] for i in test], threshold))
    return found


def tar_at_far(scores: list[float], same: list[bool], far: float) -> float:
    """The best true accept rate over all thresholds whose false accept rate is at most `far`."""
    positive = [s for s, t in zip(scores, same, strict=True) if t]
    negative = [s for s, t in zip(scores, same, strict=True) if not t]
    best = 0.0
    for threshold in [*scores, math.inf]:
        if sum(s >= threshold for s in negative) <= far * len(negative) + 1e-9:
            best = max(best, sum(s >= threshold for s in positive) / len(positive))
    return best


def rank(probe: Tensor, mates: list[Tensor], strangers: list[Tensor]) -> int:
    """1 + how many strangers score at least as high as the best mate."""
    best = max(cosine(probe, m) for m in mates)
    return 1 + sum(cosine(probe, s) >= best for s in strangers)


def map_at_r(features: Tensor, labels: list[int]) -> float:
    values = []
    for i in range(len(labels)):
        others = [j for j in range(len(labels)) if j != i]
        others.sort(key=lambda j: -cosine(features[i], features[j]))
        relevant = sum(labels[j] == labels[i] for j in others)
        if relevant == 0:
            continue
        total, hits = 0.0, 0
        for place, j in enumerate(others[:relevant], 1):
            if labels[j] == labels[i]:
                hits += 1
                total += hits / place
        values.append(total / relevant)
    return sum(values) / len(values)


def detection_identification_rate(
    probes: Tensor, gallery: Tensor, probe_ids: list[int], gallery_ids: list[int], far: float
) -> float:
    """The best share of known probes named rightly, over thresholds with few enough alarms."""
    known, unknown = [], []
    for p, person in zip(probes, probe_ids, strict=True):
        scores = [cosine(p, g) for g in gallery]
        top = max(range(len(scores)), key=scores.__getitem__)
        if person in gallery_ids:
            known.append((scores[top], gallery_ids[top] == person))
        else:
            unknown.append(scores[top])
    best = 0.0
    for threshold in [*(s for s, _ in known), math.inf]:
        if sum(s >= threshold for s in unknown) <= far * len(unknown) + 1e-9:
            best = max(best, sum(s >= threshold and ok for s, ok in known) / len(known))
    return best
