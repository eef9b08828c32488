"""What the chapter on margins proves, as functions one can call (2.2.4, 2.3.3, 2.3.5, B.3)."""

from __future__ import annotations

import math
from typing import Literal

from torch import Tensor

from ..functional.angles import angle, row_norm
from ..functional.margins import margin

__all__ = [
    "angular_margin",
    "automatic_scale",
    "decision_boundary",
    "inter_class_angle",
    "intra_class_angle",
    "m_min_binary",
    "m_min_multiclass",
    "minimum_loss",
    "minimum_scale",
]


def angular_margin(m: float, theta_12: float) -> float:
    """Angle between the decision boundaries of two classes, (m-1)/(m+1) theta_12.

    Args:
        m: multiplicative margin, >= 1.
        theta_12: angle between the two classes, in radians, in [0, pi].

    Returns:
        The angle, in radians.

    >>> angular_margin(3, math.pi / 2) == math.pi / 4
    True
    """
    _check_angle(m, theta_12)
    return (m - 1) / (m + 1) * theta_12


def inter_class_angle(m: float, theta_12: float) -> float:
    """Smallest angle between features of two classes once they are separated: the margin.

    Args:
        m: multiplicative margin, >= 1.
        theta_12: angle between the two classes, in radians, in [0, pi].

    Returns:
        The angle, in radians.
    """
    return angular_margin(m, theta_12)


def intra_class_angle(m: float, theta_12: float) -> float:
    """Largest angle between two features of one class, two classes theta_12 apart (2.21, 2.22).

    In the plane of w_1 and w_2, class 1 (m theta_1 < theta_2) reaches theta_12 / (m + 1) towards
    w_2, and theta_12 / (m - 1) away from it, or (2 pi - theta_12) / (m + 1) once that arc passes
    the far side of w_2.

    Args:
        m: multiplicative margin, >= 1.
        theta_12: angle between the two classes, in radians, in [0, pi].

    Returns:
        The angle, in radians.
    """
    _check_angle(m, theta_12)
    if m == 1:
        return math.pi
    if theta_12 <= (m - 1) / m * math.pi:
        return theta_12 / (m - 1) + theta_12 / (m + 1)
    return (2 * math.pi - theta_12) / (m + 1) + theta_12 / (m + 1)


def m_min_binary(theta_12: float | None = None) -> float:
    """Smallest m for which every angle within a class is below every angle between two classes.

    Property 2: 2 + sqrt(3) for classes that are not nearly opposite (2.21); the bound for all.

    Args:
        theta_12: angle between the two classes, in radians: the m that is needed for it, from 2.21
            or 2.22. Default: the bound for all.

    Returns:
        The smallest m.

    >>> round(m_min_binary(), 4)
    3.7321
    """
    bound = 2 + math.sqrt(3)
    if theta_12 is None:
        return bound
    _check_angle(1, theta_12)
    if theta_12 == 0:
        raise ValueError("two classes with the same direction cannot be separated: theta_12 is 0")
    # 2.21 holds where theta_12 <= (m - 1) / m pi; otherwise 2.22 says m >= 1 + 2 pi / theta_12.
    if theta_12 <= (bound - 1) / bound * math.pi:
        return bound
    return 1 + 2 * math.pi / theta_12


def m_min_multiclass(num_classes: int = 3) -> float:
    """Property 3: m >= 3 for three or more classes spread evenly in the plane (2.23).

    Args:
        num_classes: number of classes, >= 3.

    Returns:
        The smallest m.

    >>> m_min_multiclass()
    3.0
    """
    if num_classes < 3:
        raise ValueError(
            f"property 3 is about 3 or more classes, got {num_classes}: m_min_binary()"
        )
    return 3.0


