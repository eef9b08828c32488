"""Energy of the classes in a mini-batch against all classes (Eq. 5.8, SphereFace+)."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from ._kernels.energy.potential import Potential, check_kernel, distance_floor
from .angles import normalize, row_norm
from .energy import BLOCK_ENTRIES

__all__ = ["class_energy"]


def class_energy(
    weight: Tensor, labels: Tensor, s: float = 2.0, distance: str = "euclidean"
) -> Tensor:
    r"""Data-dependent energy of the output layer, the second term of Eq. 5.8:

    .. math:: \frac{1}{m (N-1)} \sum_{i=1}^m \sum_{j \ne y_i} f_s(|\hat w_{y_i} - \hat w_j|)

    Only rows of classes that occur among the labels are compared, each with all N classes; a class
    that occurs twice is computed once and counted twice. Memory is O(classes in the batch x block).
    The result is float32 for 16-bit weights.

    Args:
        weight: (N, d), a class a row, N >= 2.
        labels: (m,) integers in [0, N).
        s, distance: as in :func:`hyperspherical_energy`.

    Differs from the released code, which pulls the classes away from their common mean instead.

    >>> weight = torch.tensor([[1.0, 0.0], [0.0, 1.0], [-1.0, 0.0]])
    >>> class_energy(weight, torch.tensor([0, 0]))  # distances sqrt(2) and 2
    tensor(0.3750)
    """
    if weight.ndim != 2 or len(weight) < 2:
        raise ValueError(
            f"expected weight (N, d), a class a row, N >= 2; got {tuple(weight.shape)}"
        )
    if labels.ndim != 1 or labels.numel() == 0 or labels.is_floating_point():
        raise ValueError(
            f"expected labels (m,) of integers, m >= 1; got {labels.dtype} of shape "
            f"{tuple(labels.shape)}"
        )
    if int(labels.min()) < 0 or int(labels.max()) >= len(weight):
        raise ValueError(
            f"labels must lie in [0, {len(weight)}), the rows of weight; got "
            f"{int(labels.min())} to {int(labels.max())}"
        )
    check_kernel(s, distance)
    wide = weight.float() if weight.dtype.itemsize < 4 else weight
    potential = Potential(float(s), distance == "geodesic", False, distance_floor(s, wide.dtype))
    classes, counts = labels.unique(return_counts=True)
    share = counts.to(wide.dtype) / (len(labels) * (len(weight) - 1))
    with torch.autocast(weight.device.type, enabled=False):
        return _ClassEnergy.apply(wide, classes, share, potential)


def _plain(weight: Tensor, classes: Tensor, share: Tensor, potential: Potential) -> Tensor:
    u = normalize(weight)
    cos = u[classes] @ u.T
    own = torch.zeros_like(cos, dtype=torch.bool).scatter_(1, classes[:, None], True)
    value = potential.energy(cos.masked_fill(own, 0)).masked_fill(own, 0)
    return (share[:, None] * value).sum()


class _ClassEnergy(torch.autograd.Function):
    """One pass over blocks of classes gives value and gradient, as in `energy.py`."""

    @staticmethod
    def forward(  # type: ignore[override]
        ctx: Any, weight: Tensor, classes: Tensor, share: Tensor, potential: Potential
    ) -> Tensor:
        norm = torch.linalg.vector_norm(weight, dim=1)
        if not bool(((norm > 1e-15) & (norm < 1e15)).all()):
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
            here = (classes >= start) & (classes < start + block)
            own = (here.nonzero()[:, 0], classes[here] - start)
            cos[own] = 0
            if gradient is None:
                value = potential.energy(cos)
            else:
                value, slope, factor = potential.energy_and_slope(cos)
            value[own] = 0
            total += share @ value.sum(1)
            if gradient is None:
                continue
            slope[own] = 0
            slope *= factor * share[:, None]
            row_gradient += slope @ columns
            push = slope.T @ rows
            push -= (slope * cos).sum(0)[:, None] * columns
            gradient[part] = push * inverse[part, None]
        if gradient is not None:
            row_gradient -= (row_gradient * rows).sum(1, keepdim=True) * rows
            gradient[classes] += row_gradient * inverse[classes, None]
        ctx.potential = potential
        ctx.save_for_backward(weight, classes, share, gradient)
        return total

    @staticmethod
    def backward(ctx, grad: Tensor) -> tuple[Tensor, None, None, None]:  # type: ignore[no-untyped-def, override]
        weight, classes, share, gradient = ctx.saved_tensors
        if torch.is_grad_enabled():
            with torch.autocast(weight.device.type, enabled=False):
                energy = _plain(weight, classes, share, ctx.potential)
            (result,) = torch.autograd.grad(energy, weight, grad, create_graph=True)
            return result, None, None, None
        return grad * gradient, None, None, None
