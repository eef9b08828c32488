"""w / |w| of the filters, forward and backward in a few passes over the weights.

For the small images of late layers the weights are as large as the outputs, so that normalizing
them through autograd would cost as much as the operator itself.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from ...angles import normalize
from .convolution import inverse_norm, is_traced

__all__ = ["unit_rows"]


def unit_rows(rows: Tensor) -> Tensor:
    """rows / |rows| of (n, d); zero rows stay zero, with gradient 0.

    The same as :func:`normalize` for lengths between 1e-18 and 1e18.

    >>> unit_rows(torch.tensor([[3.0, 4.0], [0.0, 0.0]]))
    tensor([[0.6000, 0.8000],
            [0.0000, 0.0000]])
    """
    if is_traced() or rows.dtype in (torch.float16, torch.bfloat16):
        return normalize(rows)
    unit: Tensor = _UnitRows.apply(rows)  # type: ignore[no-untyped-call]
    return unit


class _UnitRows(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, rows: Tensor) -> Tensor:
        inverse = inverse_norm(torch.linalg.vector_norm(rows, dim=1, keepdim=True))
        ctx.save_for_backward(rows, inverse)
        return rows * inverse

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> Tensor:
        rows, inverse = ctx.saved_tensors
        if torch.is_grad_enabled():  # a second derivative will be asked of the result
            (result,) = torch.autograd.grad(normalize(rows), [rows], grad, create_graph=True)
            return result
        # (g - (g.u) u) / |w| with u = w / |w|, Eq. 4.17.
        unit = rows * inverse
        inner = (grad * unit).sum(1, keepdim=True)
        return torch.addcmul(grad, unit, inner, value=-1).mul_(inverse)
