"""Decoupled operators patch by patch in float64, straight from the equations."""

import itertools
import math

import torch
from torch import Tensor
from torch.nn import functional as F

SPATIAL_PADDING = {
    "zeros": "constant",
    "reflect": "reflect",
    "replicate": "replicate",
    "circular": "circular",
}


def angular(theta: float, kind: str, k: float = 0.5) -> float:
    """Eq. 4.11-4.14, in theta."""
    if kind == "linear":
        return -2 / math.pi * theta + 1
    if kind == "cosine":
        return math.cos(theta)
    if kind == "sigmoid":
        a = math.exp(-math.pi / (2 * k))
        e = math.exp(theta / k - math.pi / (2 * k))
        return (1 + a) / (1 - a) * (1 - e) / (1 + e)
    if kind == "square_cosine":
        return math.copysign(1.0, math.cos(theta)) * math.cos(theta) ** 2
    raise AssertionError(kind)


def magnitude(norm: float, kind: str, alpha: float, beta: float | None, rho: float) -> float:
    """Eq. 4.4-4.10, in |x|."""
    if kind == "sphere":
        return alpha
    if kind == "ball":
        return alpha * min(norm, rho) / rho
    if kind == "tanh":
        return alpha * math.tanh(norm / rho)
    if kind == "linear":
        return alpha * norm
    if kind == "segmented":
        beta = 0.5 if beta is None else beta
        return alpha * norm if norm <= rho else beta * norm + alpha * rho - beta * rho
    if kind == "log":
        return alpha * math.log(1 + norm)
    if kind == "mixed":
        beta = 1.0 if beta is None else beta
        return alpha * norm + beta * math.log(1 + norm)
    raise AssertionError(kind)


def weighted_magnitude(
    w_norm: float,
    x_norm: float,
    kind: str,
    alpha: float,
    beta: float | None,
    rho: float,
    weighted: str | None,
) -> float:
    """4.3.5: |w| brought back."""
    if weighted is None:
        return magnitude(x_norm, kind, alpha, beta, rho)
    if weighted == "linear":
        return w_norm * magnitude(x_norm, kind, alpha, beta, rho)
    if weighted == "nonlinear":  # 4.15
        return magnitude(w_norm * x_norm, kind, alpha, beta, rho)
    if weighted == "nonlinear_separate":  # 4.16
        return (
            magnitude(w_norm, kind, alpha, beta, rho)
            * magnitude(x_norm, kind, alpha, beta, rho)
            / alpha
        )
    raise AssertionError(weighted)


def operator(
    w: Tensor,
    x: Tensor,
    magnitude_kind: str = "sphere",
    angular_kind: str = "cosine",
    alpha: float = 1.0,
    beta: float | None = None,
    rho: float = 1.0,
    k: float = 0.5,
    weighted: str | None = None,
) -> float:
    """f(w, x) of one filter and one patch, both as vectors; 0 if either is zero."""
    w_norm, x_norm = (
        math.sqrt(sum(v * v for v in w.tolist())),
        math.sqrt(sum(v * v for v in x.tolist())),
    )
    if w_norm == 0 or x_norm == 0:
        return 0.0
    dot = sum(a * b for a, b in zip(w.tolist(), x.tolist(), strict=True))
    theta = math.acos(max(-1.0, min(1.0, dot / (w_norm * x_norm))))
    h = weighted_magnitude(w_norm, x_norm, magnitude_kind, alpha, beta, rho, weighted)
    return h * angular(theta, angular_kind, k)


def convolution(
    x: Tensor,
    weight: Tensor,
    stride: int = 1,
    padding: int = 0,
    dilation: int = 1,
    groups: int = 1,
    padding_mode: str = "zeros",
    rho: Tensor | float = 1.0,
    k: Tensor | float = 0.5,
    **settings,
) -> Tensor:
    """Every output (b, filter, position) by itself, in loops."""
    x, weight = x.double(), weight.double()
    spatial = weight.ndim - 2
    if padding:
        x = F.pad(x, [padding] * (2 * spatial), mode=SPATIAL_PADDING[padding_mode])
    filters = weight.shape[0]
    rho = torch.as_tensor(rho, dtype=torch.float64).expand(filters)
    k = torch.as_tensor(k, dtype=torch.float64).expand(filters)
    sizes = [
        (x.shape[2 + d] - dilation * (weight.shape[2 + d] - 1) - 1) // stride + 1
        for d in range(spatial)
    ]
    out = torch.zeros(x.shape[0], filters, *sizes, dtype=torch.float64)
    per_group = filters // groups
    for b, f in itertools.product(range(x.shape[0]), range(filters)):
        first = f // per_group * weight.shape[1]
        channels = x[b, first : first + weight.shape[1]]
        for position in itertools.product(*map(range, sizes)):
            window = tuple(
                slice(p * stride, p * stride + dilation * (size - 1) + 1, dilation)
                for p, size in zip(position, weight.shape[2:], strict=True)
            )
            patch = channels[(slice(None), *window)].reshape(-1)
            out[(b, f, *position)] = operator(
                weight[f].reshape(-1), patch, rho=float(rho[f]), k=float(k[f]), **settings
            )
    return out
