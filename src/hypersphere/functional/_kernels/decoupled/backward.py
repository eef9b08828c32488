"""What the backward passes of all forms of the operators have in common."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor
from torch._C._functorch import is_legacy_batchedtensor

from .convolution import is_traced

__all__ = ["plain_gradients", "takes_saved", "wants_plain_gradients"]


def wants_plain_gradients(grad: Tensor) -> bool:
    """Whether a backward should consist of plain operations, because something sees them.

    Either the gradients are differentiated again, or something records the operations, or there is
    a batch of them: as in `torch.autograd.functional.jacobian(..., vectorize=True)`, whose vmap is
    not that of torch.func.

    Args:
        grad: the gradient that the backward starts from.
    """
    return torch.is_grad_enabled() or is_traced() or is_legacy_batchedtensor(grad)


def plain_gradients(
    function: Callable[..., Tensor],
    tensors: Sequence[Tensor | None],
    needed: Sequence[bool],
    grad: Tensor,
) -> list[Tensor | None]:
    """The gradients of a function in those of its tensors that need one, by autograd.

    Where a second derivative is asked for, they have gradients of their own.
    """
    again = torch.is_grad_enabled()
    with torch.enable_grad():
        # One tensor may depend on another, as the radius on the mean of the norms: without views,
        # what flows through it would count twice.
        tensors = [t if t is None else t.view_as(t) for t in tensors]
        wanted = [t for t, need in zip(tensors, needed, strict=True) if need and t is not None]
        out = function(*tensors)
        found = iter(torch.autograd.grad(out, wanted, grad, create_graph=again, allow_unused=True))
    return [next(found) if need else None for need in needed]


_taking = threading.Lock()


def takes_saved(ctx: Any) -> bool:
    """Whether a backward may write into what its forward has saved: the first one may.

    A gradient that takes the place of a saved tensor spares one of the size of the output. Should
    a retained graph come here again, or another thread at the same time, what was saved has to be
    computed again. Write into its `data`, whose version is not that of the saved tensor: so a
    second visit finds it valid. The forward sets `ctx.spent` to False.
    """
    with _taking:
        spent, ctx.spent = ctx.spent, True
    return not spent
