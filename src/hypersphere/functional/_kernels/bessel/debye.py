r"""Coefficients of the uniform (Debye) expansion of I_{nu+1}(x) / I_nu(x), as exact fractions.

With s = sqrt(nu^2 + x^2), q = nu^2 / s^2 and u = s - nu, the function b = x I_{nu+1}(x) / I_nu(x)
solves the Riccati equation x b' = x^2 - 2 nu b - b^2. Written b = u + beta, that is

    2 s beta = -(1 - q) s - x beta' - beta^2,        x s' = s (1 - q),   x q' = -2 q (1 - q),

and comparing powers of 1/s in beta = (1 - q) sum_k gamma_k(q) / s^k gives each polynomial gamma_k
from those before it. The logarithm of I_nu needs no further recursion: x d/dx of its series
sum_k e_k(q) / s^k is that of beta, hence e_kj = -gamma_kj / (k + 2j).
"""

from __future__ import annotations

from fractions import Fraction
from functools import lru_cache

import torch
from torch import Tensor

# Powers 1/s^0 ... 1/s^(TERMS - 1). The terms fall until k is about |2 nu eta + i pi nu| >= pi nu,
# where nu eta = s - nu asinh(nu / x). With nu >= MIN_ORDER, or x >= 2 MIN_ORDER, the first one left
# out is below rounding error in float64, and no coefficient is large beside its power of s.
TERMS = 16
MIN_ORDER = 18

Polynomial = list[Fraction]


def _product(a: Polynomial, b: Polynomial) -> Polynomial:
    product = [Fraction(0)] * (len(a) + len(b) - 1)
    for i, x in enumerate(a):
        for j, y in enumerate(b):
            product[i + j] += x * y
    return product


def _sum(*polynomials: Polynomial) -> Polynomial:
    length = max(map(len, polynomials))
    padded = [p + [Fraction(0)] * (length - len(p)) for p in polynomials]
    return [sum(column, Fraction(0)) for column in zip(*padded, strict=True)]


def ratio_polynomials(terms: int) -> list[Polynomial]:
    """gamma_0 ... gamma_{terms-1}; gamma_k has degree k in q.

    >>> ratio_polynomials(2)  # -1/2 and (-1 + 5q)/8
    [[Fraction(-1, 2)], [Fraction(-1, 8), Fraction(5, 8)]]
    """
    gamma = [[Fraction(-1, 2)]]
    for k in range(terms - 1):
        last = gamma[k]
        slope = [j * c for j, c in enumerate(last)]  # q gamma_k'(q)
        squares = [_product(gamma[i], gamma[k - i]) for i in range(k + 1)]
        # 2 gamma_{k+1} = (1 - q)(2 q gamma_k' + k gamma_k - sum gamma_i gamma_{k-i}) - 2 q gamma_k
        inner = _sum([2 * c for c in slope], [k * c for c in last], [-c for c in _sum(*squares)])
        outer = [Fraction(0), *(-2 * c for c in last)]
        following = _sum(_product([Fraction(1), Fraction(-1)], inner), outer)
        gamma.append([c / 2 for c in following[: k + 2]])
    return gamma


@lru_cache(maxsize=8)
def coefficients(dtype: torch.dtype, device: torch.device) -> Tensor:
    """Coefficients in q of gamma_k, 2 q gamma_k' + k gamma_k, e_k and (e_k(1) - e_k(q)) / (1 - q).

    Args:
        dtype: Type of the table.
        device: Where it lives.

    Returns:
        (4 TERMS, TERMS), k running faster than the four. e_0 would be a logarithm and is left at 0.
    """
    table = torch.zeros(4, TERMS, TERMS, dtype=torch.float64)
    for k, polynomial in enumerate(ratio_polynomials(TERMS)):
        for j, c in enumerate(polynomial):
            table[0, k, j] = float(c)
            table[1, k, j] = float(c * (k + 2 * j))
            table[2, k, j] = float(-c / (k + 2 * j)) if k else 0.0
            above = [-polynomial[i] / (k + 2 * i) for i in range(j + 1, k + 1)]
            table[3, k, j] = float(sum(above, Fraction(0)))
    return table.reshape(4 * TERMS, TERMS).to(device, dtype)
