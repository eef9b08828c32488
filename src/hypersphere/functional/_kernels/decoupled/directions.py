"""w / |w| of the filters, forward and backward in a few passes over the weights.

For the small images of late layers the weights are as large as the outputs, so that normalizing
them through autograd would cost as much as the operator itself.
"""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor

from ...angles import normalize
from .accelerated import accelerated_rows
from .backward import plain_gradients, wants_plain_gradients
from .convolution import is_traced
from .numbers import shared_number
from .routes import route

__all__ = ["unit_rows"]


def unit_rows(rows: Tensor) -> Tensor:
    """rows / |rows| of (n, d); zero rows stay zero, with gradient 0.

    The same as :func:`normalize` for lengths between 1e-18 and 1e18.

    >>> unit_rows(torch.tensor([[3.0, 4.0], [0.0, 0.0]]))
    tensor([[0.6000, 0.8000],
            [0.0000, 0.0000]])
    """
    if is_traced():
        return normalize(rows)
    fast = accelerated_rows(rows)
    if fast is not None:
        return fast
    if rows.dtype in (torch.float16, torch.bfloat16):
        return normalize(rows)
    unit: Tensor = _UnitRows.apply(rows)  # type: ignore[no-untyped-call]
    return unit


class _UnitRows(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, rows: Tensor) -> Tensor:
        # A zero row counts as infinitely long: its direction and its gradient are 0.
        norm = torch.linalg.vector_norm(rows, dim=1, keepdim=True)
        norm = torch.threshold_(norm, 0.0, math.inf)
        unit = rows / norm
        ctx.save_for_backward(rows, unit, norm)
        return unit

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> Tensor | None:
        rows, unit, norm = ctx.saved_tensors
        if wants_plain_gradients(grad):
            return plain_gradients(normalize, [rows], [True], grad)[0]
        # (g - (g.u) u) / |w| with u = w / |w|, Eq. 4.17.
        if route(rows) != "tiled":  # torch has it as a single kernel, for its weight norm
            lengths = shared_number(1.0, norm.device, norm.dtype, norm.shape)
            found: Tensor = torch.ops.aten._weight_norm_interface_backward(
                grad.contiguous(), rows.contiguous(), lengths, norm, 0
            )[0]
            return found
        inner = torch.bmm(grad.unsqueeze(1), unit.unsqueeze(2)).squeeze(2)
        return torch.addcmul(grad, unit, inner, value=-1).div_(norm)
