"""Functions that Triton's language lacks, in float32 and without a library of the device.

They run in Triton's interpreter and compile for any target. Their errors are a few units in the
last place, which a test compares with torch over the whole range.
"""

from __future__ import annotations

import triton
import triton.language as tl

__all__ = ["asin", "log1p", "tanh"]


@triton.jit
def asin(x):
    """arcsin(x): a polynomial below 1/2; from there pi / 2 - 2 arcsin(sqrt((1 - x) / 2))."""
    a = tl.abs(x)
    large = a > 0.5
    half = 0.5 * (1.0 - a)
    square = tl.where(large, half, a * a)
    root = tl.where(large, tl.sqrt(tl.where(large, half, 1.0)), a)
    # The series x + x^3 / 6 + 3 x^5 / 40 + ..., its tail fitted on [0, 1/4] of x^2.
    p = square * 4.2163199048e-2 + 2.4181311049e-2
    p = p * square + 4.5470025998e-2
    p = p * square + 7.4953002686e-2
    p = p * square + 1.6666752422e-1
    angle = root + root * square * p
    angle = tl.where(large, 1.5707963267948966 - 2.0 * angle, angle)
    return tl.where(x < 0, -angle, angle)


@triton.jit
def tanh(x):
    """tanh(x): a polynomial below 5/8, where 1 - 2 / (exp(2x) + 1) would cancel."""
    a = tl.abs(x)
    square = a * a
    p = square * -5.70498872745e-3 + 2.06390887954e-2
    p = p * square - 5.37397155531e-2
    p = p * square + 1.33314422036e-1
    p = p * square - 3.33332819422e-1
    small = a + a * square * p
    large = 1.0 - 2.0 / (tl.exp(2.0 * a) + 1.0)
    value = tl.where(a < 0.625, small, large)
    return tl.where(x < 0, -value, value)


@triton.jit
def log1p(x):
    """log(1 + x) for x >= 0: what rounding 1 + x loses is brought back as a factor."""
    u = 1.0 + x
    shifted = u - 1.0
    exact = shifted == 0.0
    value = tl.log(u) * (x / tl.where(exact, 1.0, shifted))
    return tl.where(exact, x, tl.where(u == float("inf"), u, value))
