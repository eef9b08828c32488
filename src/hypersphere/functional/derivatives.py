"""Gradients whose derivatives are not known: asked for them, they say so."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

__all__ = ["refuses_second_derivatives"]


def refuses_second_derivatives(
    sentence: str, at_once: bool = False
) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """For a backward that cannot be differentiated: refuse it, before a gradient misses a part.

    `torch.autograd.function.once_differentiable` refuses as well, but only where something is
    accumulated: `torch.autograd.grad` leaves out the terms that it cannot reach. Here gradients
    stay tied to what they were made of, and the way back through them ends with the sentence.

    Args:
        sentence: what has no second derivatives, and what to do instead.
        at_once: refuse to build a graph of the gradients. For functions that do not save what they
            are differentiated in: their gradients could not be tied to it.
    """

    def decorate(backward: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(backward)
        def once(ctx: Any, *grads: Any) -> Any:
            if not torch.is_grad_enabled() or torch.compiler.is_compiling():
                return backward(ctx, *grads)
            if at_once:
                raise RuntimeError(sentence)
            read = _ReadOnce(ctx)
            with torch.no_grad():
                results = backward(read, *grads)
            made_of = [
                t
                for t in (*grads, *read.saved_tensors)
                if isinstance(t, Tensor) and t.requires_grad
            ]
            if not made_of:
                return results
            end: Callable[..., Tensor] = _End.apply
            return tuple(
                end(sentence, result, *made_of) if isinstance(result, Tensor) else result
                for result in (results if isinstance(results, tuple) else (results,))
            )

        return once

    return decorate


class _ReadOnce:
    """The context of a backward whose saved tensors are read twice, which checkpoints forbid."""

    def __init__(self, ctx: Any) -> None:
        self.__dict__.update(ctx=ctx, saved_tensors=ctx.saved_tensors)

    def __getattr__(self, name: str) -> Any:
        return getattr(self.ctx, name)

    def __setattr__(self, name: str, value: Any) -> None:
        setattr(self.ctx, name, value)


class _End(torch.autograd.Function):
    """A gradient, and the sentence for who wants its derivative."""

    @staticmethod
    def forward(sentence: str, result: Tensor, *made_of: Tensor) -> Tensor:
        return result.view_as(result)

    @staticmethod
    def setup_context(ctx: Any, inputs: Any, output: Any) -> None:
        ctx.sentence = inputs[0]

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> Any:
        raise RuntimeError(ctx.sentence)
