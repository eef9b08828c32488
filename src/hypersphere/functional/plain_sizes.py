"""Shapes as plain numbers, also while torch.jit.trace records."""

from __future__ import annotations

import torch
from torch import Tensor

__all__ = ["plain_sizes"]


def plain_sizes(x: Tensor) -> tuple[int, ...]:
    """x.shape for checks: what torch.jit.trace has in its place warns when it is compared.

    A check leaves nothing in the trace, so that there is nothing to warn of.

    Args:
        x: any tensor.

    Returns:
        Its shape in whole numbers.

    >>> plain_sizes(torch.ones(2, 3)) == (2, 3)
    True
    """
    if not torch.jit.is_tracing():  # type: ignore[attr-defined, no-untyped-call]
        return x.shape
    state = torch._C._get_tracing_state()
    torch._C._set_tracing_state(None)  # type: ignore[attr-defined]
    try:
        return tuple(x.shape)
    finally:
        torch._C._set_tracing_state(state)  # type: ignore[attr-defined]
