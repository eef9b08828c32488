"""The energy of some classes against all, and its gradient, in one pass over blocks of classes.

With u_i = w_i / |w_i|, the classes k of the batch and their shares p_k of it,

    E = sum_k p_k sum_{j != k} c(u_k . u_j),

and each pair pushes both of its ends: dE/du_k += p_k c' u_j, dE/du_j += p_k c' u_k. The gradient
with respect to w drops what is along u and is divided by |w|.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from ...angles import normalize, row_norm
from ...host import known
from ..autograd import Function
from .pair_energy import BLOCK_ENTRIES
from .potential import Potential

__all__ = ["BatchClassEnergy"]


class BatchClassEnergy(Function):
    """The energy; its gradient is computed beside it and waits for the backward pass."""

    @staticmethod
    def forward(
        ctx: Any, weight: Tensor, classes: Tensor, share: Tensor, potential: Potential
    ) -> Tensor:
        norm = torch.linalg.vector_norm(weight, dim=1)
        if not known(((norm > 1e-15) & (norm < 1e15)).all()):
            norm = row_norm(weight)  # exact for any length, but makes copies
        inverse = torch.where(norm > 0, 1 / norm, 0.0)
        rows = weight[classes] * inverse[classes, None]  # (k, d) directions
        total = weight.new_zeros(())
        gradient = torch.zeros_like(weight) if ctx.needs_input_grad[0] else None
        row_gradient = torch.zeros_like(rows)
        block = max(1, BLOCK_ENTRIES // len(classes))
        for start in range(0, len(weight), block):
            part = slice(start, start + block)
            columns = weight[part] * inverse[part, None]
            cos = rows @ columns.T
            own = _Own(classes, start, len(columns))
            own.clear(cos)
            if gradient is None:
                value = potential.energy(cos)
            else:
                value, slope, factor = potential.energy_and_slope(cos)
            own.clear(value)
            total += share @ value.sum(1)
            if gradient is None:
                continue
            own.clear(slope)
            slope *= factor * share[:, None]
            row_gradient += slope @ columns
            push = slope.T @ rows
            push -= (slope * cos).sum(0)[:, None] * columns
            gradient[part] = push * inverse[part, None]
        if gradient is not None:
            row_gradient -= (row_gradient * rows).sum(1, keepdim=True) * rows
            gradient.index_add_(0, classes, row_gradient * inverse[classes, None])
        ctx.potential = potential
        ctx.save_for_backward(weight, classes, share, gradient)
        return total

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None, None, None]:
        weight, classes, share, gradient = ctx.saved_tensors
        if torch.is_grad_enabled():
            with torch.autocast(weight.device.type, enabled=False):
                energy = _by_autograd(weight, classes, share, ctx.potential)
            (result,) = torch.autograd.grad(energy, weight, grad, create_graph=True)
            return result, None, None, None
        return grad * gradient, None, None, None


class _Own:
    """The entries of a block (k, columns) that stand for a class beside itself."""

    def __init__(self, classes: Tensor, start: int, columns: int) -> None:
        self.here = ((classes >= start) & (classes < start + columns))[:, None]
        self.place = (classes - start).clamp(0, columns - 1)[:, None]

    def clear(self, matrix: Tensor) -> None:
        """Set them to 0; a row whose class lies in another block keeps what it has."""
        kept = matrix.gather(1, self.place).masked_fill_(self.here, 0)
        matrix.scatter_(1, self.place, kept)


def _by_autograd(weight: Tensor, classes: Tensor, share: Tensor, potential: Potential) -> Tensor:
    """The energy by differentiable operations: for gradients of gradients."""
    u = normalize(weight)
    cos = u[classes] @ u.T
    own = torch.zeros_like(cos, dtype=torch.bool).scatter_(1, classes[:, None], True)
    value = potential.energy(cos.masked_fill(own, 0)).masked_fill(own, 0)
    return (share[:, None] * value).sum()