def decision_boundary(
    x: Tensor,
    w1: Tensor,
    w2: Tensor,
    loss: Literal["softmax", "modified", "a_softmax"] = "a_softmax",
    m: float = 4,
    target: Literal[1, 2] = 1,
    b1: float = 0.0,
    b2: float = 0.0,
) -> Tensor:
    """Table 2.6: positive on the side of `target`, zero on the boundary between two classes.

    - softmax: (w_1 - w_2) x + b_1 - b_2
    - modified: |x| (cos theta_1 - cos theta_2)
    - a_softmax: |x| (cos m theta_1 - cos theta_2) for class 1, likewise for class 2; cos m theta is
      continued beyond pi / m as in Eq. 2.6, so the sign is that of theta_2 - m theta_1

    Args:
        x: features (..., d).
        w1: weight of class 1, (d,).
        w2: weight of class 2, (d,).
        loss: "softmax", "modified" or "a_softmax".
        m: multiplicative margin of "a_softmax", >= 1.
        target: the class, 1 or 2.
        b1: bias of class 1, for "softmax".
        b2: bias of class 2, for "softmax".

    Returns:
        Values (...).
    """
    if target not in (1, 2):
        raise ValueError(f"target is class 1 or 2, got {target}")
    if loss == "softmax":
        value = x @ w1 - x @ w2 + b1 - b2
        return value if target == 1 else -value
    own, other = (w1, w2) if target == 1 else (w2, w1)
    theta, away = angle(x, own.expand_as(x)), angle(x, other.expand_as(x))
    if loss == "modified":
        return row_norm(x) * (theta.cos() - away.cos())
    if loss == "a_softmax":
        return row_norm(x) * (margin(theta.cos(), m) - away.cos())
    raise ValueError(f"Table 2.6 has 'softmax', 'modified' and 'a_softmax'; got {loss!r}")


def minimum_loss(num_classes: int, scale: float) -> float:
    """The least cross entropy of S-Softmax: why B.3 needs a scale.

    Every feature lies on its class, and the classes are as far apart as C directions can be, cos =
    -1 / (C - 1):

    log(1 + (C - 1) exp(-s C / (C - 1)))

    Args:
        num_classes: number of classes C.
        scale: s.

    Returns:
        The loss.

    >>> round(minimum_loss(10, 1.0), 2), round(minimum_loss(10, 30.0), 2)
    (1.38, 0.0)
    """
    if num_classes < 2:
        return 0.0
    others = math.log(num_classes - 1) - scale * num_classes / (num_classes - 1)
    return others + math.log1p(math.exp(-others)) if others > 0 else math.log1p(math.exp(others))


def minimum_scale(num_classes: int, probability: float = 0.99) -> float:
    """The scale below which no feature can give its class this probability.

    Args:
        num_classes: number of classes C.
        probability: of the own class, in (0, 1).

    Returns:
        The scale s.

    >>> round(minimum_scale(10_000, 0.9), 1)
    11.4
    """
    if not 0 < probability < 1:
        raise ValueError(f"probability must be in (0, 1), got {probability}")
    if num_classes < 2:
        return 0.0
    odds = probability * (num_classes - 1) / (1 - probability)
    return (num_classes - 1) / num_classes * math.log(odds)


def automatic_scale(num_classes: int) -> float:
    """The scale that heads choose unless they are given one: `minimum_scale(C, 0.999)`.

    Features on their classes then reach a probability of 0.999, and with m = 0.5 of ArcFace still
    over 0.98. A larger scale reaches more, and its larger gradients drive trainings astray, with an
    additive angle into the trap that docs/heads.md describes: s = 30 and 64 of the papers need a
    network that ends with a BatchNorm.

    Args:
        num_classes: number of classes C; fewer than 10 count as 10.

    Returns:
        The scale s.

    >>> [round(automatic_scale(c), 1) for c in (10, 1000, 100_000)]
    [8.2, 13.8, 18.4]
    """
    return minimum_scale(max(10, num_classes), 0.999)


def _check_angle(m: float, theta_12: float) -> None:
    if not m >= 1 or not 0 <= theta_12 <= math.pi:
        raise ValueError(f"expected m >= 1 and theta_12 in [0, pi] radians, got {m}, {theta_12}")
