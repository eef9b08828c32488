"""Magnitudes h(|x|), Eq. 4.4-4.10: what a neuron makes of the length of its input.

==========  =====  =============================================================  =======  ======
kind        Eq.    h(n), n = |x|                                                  bounded  smooth
==========  =====  =============================================================  =======  ======
sphere      4.4    alpha                                                          yes      yes
ball        4.5    alpha min(n, rho) / rho                                        yes      no
tanh        4.6    alpha tanh(n / rho)                                            yes      yes
linear      4.7    alpha n                                                        no       yes
segmented   4.8    alpha n up to rho, then with slope beta                        no       no
log         4.9    alpha log(1 + n)                                               no       yes
mixed       4.10   alpha n + beta log(1 + n)                                      no       yes
==========  =====  =============================================================  =======  ======

rho is the operator radius, where the slope of h changes (4.3.2). Ball is the segmented magnitude
with slopes alpha / rho and 0, linear the one with beta = alpha.
"""

from __future__ import annotations

from typing import Literal, TypeAlias

import torch
from torch import Tensor

__all__ = [
    "BETA",
    "MAGNITUDE_KINDS",
    "RADIUS_KINDS",
    "MagnitudeKind",
    "check_magnitude",
    "magnitude",
    "magnitude_ratio",
    "magnitude_slope",
]

MagnitudeKind: TypeAlias = Literal["sphere", "ball", "tanh", "linear", "segmented", "log", "mixed"]

MAGNITUDE_KINDS: tuple[str, ...] = (
    "sphere",
    "ball",
    "tanh",
    "linear",
    "segmented",
    "log",
    "mixed",
)
RADIUS_KINDS: tuple[str, ...] = ("ball", "tanh", "segmented")
FLOOR = 1e-18  # its square is a normal float32
BETA = {"segmented": 0.5, "mixed": 1.0}  # the settings of C.2


def magnitude(
    norm: Tensor,
    kind: MagnitudeKind = "sphere",
    alpha: float = 1.0,
    beta: float | None = None,
    radius: float | Tensor = 1.0,
) -> Tensor:
    """h(|x|), Eq. 4.4-4.10; differentiable in norm and radius.

    norm: |x| >= 0, any shape. alpha scales (or is the slope of) h. beta is the second slope of
    "segmented" (0.5 if not given) or the weight of the logarithm in "mixed" (1 if not given).
    radius: rho > 0 of "ball", "tanh" and "segmented", a number or a tensor that broadcasts
    against norm.

    A zero input has no direction, so the sphere's h is 0 there, not alpha.

    >>> n = torch.tensor([0.0, 0.5, 1.0, 3.0])
    >>> magnitude(n, "ball")
    tensor([0.0000, 0.5000, 1.0000, 1.0000])
    >>> magnitude(n, "segmented", beta=0.5)
    tensor([0.0000, 0.5000, 1.0000, 2.0000])
    """
    check_magnitude(kind, alpha, beta, radius)
    beta = BETA.get(kind, 0.0) if beta is None else beta
    if kind == "sphere":
        return _times(alpha, norm.sign())  # 1 for all lengths but 0, with gradient 0
    if kind == "ball":
        return _times(alpha, (norm / radius).clamp_max(1))
    if kind == "tanh":
        return _times(alpha, torch.tanh(norm / radius))
    if kind == "linear":
        return _times(alpha, norm)
    if kind == "segmented":
        return beta * norm + (alpha - beta) * torch.minimum(norm, _tensor(radius, norm))
    if kind == "log":
        return _times(alpha, torch.log1p(norm))
    return _times(alpha, norm) + _times(beta, torch.log1p(norm))


def magnitude_slope(
    norm: Tensor,
    kind: MagnitudeKind = "sphere",
    alpha: float = 1.0,
    beta: float | None = None,
    radius: float | Tensor = 1.0,
) -> Tensor:
    """dh / d|x|, for backward passes written by hand.

    >>> magnitude_slope(torch.tensor([0.5, 3.0]), "segmented", radius=2.0)
    tensor([1.0000, 0.5000])
    """
    beta = BETA.get(kind, 0.0) if beta is None else beta
    if kind == "sphere":
        return torch.zeros_like(norm)
    if kind == "ball":
        inside = alpha / _tensor(radius, norm)
        return torch.where(norm <= radius, inside, norm.new_zeros(()))
    if kind == "tanh":
        radius = _tensor(radius, norm)
        tanh = torch.tanh(norm / radius)
        return (1 - tanh * tanh) * (alpha / radius)
    if kind == "linear":
        return torch.full_like(norm, alpha)
    if kind == "segmented":
        return torch.where(norm <= radius, norm.new_tensor(alpha), norm.new_tensor(beta))
    if kind == "log":
        return alpha / (1 + norm)
    return alpha + beta / (1 + norm)


def magnitude_ratio(
    norm: Tensor,
    kind: MagnitudeKind = "sphere",
    alpha: float = 1.0,
    beta: float | None = None,
    radius: float | Tensor = 1.0,
) -> Tensor:
    """h(|x|) / |x|: with the cosine activation f(w, x) = h(|x|) / |x| (w / |w|)^T x.

    At |x| = 0 it is the limit, the slope of h, so that no small number is divided by another; for
    the sphere, whose limit is infinite, it is 0.

    >>> magnitude_ratio(torch.tensor([0.0, 0.5, 3.0]), "ball", radius=2.0)
    tensor([0.5000, 0.5000, 0.3333])
    """
    if kind == "ball":
        return _times(alpha, torch.maximum(norm, _tensor(radius, norm)).reciprocal())
    if kind == "linear":
        return torch.full_like(norm, alpha)
    if kind == "sphere":
        return alpha / torch.where(norm > 0, norm, torch.inf)
    norm = norm.clamp_min(FLOOR)
    if kind == "segmented":
        beta = BETA["segmented"] if beta is None else beta
        return beta + _times(alpha - beta, (radius / norm).clamp_max(1))
    return magnitude(norm, kind, alpha, beta, radius) / norm


def check_magnitude(
    kind: str,
    alpha: float = 1.0,
    beta: float | None = None,
    radius: float | Tensor = 1.0,
) -> None:
    """Refuse unknown magnitudes and parameters outside the range of Eq. 4.4-4.10."""
    if kind not in MAGNITUDE_KINDS:
        raise ValueError(
            f"unknown magnitude {kind!r}; expected one of {', '.join(MAGNITUDE_KINDS)}"
        )
    if not alpha > 0:
        raise ValueError(f"the {kind} magnitude expects alpha > 0, got alpha={alpha}")
    if beta is not None and kind not in BETA:
        raise ValueError(
            f"the {kind} magnitude has no beta; only {' and '.join(BETA)} do, got beta={beta}"
        )
    if beta is not None and beta < 0:
        raise ValueError(f"the {kind} magnitude expects beta >= 0, got beta={beta}")
    if isinstance(radius, (int, float)) and not radius > 0:
        raise ValueError(f"the {kind} magnitude expects radius > 0, got radius={radius}")


def _times(factor: float, value: Tensor) -> Tensor:
    """factor * value, without a pass over the numbers for the factor 1."""
    return value if factor == 1 else factor * value


def _tensor(value: float | Tensor, like: Tensor) -> Tensor:
    return value if isinstance(value, Tensor) else torch.full((), value).to(like)
