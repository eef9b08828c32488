"""Farthest-point sampling and ball query, one point at a time."""

import math


def farthest_points(points, count):
    """points: list of coordinate lists."""
    picked = [0]
    while len(picked) < count:
        distances = [min(math.dist(p, points[i]) for i in picked) for p in points]
        picked.append(max(range(len(points)), key=lambda i: (distances[i], -i)))
    return picked


def ball_query(points, center, radius, count):
    inside = [i for i, p in enumerate(points) if math.dist(p, center) < radius]
    first = inside[0] if inside else 0
    return (inside + [first] * count)[:count]
