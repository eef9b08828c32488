"""Shapes as plain numbers, also while torch.jit.trace records."""

from __future__ import annotations

import torch
from torch import Tensor

__all__ = ["sizes"]


def sizes(x: Tensor) -> tuple[int, ...]:
    """x.shape for checks: what torch.jit.trace has in its place warns when it is compared.

    A check leaves nothing in the trace, so that there is nothing to warn of.
    """
    if not torch.jit.is_tracing():  # type: ignore[attr-defined, no-untyped-call]
        return x.shape
    state = torch._C._get_tracing_state()
    torch._C._set_tracing_state(None)  # type: ignore[attr-defined]
    try:
        return tuple(x.shape)
    finally:
        torch._C._set_tracing_state(state)  # type: ignore[attr-defined]
