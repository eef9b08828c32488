"""Whether a library computes what the formulas say: tried once, on a few numbers."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from ..plain import OperatorSettings
from .filters import SUMS, Filters
from .passes import run_backward, run_forward

__all__ = ["agrees"]

FILTERS, PIXELS = 7, 23
TOLERANCE = 1e-3  # far above rounding, far below a formula that was read wrongly


def agrees(kernels: Any, op: OperatorSettings, radius_per_filter: bool) -> bool:
    """Compare both passes with the formulas in torch's operations.

    A user's activation or magnitude may do what the recorded lines cannot tell; then the operator
    is computed without a library.
    """
    cpu = torch.device("cpu")
    with torch.no_grad(), cpu:
        values = torch.linspace(0.37, 1.71, FILTERS, dtype=torch.float32)
        radius = values.flip(0).contiguous() if radius_per_filter else torch.tensor(0.83)
        k = values if op.angular.default_k is not None else None
        norm = torch.linspace(0.11, 2.3, PIXELS, dtype=torch.float32)[:, None]
        c = torch.linspace(-0.97, 0.96, PIXELS * FILTERS, dtype=torch.float32)
        c = c.view(FILTERS, PIXELS).T.contiguous()
        grad = torch.linspace(-1.3, 1.9, PIXELS * FILTERS, dtype=torch.float32).view_as(c)
        filters = Filters.of(FILTERS, k, radius)
        try:
            expected = _expected(c, norm, grad, radius, k, op)
        except Exception:
            return False  # the other route says what is wrong with the formula
        found = _found(kernels, c, norm, grad, filters)
        return all(map(_close, found, expected))


def _found(kernels: Any, c: Tensor, norm: Tensor, grad: Tensor, filters: Filters) -> list[Tensor]:
    s, everything = c * norm, (1 << len(SUMS)) - 1
    out = run_forward(kernels, s, norm, filters)
    grad_norm, sums = run_backward(kernels, grad, s, norm, filters, everything, s)
    return [out, s, grad_norm, sums[2].float(), sums[3].float()]


def _expected(
    c: Tensor, norm: Tensor, grad: Tensor, radius: Tensor, k: Tensor | None, op: OperatorSettings
) -> list[Tensor]:
    value, slope, of_k = op.angular.value_and_slopes(c, k, torch.finfo(torch.float32).eps)
    ratio, of_norm, of_radius = op.magnitude.ratio_and_slopes(norm, *op.constants, radius)
    grad_s, t = grad * slope * ratio, grad * value
    zero = torch.zeros(FILTERS)
    through_norm = (t * of_norm - grad_s * c).sum(1, keepdim=True)
    in_radius = zero if of_radius is None else (t * of_radius).sum(0)
    in_k = zero if of_k is None else (grad * of_k * (ratio * norm)).sum(0)
    return [value * (ratio * norm), grad_s, through_norm, in_radius, in_k]


def _close(found: Tensor, expected: Tensor) -> bool:
    # As lists: a comparison of tensors would count as a value that a training step waits for.
    pairs = zip(_numbers(found), _numbers(expected), strict=True)
    return all(abs(a - b) <= TOLERANCE * (1 + abs(b)) or (a != a and b != b) for a, b in pairs)


def _numbers(values: Tensor) -> list[float]:
    numbers: list[float] = values.flatten().tolist()
    return numbers
