"""Cosines between rows and their gradients, without unit copies of the rows.

With u = w / |w| and G the gradient of the cosines c, one matrix product gives that of the rows:

    pairs, c_ij = u_i . u_j:    dw = K w, K = (G + G^T)_ij / (|w_i| |w_j|) - diag(t_i / |w_i|^2)
    points, c_pi = v_p . u_i:   dw_i = sum_p G_pi v_p / |w_i| - t_i w_i / |w_i|^2

where t_i is the sum of G c over all cosines of row i (both G_ij and G_ji for pairs).
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from ...angles import normalize
from ...host import known
from ..autograd import Function, runs_eagerly

__all__ = ["in_range", "inverse_norms", "pair_cosines", "point_cosines"]


def in_range(w: Tensor) -> Tensor:
    """`w`, or unit rows in its place where squares of its lengths would leave the floating range.

    Zero rows stay zero.
    """
    info = torch.finfo(w.dtype)
    shortest, longest = torch.linalg.vector_norm(w.detach(), dim=-1).aminmax()
    low, high = known(shortest), known(longest)
    if low is None or high is None:
        return normalize(w)
    if low > (info.tiny / info.eps) ** 0.5 and high < info.max**0.25:
        return w
    return normalize(w)


def inverse_norms(w: Tensor) -> Tensor:
    """1 / |w_i|, and 0 for a zero row: its cosine with everything is 0, without a gradient."""
    norm = torch.linalg.vector_norm(w, dim=-1)
    return torch.where(norm > 0, norm.reciprocal(), torch.zeros_like(norm))


def pair_cosines(w: Tensor, dtype: torch.dtype | None = None) -> Tensor:
    """Cosines between all rows of w (B, N, d): (B, N, N); the diagonal has no gradient.

    They are computed in `dtype`, by default that of w. The product of the backward pass is taken in
    that of w, which has digits enough for a gradient.
    """
    if runs_eagerly():
        u = normalize(w.to(dtype or w.dtype))
        inner = torch.bmm(u, u.mT)
        same = torch.eye(w.shape[1], dtype=torch.bool, device=w.device)
        return torch.where(same, inner.detach(), inner)
    cosines: Tensor = _PairCosines.apply(w, dtype or w.dtype)
    return cosines


def point_cosines(w: Tensor, v: Tensor) -> Tensor:
    """Cosines of unit vectors v (B, P, d), held fixed, with all rows of w (B, N, d): (B, P, N)."""
    if runs_eagerly():
        return torch.bmm(v.detach(), normalize(w).mT)
    cosines: Tensor = _PointCosines.apply(w, v)
    return cosines


class _PairCosines(Function):
    @staticmethod
    def forward(w: Tensor, dtype: torch.dtype) -> Tensor:
        wide = w.to(dtype)
        inverse = inverse_norms(wide)
        return torch.bmm(wide, wide.mT).mul_(inverse[..., None]).mul_(inverse[:, None])

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
        ctx.save_for_backward(inputs[0], output)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None]:
        w, cos = ctx.saved_tensors
        if torch.is_grad_enabled():  # the gradient will be differentiated: all from w again
            u = normalize(w.to(cos.dtype))
            cos = torch.bmm(u, u.mT)
        inverse = inverse_norms(w).to(cos.dtype)
        same = torch.eye(w.shape[1], dtype=torch.bool, device=w.device)
        both = (grad + grad.mT).masked_fill(same, 0)
        pull = (both * cos).sum(-1) * inverse.square()
        kernel = both * inverse[..., None] * inverse[:, None] - torch.diag_embed(pull)
        return torch.bmm(kernel.to(w.dtype), w), None


class _PointCosines(Function):
    @staticmethod
    def forward(w: Tensor, v: Tensor) -> Tensor:
        return torch.bmm(v, w.mT).mul_(inverse_norms(w)[:, None])

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
        ctx.save_for_backward(*inputs, output)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None]:
        w, v, cos = ctx.saved_tensors
        inverse = inverse_norms(w)
        if torch.is_grad_enabled():
            cos = torch.bmm(v, w.mT) * inverse[:, None]
        pull = (grad * cos).sum(1) * inverse.square()
        pushed = torch.bmm((grad * inverse[:, None]).mT, v)
        return torch.addcmul(pushed, pull[..., None], w, value=-1), None
