"""Neural collapse from its definitions: covariance matrices, pseudo-inverse, loops."""

from __future__ import annotations

import torch
from torch import Tensor


def measures(x: Tensor, labels: Tensor, weight: Tensor, bias: Tensor) -> dict[str, float]:
    x, weight = x.double(), weight.double()
    classes = sorted(set(labels.tolist()))
    count = len(classes)
    means = [x[labels == c].mean(0) for c in classes]
    middle = sum(means) / count
    between = sum(torch.outer(m - middle, m - middle) for m in means) / count
    within = torch.zeros_like(between)
    for c, m in zip(classes, means, strict=True):
        rows = x[labels == c]
        within += sum(torch.outer(r - m, r - m) for r in rows) / len(rows) / count
    result = {"within_class": float(torch.trace(within @ torch.linalg.pinv(between)) / count)}
    for name, rows in (
        ("mean", [m - middle for m in means]),
        ("weight", [weight[c] for c in classes]),
    ):
        lengths = torch.stack([r.norm() for r in rows])
        result[f"{name}_norms"] = float(lengths.std(unbiased=False) / lengths.mean())
        gaps = [
            abs(float(a @ b / (a.norm() * b.norm())) + 1 / (count - 1))
            for i, a in enumerate(rows)
            for j, b in enumerate(rows)
            if i != j
        ]
        result[f"{name}_angles"] = sum(gaps) / len(gaps)
    m = torch.stack(means) - middle
    w = weight[classes]
    result["duality"] = float((w / w.norm() - m / m.norm()).norm())
    wrong = 0
    for row in x:
        score = [float(weight[c] @ row + bias[c]) for c in classes]
        distance = [float((row - mean).norm()) for mean in means]
        wrong += score.index(max(score)) != distance.index(min(distance))
    result["disagreement"] = wrong / len(x)
    return result
