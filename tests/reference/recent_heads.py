"""Heads after ArcFace straight from their papers: float64, a sample and a class at a time."""

import math


def cosines(x, w):
    """cos(theta) of each feature and each row, nested lists; 0 for a zero vector."""
    table = []
    for xi in x.double().tolist():
        row = []
        for wj in w.double().tolist():
            nx, nw = math.hypot(*xi), math.hypot(*wj)
            dot = sum(a * b for a, b in zip(xi, wj, strict=True))
            row.append(max(-1.0, min(1.0, dot / (nx * nw))) if nx > 0 and nw > 0 else 0.0)
        table.append(row)
    return table


def lengths(x):
    """|x| of each feature."""
    return [math.hypot(*xi) for xi in x.double().tolist()]


def shifted(cos, m):
    """cos(theta + m); beyond pi - m parallel to the cosine, below theta = -m it is 1."""
    theta = math.acos(cos)
    if theta + m > math.pi:
        return cos - math.cos(math.pi - m) - 1
    return math.cos(max(0.0, theta + m))


def softplus(f):
    """log(1 + exp f)."""
    return max(f, 0.0) + math.log1p(math.exp(-abs(f)))


def cross_entropy(row, y):
    """-log of the softmax of one row of scores."""
    top = max(row)
    return top + math.log(sum(math.exp(f - top) for f in row)) - row[y]


def adaface(x, w, labels, mean, std, m=0.4, h=0.333, scale=64.0):
    """Scores of AdaFace, Eq. 8-10, with the running mean and standard deviation of |x|."""
    out = []
    for row, y, norm in zip(cosines(x, w), labels.tolist(), lengths(x), strict=True):
        q = max(-1.0, min(1.0, h * (min(max(norm, 1e-3), 100.0) - mean) / (std + 1e-3)))
        scores = [scale * c for c in row]
        scores[y] = scale * (shifted(row[y], -m * q) - (m + m * q))
        out.append(scores)
    return out


def magface(x, w, labels, low=0.45, high=0.8, shortest=10.0, longest=110.0, pull=35.0, scale=64.0):
    """Mean loss of MagFace, Eq. 3-6."""
    total = 0.0
    for row, y, norm in zip(cosines(x, w), labels.tolist(), lengths(x), strict=True):
        a = min(max(norm, shortest), longest)
        m = (high - low) / (longest - shortest) * (a - shortest) + low
        scores = [scale * c for c in row]
        scores[y] = scale * shifted(row[y], m)
        total += cross_entropy(scores, y) + pull * (1 / a + a / longest**2)
    return total / len(labels)


def curricularface(x, w, labels, t, m=0.5, scale=64.0):
    """Scores of CurricularFace, Eq. 5: hard classes are multiplied by t + cos."""
    out = []
    for row, y in zip(cosines(x, w), labels.tolist(), strict=True):
        level = shifted(row[y], m)
        scores = [scale * (c * (t + c) if c > level else c) for c in row]
        scores[y] = scale * level
        out.append(scores)
    return out


def sphereface_r(x, w, labels, m=1.5, scale=30.0, version="v1"):
    """Scores of SphereFace-R, versions v1 and v2."""
    out = []
    for row, y in zip(cosines(x, w), labels.tolist(), strict=True):
        if version == "v1":
            scores = [scale * c for c in row]
            scores[y] = scale * math.cos(min(m * math.acos(row[y]), math.pi))
        else:
            scores = [scale * math.cos(math.acos(c) / m) for c in row]
            scores[y] = scale * row[y]
        out.append(scores)
    return out


def widened(cos, t):
    """g of SphereFace2."""
    return 2 * ((cos + 1) / 2) ** t - 1


def sphereface2(x, w, labels, bias, m=0.4, scale=40.0, positive=0.7, t=3.0, margin_type="cosine"):
    """Mean loss of SphereFace2-C, -A and -M."""
    total = 0.0
    for row, y in zip(cosines(x, w), labels.tolist(), strict=True):
        theta = math.acos(row[y])
        if margin_type == "cosine":
            own, others = widened(row[y], t) - m, m
        elif margin_type == "angle":
            assert theta + m <= math.pi
            own, others = widened(math.cos(theta + m), t), 0.0
        else:
            assert m * theta <= math.pi
            own, others = widened(math.cos(m * theta), t), 0.0
        loss = positive * softplus(-scale * own - bias)
        for j, c in enumerate(row):
            if j != y:
                loss += (1 - positive) * softplus(scale * (widened(c, t) + others) + bias)
        total += loss / scale
    return total / len(labels)


def subcenter_arcface(x, w, labels, m=0.5, scale=64.0):
    """Scores with K sub-centers per class, w (C, K, d): the largest cosine of each class counts."""
    tables = [cosines(x, w[:, k]) for k in range(w.shape[1])]
    out = []
    for i, y in enumerate(labels.tolist()):
        best = [max(table[i][j] for table in tables) for j in range(w.shape[0])]
        scores = [scale * c for c in best]
        scores[y] = scale * shifted(best[y], m)
        out.append(scores)
    return out


def soft(x, w, targets, m=0.5, scale=64.0):
    """sum_c p_c L(x, c) of ArcFace, averaged over samples."""
    total = 0.0
    for row, p in zip(cosines(x, w), targets.double().tolist(), strict=True):
        for c, share in enumerate(p):
            scores = [scale * cos for cos in row]
            scores[c] = scale * shifted(row[c], m)
            total += share * cross_entropy(scores, c)
    return total / len(targets)
