"""log sum_{i<j} exp(a (u_i . u_j - 1)) of unit rows, with its gradient in the same pass.

The gradient of u_i is a sum_j p_ij u_j, p the softmax over pairs. Blocks of rows meet the columns
to their right; what was summed so far is scaled down when a block has a larger exponent.
"""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor

from ..autograd import Function, runs_eagerly
from .row_blocks import row_blocks

__all__ = ["log_potential"]


def log_potential(u: Tensor, factor: float) -> Tensor:
    """The sum for unit rows u (N, d) and a = factor, N >= 2: a scalar. Memory is O(N x block)."""
    if runs_eagerly():
        return _plain(u, factor)
    tracked = u.requires_grad and torch.is_grad_enabled()
    value: Tensor = _LogPotential.apply(u, factor, tracked)[0]
    return value


def _plain(u: Tensor, factor: float) -> Tensor:
    """The same by differentiable operations: for gradients of gradients."""
    exponent = factor * (u @ u.T - 1)
    right = torch.ones_like(exponent, dtype=torch.bool).triu(1)
    return torch.logsumexp(exponent.masked_fill(~right, -math.inf).flatten(), 0)


class _LogPotential(Function):
    @staticmethod
    def forward(u: Tensor, factor: float, with_gradient: bool) -> tuple[Tensor, Tensor | None]:
        n = len(u)
        total, largest = u.new_zeros(()), u.new_full((), -math.inf)
        gradient = torch.zeros_like(u) if with_gradient else None
        for part in row_blocks(n - 1, n):
            exponent = u[part] @ u[part.start :].T
            exponent.sub_(1).mul_(factor)
            lower = torch.ones_like(exponent, dtype=torch.bool).tril()
            exponent.masked_fill_(lower, -math.inf)
            top = torch.maximum(exponent.amax(), largest)
            shrink = torch.exp(largest - top)
            total *= shrink
            if gradient is not None and part.start > 0:
                gradient *= shrink
            largest = top
            weight = exponent.sub_(largest).exp_()
            total += weight.sum()
            if gradient is not None:
                gradient[part] += weight @ u[part.start :]
                gradient[part.start :] += weight.T @ u[part]
        if gradient is not None:
            gradient *= factor / total
        return total.log() + largest, gradient

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: tuple[Any, ...]) -> None:
        u, ctx.factor, _ = inputs
        if output[1] is not None:
            ctx.mark_non_differentiable(output[1])
        ctx.save_for_backward(u, output[1])

    @staticmethod
    def backward(ctx: Any, grad: Tensor, _: Any) -> tuple[Tensor, None, None]:
        u, gradient = ctx.saved_tensors
        if not torch.is_grad_enabled():
            return grad * gradient, None, None
        (result,) = torch.autograd.grad(_plain(u, ctx.factor), u, grad, create_graph=True)
        return result, None, None
