"""The energy of some classes against all, and its gradient, in one pass over blocks of classes.

With u_i = w_i / |w_i|, the classes k of the batch and their shares p_k of it,

    E = sum_k p_k sum_{j != k} c(u_k . u_j),

and each pair pushes both of its ends: dE/du_k += p_k c' u_j, dE/du_j += p_k c' u_k. The gradient
with respect to w drops what is along u and is divided by |w|. A class may have several rows, its
sub-centers, one after another: j then runs over the rows of other classes.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from ...angles import normalize, row_norm
from ...host import known
from ..autograd import Function, runs_eagerly
from .pair_energy import BLOCK_ENTRIES
from .potential import Potential

__all__ = ["batch_class_energy"]


def batch_class_energy(
    weight: Tensor, chosen: Tensor, share: Tensor, potential: Potential, centers: int
) -> Tensor:
    """E of the chosen rows (k,) of weight (C, d), with their shares (k,) of the batch."""
    if runs_eagerly():
        return _by_autograd(weight, chosen, share, potential, centers)
    energy: Tensor = BatchClassEnergy.apply(weight, chosen, share, potential, centers)
    return energy


class BatchClassEnergy(Function):
    """The energy; its gradient is computed beside it and waits for the backward pass."""

    @staticmethod
    def forward(
        ctx: Any, weight: Tensor, chosen: Tensor, share: Tensor, potential: Potential, centers: int
    ) -> Tensor:
        norm = torch.linalg.vector_norm(weight, dim=1)
        if not known(((norm > 1e-15) & (norm < 1e15)).all()):
            norm = row_norm(weight)  # exact for any length, but makes copies
        inverse = torch.where(norm > 0, 1 / norm, 0.0)
        rows = weight[chosen] * inverse[chosen, None]  # (k, d) directions
        total = weight.new_zeros(())
        gradient = torch.zeros_like(weight) if ctx.needs_input_grad[0] else None
        row_gradient = torch.zeros_like(rows)
        # A class is never cut in two: see _Own.
        block = max(1, BLOCK_ENTRIES // (len(chosen) * centers)) * centers
        for start in range(0, len(weight), block):
            part = slice(start, start + block)
            columns = weight[part] * inverse[part, None]
            cos = rows @ columns.T
            own = _Own(chosen, centers, start, len(columns))
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
            gradient.index_add_(0, chosen, row_gradient * inverse[chosen, None])
        ctx.potential, ctx.centers = potential, centers
        ctx.save_for_backward(weight, chosen, share, gradient)
        return total

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None, None, None, None]:
        weight, chosen, share, gradient = ctx.saved_tensors
        if torch.is_grad_enabled():
            with torch.autocast(weight.device.type, enabled=False):
                energy = _by_autograd(weight, chosen, share, ctx.potential, ctx.centers)
            (result,) = torch.autograd.grad(energy, weight, grad, create_graph=True)
            return result, None, None, None, None
        return grad * gradient, None, None, None, None


class _Own:
    """The entries of a block (k, columns) that stand for a class beside itself."""

    def __init__(self, chosen: Tensor, centers: int, start: int, columns: int) -> None:
        place = _rows_of_its_class(chosen, centers) - start
        self.here = (place >= 0) & (place < columns)
        self.place = place.clamp(0, columns - 1)

    def clear(self, matrix: Tensor) -> None:
        """Set them to 0; a row whose class lies in another block keeps what it has.

        All entries of a row are in this block, or none: otherwise two of them could be clamped to
        one place, one to be cleared and one to be kept.
        """
        kept = matrix.gather(1, self.place).masked_fill_(self.here, 0)
        matrix.scatter_(1, self.place, kept)


def _rows_of_its_class(chosen: Tensor, centers: int) -> Tensor:
    """(k, centers): the rows of the class that each chosen row belongs to."""
    first = chosen - chosen % centers
    return first[:, None] + torch.arange(centers, device=chosen.device)


def _by_autograd(
    weight: Tensor, chosen: Tensor, share: Tensor, potential: Potential, centers: int
) -> Tensor:
    """The energy by differentiable operations: for gradients of gradients."""
    u = normalize(weight)
    cos = u[chosen] @ u.T
    own = torch.zeros_like(cos, dtype=torch.bool)
    own.scatter_(1, _rows_of_its_class(chosen, centers), True)
    value = potential.energy(cos.masked_fill(own, 0)).masked_fill(own, 0)
    return (share[:, None] * value).sum()
