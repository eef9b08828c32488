"""Margins and objectives straight from the equations: float64, a sample and a class at a time."""

import math

import torch


def g(theta: float, kind: str, k: float = 0.5) -> float:
    """Eq. 4.11-4.14."""
    if kind == "linear":
        return -2 / math.pi * theta + 1
    if kind == "cosine":
        return math.cos(theta)
    if kind == "sigmoid":
        a = math.exp(-math.pi / (2 * k))
        b = math.exp(theta / k - math.pi / (2 * k))
        return (1 + a) / (1 - a) * (1 - b) / (1 + b)
    return math.copysign(math.cos(theta) ** 2, math.cos(theta))


def psi_2_6(theta: float, m: int) -> float:
    """(-1)^k cos(m theta) - 2k on [k pi / m, (k + 1) pi / m], Eq. 2.6."""
    for k in range(m):
        if k * math.pi / m <= theta <= (k + 1) * math.pi / m:
            return (-1) ** k * math.cos(m * theta) - 2 * k
    raise AssertionError(theta)


def psi(theta: float, m: float = 1, shift: float = 0, subtract: float = 0, kind="cosine", k=0.5):
    """g(m theta + shift - k pi) - 2k - subtract; for m = 1 parallel to g beyond pi - shift."""
    if m == 1 and theta > math.pi - shift:
        return g(theta, kind, k) - g(math.pi - shift, kind, k) - 1 - subtract
    phi = m * theta + shift
    turns = min(math.floor(phi / math.pi), math.ceil(m + shift / math.pi) - 1)
    return g(phi - turns * math.pi, kind, k) - 2 * turns - subtract


def logits(
    x, w, labels, *, scale=None, unit=True, bias=None, kind="cosine", k=0.5, lam=0.0, **margin
):
    """(B, C) scores of the objective with the margin on the target; lists and loops only."""
    out = torch.zeros(len(x), len(w), dtype=torch.float64)
    for i, xi in enumerate(x.double().tolist()):
        for j, wj in enumerate(w.double().tolist()):
            nx, nw = math.hypot(*xi), math.hypot(*wj)
            dot = sum(a * b for a, b in zip(xi, wj, strict=True))
            cos = dot / (nx * nw) if nx > 0 and nw > 0 else 0.0
            theta = math.acos(max(-1.0, min(1.0, cos)))
            value = g(theta, kind, k)
            if labels is not None and int(labels[i]) == j:
                value = (lam * value + psi(theta, kind=kind, k=k, **margin)) / (1 + lam)
            length = (nx if scale is None else scale) * (1 if unit else nw)
            out[i, j] = length * value + (0.0 if bias is None else bias[j].item())
    return out


def cross_entropy(scores, labels):
    """Eq. 2.1 averaged over the samples."""
    total = 0.0
    for row, y in zip(scores.tolist(), labels.tolist(), strict=True):
        top = max(row)
        total += top + math.log(sum(math.exp(f - top) for f in row)) - row[y]
    return total / len(labels)
