"""Loewdin and the exponential as operators that torch.compile does not look into."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from ...derivatives import refuses_second_derivatives
from ...host import can_look
from ..autograd import NO_SECOND
from .exponential import Exponential
from .loewdin import Loewdin
from .products import by_products


# Note [Compiled graphs]
# Loewdin and the exponential look at their matrix to choose a number of terms, which a compiler
# cannot follow. For torch.compile they are operators of their own; between the two passes only
# their inputs are kept, so the backward pass factorizes anew.
class _Context:
    """Stands in for autograd's context where autograd is not at work."""

    needs_input_grad = (True, True)

    def save_for_backward(self, *tensors: Tensor) -> None:
        self.saved_tensors = tensors


_OPAQUE: dict[str, Any] = {"loewdin": Loewdin, "exponential": Exponential}


@torch.library.custom_op("hypersphere::rotation_series", mutates_args=())
def rotation_series(U: Tensor, V: Tensor, method: str) -> Tensor:
    """Loewdin(U, V) or Exponential(U, V). Note [Compiled graphs]."""
    result: Tensor = _OPAQUE[method].forward(_Context(), U, V)
    return result.contiguous()


@torch.library.custom_op("hypersphere::rotation_series_backward", mutates_args=())
def rotation_series_backward(U: Tensor, V: Tensor, G: Tensor, method: str) -> tuple[Tensor, Tensor]:
    context = _Context()
    _OPAQUE[method].forward(context, U, V)
    grad_U, grad_V = _OPAQUE[method].backward(context, G)[:2]
    return grad_U.contiguous(), grad_V.contiguous()


@rotation_series.register_fake
def _(U: Tensor, V: Tensor, method: str) -> Tensor:
    return V.new_empty(V.shape)


@rotation_series_backward.register_fake
def _(U: Tensor, V: Tensor, G: Tensor, method: str) -> tuple[Tensor, Tensor]:
    return U.new_empty(U.shape), V.new_empty(V.shape)


def _keep_inputs(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
    U, V, ctx.method = inputs
    ctx.save_for_backward(U, V)


@refuses_second_derivatives(NO_SECOND)
def _series_gradients(ctx: Any, G: Tensor) -> tuple[Tensor, Tensor, None]:
    return *rotation_series_backward(*ctx.saved_tensors, G, ctx.method), None


rotation_series.register_autograd(_series_gradients, setup_context=_keep_inputs)


def series(U: Tensor, V: Tensor, method: str) -> Tensor:
    """R(U) V of "loewdin" or "exponential"."""
    result: Tensor
    if U.device.type != "cpu" or not (can_look(U) or torch.compiler.is_compiling()):
        return by_products(U, V, method)
    if torch.compiler.is_compiling():
        result = rotation_series(U, V, method)
    else:
        result = _OPAQUE[method].apply(U, V)
    return result
