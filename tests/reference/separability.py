"""Angular Fisher score (A.1) and angular visual hardness (1.1), straight from the formulas."""

import math


def _cos(a, b):
    return sum(x * y for x, y in zip(a, b, strict=True)) / (math.hypot(*a) * math.hypot(*b))


def _mean(rows):
    return [sum(column) / len(rows) for column in zip(*rows, strict=True)]


def angular_fisher_score(features, labels):
    rows, whole = features.tolist(), _mean(features.tolist())
    within = between = 0.0
    for c in set(labels.tolist()):
        own = [row for row, y in zip(rows, labels.tolist(), strict=True) if y == c]
        mean = _mean(own)
        within += sum(1 - _cos(row, mean) for row in own)
        between += len(own) * (1 - _cos(mean, whole))
    return within / between


def angular_visual_hardness(features, labels, weight):
    out = []
    for row, y in zip(features.tolist(), labels.tolist(), strict=True):
        angles = [math.acos(max(-1.0, min(1.0, _cos(row, w)))) for w in weight.tolist()]
        out.append(angles[y] / sum(angles))
    return out
