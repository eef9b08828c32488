r"""Coefficients of the uniform (Debye) expansion of I_{nu+1}(x) / I_nu(x).

With s = sqrt(nu^2 + x^2), q = nu^2 / s^2 and u = s - nu, the function b = x I_{nu+1}(x) / I_nu(x)
solves the Riccati equation x b' = x^2 - 2 nu b - b^2. Written b = u + beta, that is

    2 s beta = -(1 - q) s - x beta' - beta^2,        x s' = s (1 - q),   x q' = -2 q (1 - q),

and comparing powers of 1/s in beta = (1 - q) sum_k gamma_k(q) / s^k gives each polynomial gamma_k
from those before it. The logarithm of I_nu needs no further recursion: x d/dx of its series
sum_k e_k(q) / s^k is that of beta, hence e_kj = -gamma_kj / (k + 2j).
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import zip_longest

import torch
from torch import Tensor

# Powers 1/s^0 ... 1/s^(TERMS - 1). The terms fall until k is about |2 nu eta + i pi nu| >= pi nu,
# where nu eta = s - nu asinh(nu / x). With nu >= MIN_ORDER, or x >= 2 MIN_ORDER, the first one left
# out is below rounding error in float64, and no coefficient is large beside its power of s.
TERMS = 16
MIN_ORDER = 18

Polynomial = Sequence[float]  # in q, the constant term first


def _product(a: Polynomial, b: Polynomial) -> list[float]:
    product = [0.0] * (len(a) + len(b) - 1)
    for i, x in enumerate(a):
        for j, y in enumerate(b):
            product[i + j] += x * y
    return product


def _sum(*polynomials: Polynomial) -> list[float]:
    return [sum(column) for column in zip_longest(*polynomials, fillvalue=0.0)]


def ratio_polynomials(terms: int) -> list[list[float]]:
    """The polynomials gamma_k; gamma_k has the degree k.

    Args:
        terms: How many.

    Returns:
        gamma_0 ... gamma_{terms-1}.

    >>> ratio_polynomials(2)  # -1/2 and (-1 + 5q)/8
    [[-0.5], [-0.125, 0.625]]
    """
    gamma = [[-0.5]]
    for k in range(terms - 1):
        last = gamma[k]
        # 2 gamma_{k+1} = (1 - q)(2 q gamma_k' + k gamma_k - sum gamma_i gamma_{k-i}) - 2 q gamma_k
        squares = _sum(*(_product(gamma[i], gamma[k - i]) for i in range(k + 1)))
        inner = _sum([(2 * j + k) * c for j, c in enumerate(last)], [-c for c in squares])
        following = _sum(_product([1.0, -1.0], inner), [0.0, *(-2 * c for c in last)])
        gamma.append([c / 2 for c in following[: k + 2]])
    return gamma


def _rows() -> list[list[float]]:
    gamma = ratio_polynomials(TERMS)
    slope = [[(k + 2 * j) * c for j, c in enumerate(row)] for k, row in enumerate(gamma)]
    # e_0 would be a logarithm, which stands in the leading term instead
    log = [[-c / (k + 2 * j) if k else 0.0 for j, c in enumerate(p)] for k, p in enumerate(gamma)]
    change = [[sum(row[j + 1 :]) for j in range(len(row))] for row in log]
    return [row + [0.0] * (TERMS - len(row)) for row in (*gamma, *slope, *log, *change)]


ROWS = _rows()
_tables: dict[tuple[torch.dtype, torch.device], Tensor] = {}


def coefficients(dtype: torch.dtype, device: torch.device) -> Tensor:
    """Coefficients in q of gamma_k, 2 q gamma_k' + k gamma_k, e_k and (e_k(1) - e_k(q)) / (1 - q).

    Args:
        dtype: Type of the table.
        device: Where it lives.

    Returns:
        (4 TERMS, TERMS), k running faster than the four.
    """
    if torch.compiler.is_compiling():
        return torch.tensor(ROWS, dtype=dtype, device=device)
    table = _tables.get((dtype, device))
    if table is None:
        with torch.inference_mode(False):
            table = torch.tensor(ROWS, dtype=dtype, device=device)
        if type(table) is Tensor:  # not the stand-in of some tracer
            _tables[dtype, device] = table
    return table
