"""The two passes of operator.cpp over tensors: from w^T x to f, and the way back."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from .filters import SUMS, Filters
from .tensors import Sizes, is_dense, threads_for

__all__ = ["dense", "run_backward", "run_forward"]


def dense(x: Tensor) -> Tensor:
    """x in one of the two ways of lying that the kernels know, and not lazily negated."""
    x = x.resolve_neg()
    return x if is_dense(x) else x.contiguous()


def run_forward(kernels: Any, s: Tensor, norm: Tensor, filters: Filters) -> Tensor:
    """f from s = w^T x and the norms, both dense."""
    out = torch.empty_like(s)
    places = (s.data_ptr(), norm.data_ptr(), filters, out.data_ptr())
    kernels.forward(*places, Sizes.of(s), threads_for(s))
    return out


def run_backward(
    kernels: Any,
    grad: Tensor,
    s: Tensor,
    norm: Tensor,
    filters: Filters,
    asked: int,
    grad_s: Tensor,
) -> tuple[Tensor, Tensor]:
    """The gradient in the norms, and the sums over the pixels of which `asked` has the bits.

    That in s is written to `grad_s`, which may be s itself.
    """
    if grad.stride() != s.stride() or grad.is_neg():
        grad = torch.empty_like(s).copy_(grad)
    grad_norm = torch.empty_like(norm)
    sums = torch.zeros(len(SUMS), s.shape[1], dtype=torch.float64, device="cpu")
    kernels.backward(
        *(grad.data_ptr(), s.data_ptr(), norm.data_ptr(), filters, grad_s.data_ptr()),
        *(grad_norm.data_ptr(), sums.data_ptr(), asked, Sizes.of(s), threads_for(s)),
    )
    return grad_norm, sums
