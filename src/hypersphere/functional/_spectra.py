"""Ends of spectra, and the coefficients of matrix functions on them; plain numbers come out."""

from __future__ import annotations

import math

import torch
from torch import Tensor

# Note [Spectra]
# Loewdin and the exponential choose their number of terms from the spectrum of a matrix. A few
# Lanczos steps come within some percent of its ends, from the inside; this margin makes up for the
# rest, and both check afterwards that lengths were kept.
_LANCZOS_STEPS = 8
_MARGIN = 0.03


def spectrum(A: Tensor, skew: bool = False) -> tuple[float, float]:
    """Ends of the spectrum of symmetric A (..., d, d), or of A / i for skew A. Note [Spectra]."""
    d = A.shape[-1]
    A = A.reshape(-1, d, d)
    one = A[0] if len(A) == 1 else A  # a plain product is faster than a batch of one
    x = torch.cos(torch.arange(d, dtype=A.dtype, device=A.device)).mul_(math.sqrt(2.0 / d))
    x = x.expand(len(A), d).unsqueeze(-1)
    unit = (A @ x).abs().amax(-2, keepdim=True)
    unit = torch.where(unit > 0, unit, 1.0)  # so that squares neither under- nor overflow
    mean = A.diagonal(dim1=-2, dim2=-1).mean(-1)[:, None, None] / unit  # 0 for a skew matrix
    previous, beta = torch.zeros_like(x), torch.zeros_like(mean)
    alphas, betas = [], []
    for _ in range(min(_LANCZOS_STEPS, d)):
        # Around the mean eigenvalue, the zeros after an early end lie within the spectrum.
        y = (one @ x) / unit - mean * x
        alpha = x.mT @ y
        y = y - alpha * x + (beta if skew else -beta) * previous
        beta = torch.linalg.vector_norm(y, dim=-2, keepdim=True)
        previous, x = x, torch.where(beta > 0, y / beta, 0.0)
        alphas.append(alpha[..., 0])
        betas.append(beta[..., 0])
    T = torch.diag_embed(torch.cat(alphas, -1))
    if len(betas) > 1:
        off = torch.diag_embed(torch.cat(betas[:-1], -1), offset=1)
        T = T + off + off.mT
    if not bool(torch.isfinite(T).all()):
        return math.nan, math.nan
    values = torch.linalg.eigvalsh(T.double()) + mean[..., 0]
    margin = _MARGIN * (values[..., -1:] - values[..., :1])
    low = (values[..., :1] - margin) * unit[..., 0]
    high = (values[..., -1:] + margin) * unit[..., 0]
    return float(low.min()), float(high.max())


def inverse_root_poles(low: float, high: float, error: float) -> tuple[list[float], list[float]]:
    """Shifts s_j and weights w_j with lambda^{-1/2} ~ sum_j w_j / (lambda + s_j) on [low, high].

    The trapezoidal rule after a conformal map; its error is about 2 exp(-2 pi r K / K').

    >>> shifts, weights = inverse_root_poles(1.0, 2.0, error=2e-6)
    >>> len(shifts), round(sum(w / (1.5 + s) for s, w in zip(shifts, weights)) * 1.5**0.5, 5)
    (3, 1.0)
    """
    ratio = min(low / high, 1.0 - 1e-9)
    half, full = _elliptic_k(1.0 - ratio), _elliptic_k(ratio)
    count = max(1, math.ceil(math.log(2.0 / error) * half / (2.0 * math.pi * full)))
    shifts, weights = [], []
    for j in range(count):
        sn, cn, dn = _jacobi((j + 0.5) * half / count, 1.0 - ratio)
        shifts.append(low * (sn / cn) ** 2)
        weights.append(2.0 * half * math.sqrt(low) / (math.pi * count) * dn / cn**2)
    return shifts, weights


def _elliptic_k(m: float) -> float:
    a, b = 1.0, math.sqrt(1.0 - m)
    while abs(a - b) > 1e-15 * a:
        a, b = (a + b) / 2, math.sqrt(a * b)
    return math.pi / (2.0 * a)


def _jacobi(u: float, m: float) -> tuple[float, float, float]:
    """sn, cn, dn at u with parameter m, by the arithmetic-geometric mean."""
    a, b, c = 1.0, math.sqrt(1.0 - m), math.sqrt(m)
    ratios = []
    while abs(c) > 1e-16:
        a, b, c = (a + b) / 2, math.sqrt(a * b), (a - b) / 2
        ratios.append(c / a)
    phi = 2.0 ** len(ratios) * a * u
    for r in reversed(ratios):
        phi = (phi + math.asin(r * math.sin(phi))) / 2
    sn = math.sin(phi)
    return sn, math.cos(phi), math.sqrt(1.0 - m * sn * sn)


def bessel(rho: float, eps: float) -> list[float]:
    """J_0(rho), 2 J_1(rho), 2 J_2(rho), ... down to eps, by Miller's backward recurrence."""
    start = 2 * (int(rho + 12 * rho ** (1 / 3) + 20) // 2)
    values, above = [0.0] * (start + 1), 0.0
    values[start] = 1e-30
    for k in range(start, 0, -1):
        values[k - 1] = 2 * k / rho * values[k] - above
        above = values[k]
        if abs(values[k - 1]) > 1e200:
            values = [v * 1e-200 for v in values]
            above *= 1e-200
    total = values[0] + 2 * sum(values[2::2])  # J_0 + 2 J_2 + 2 J_4 + ... = 1
    values = [values[0] / total] + [2 * v / total for v in values[1:]]
    count = max(k for k, v in enumerate(values) if abs(v) > eps / 2) + 1
    return values[: max(count, 3)]
