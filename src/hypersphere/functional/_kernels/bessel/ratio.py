r"""A_d = I_{d/2} / I_{d/2-1} and what belongs to it, to rounding error for all d >= 2, kappa >= 0.

Note [One expansion for all orders]. Debye's expansion (debye.py) is exact to rounding where the
order nu = d/2 - 1 or the argument kappa is large. Where both are small, it is taken at the higher
order nu + N and carried down by

    A_d = kappa / (d + kappa A_{d+2}),        log I_nu = log I_{nu+1} - log A_d,

both of which damp errors on the way. So there is no power series, no asymptotic series for large
kappa and no iteration; the only seam (d < 38, kappa = 36) joins two results that agree to rounding.

Note [Without cancellation]. For large kappa, A tends to 1, its slope to (d-1) / (2 kappa^2) and
log I_nu to kappa, and entropies and gradients are made of their differences. All sums are
therefore kept as the leading part u = s - nu of kappa A, which cancels on paper, and a remainder
beta = kappa A - u of moderate size.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import torch
from torch import Tensor

from .debye import MIN_ORDER, TERMS, coefficients

CHUNK = 1 << 16  # 4 TERMS numbers are held per element


class BesselRatio(NamedTuple):
    """Functions of kappa for one dimension d, all of kappa's shape."""

    over_kappa: Tensor
    """A_d(kappa) / kappa, which is 1/d at 0."""
    gap: Tensor
    """1 - A_d(kappa)."""
    slope: Tensor
    """A_d'(kappa)."""
    log_ratio: Tensor
    """log of the normalizer over its value at kappa = 0, the integral of A_d."""
    information: Tensor
    """kappa A_d(kappa) - log_ratio, the divergence from the uniform distribution."""


class _Parts(NamedTuple):
    """What the five functions are made from; kappa A = u + beta, log_ratio = u + log_rest."""

    order: float  # the one that u belongs to
    over_kappa: Tensor
    u: Tensor
    beta: Tensor
    slope: Tensor
    log_rest: Tensor


def bessel_ratio(kappa: Tensor, dim: int) -> BesselRatio:
    """All of them at once, without gradient.

    Args:
        kappa: Any shape, float64 for full accuracy. Negative values continue A as an odd function.
        dim: d >= 2.

    Returns:
        The five functions.
    """
    x = kappa.detach().reshape(-1)
    parts = [_evaluate(x[i : i + CHUNK], dim) for i in range(0, max(1, len(x)), CHUNK)]
    values = parts[0] if len(parts) == 1 else map(torch.cat, zip(*parts, strict=True))
    return BesselRatio(*(value.reshape(kappa.shape) for value in values))


def _evaluate(x: Tensor, dim: int) -> BesselRatio:
    order = dim / 2 - 1
    if order >= MIN_ORDER:
        return _assemble(x, _expand(x, order))
    limit = 2.0 * MIN_ORDER
    # Each branch sees only arguments at which it is valid; the others are replaced, then dropped.
    inner, outer = x.clamp(-limit, limit), torch.where(x.abs() < limit, limit, x)
    low, high = _assemble(inner, _recur(inner, dim)), _assemble(outer, _expand(outer, order))
    return BesselRatio(
        *(torch.where(x.abs() < limit, a, b) for a, b in zip(low, high, strict=True))
    )


def _expand(x: Tensor, order: float) -> _Parts:
    """Debye's expansion at the order nu = d/2 - 1."""
    s = torch.hypot(x, torch.full_like(x, order))
    q = (order / s).square()
    inverse = 1 / s
    powers = torch.arange(TERMS, dtype=x.dtype, device=x.device).unsqueeze(-1)
    in_q = coefficients(x.dtype, x.device) @ q.pow(powers)
    gamma, gamma_slope, log_terms, log_change = (in_q.view(4, TERMS, -1) * inverse.pow(powers)).sum(
        1
    )
    u_hat = 1 / (s + order)
    # A' = (x b' - b) / x^2 with b = u + (1 - q) gamma
    rest = (2 * q - 1) * gamma - (1 - q) * gamma_slope
    slope = order * u_hat * inverse + rest * inverse.square()
    u = x * (x * u_hat)
    if order >= MIN_ORDER:
        # sum_k e_k(q) / s^k - e_k(1) / nu^k, which vanishes with kappa^2: first in q, then in s
        at_zero = coefficients(x.dtype, x.device)[2 * TERMS : 3 * TERMS].sum(1, keepdim=True)
        growth = torch.log1p(u / order)
        log_change = -(x * inverse).square() * log_change  # (1 - q) without cancellation
        log_change = log_change + (at_zero * order**-powers * torch.expm1(-powers * growth)).sum(0)
        log_rest = log_change - order * torch.log1p(u / (2 * order)) - 0.5 * growth
    else:  # the same with Stirling's series summed, which a low order needs
        constant = order + math.lgamma(order + 1) - 0.5 * math.log(2 * math.pi)
        log_rest = constant - order * torch.log((s + order) / 2) - 0.5 * torch.log(s) + log_terms
    beta_hat = gamma * inverse.square()
    return _Parts(order, u_hat + beta_hat, u, x * (x * beta_hat), slope, log_rest)


def _recur(x: Tensor, dim: int) -> _Parts:
    """From the order MIN_ORDER or more down to d/2 - 1, by Note [One expansion for all orders]."""
    steps = math.ceil(MIN_ORDER - (dim / 2 - 1))
    top = _expand(x, dim / 2 - 1 + steps)
    beta, dims, products = top.beta, range(dim + 2 * (steps - 1), dim - 1, -2), []
    for d in dims:
        before = beta
        products.append(top.u + beta)  # kappa A_{d+2}
        denominator = d + products[-1]
        # kappa^2 / (d + kappa A_{d+2}) - u, in which kappa^2 = u (u + 2 nu)
        beta = top.u * (2 * top.order - d - beta) / denominator
    over_kappa = 1 / denominator
    inverse = torch.tensor([1 / d for d in dims], dtype=x.dtype, device=x.device).unsqueeze(-1)
    log_rest = top.log_rest + torch.log1p(torch.stack(products) * inverse).sum(0)
    slope = over_kappa * (1 - (beta - before))  # A' = A (A_{d+2} - A + 1 / kappa)
    return _Parts(top.order, over_kappa, top.u, beta, slope, log_rest)


def _assemble(x: Tensor, parts: _Parts) -> BesselRatio:
    order, over_kappa, u, beta, slope, log_rest = parts
    # kappa - u = nu (kappa + u) / (s + kappa), which has no difference of large numbers
    far = x.clamp_min(1)
    s = torch.hypot(far, torch.full_like(x, order))
    gap = torch.where(x < 1, 1 - x * over_kappa, (order * (far + u) / (s + far) - beta) / far)
    log_ratio, information = (u + log_rest).clamp_min(0), (beta - log_rest).clamp_min(0)
    return BesselRatio(over_kappa, gap, slope, log_ratio, information)
