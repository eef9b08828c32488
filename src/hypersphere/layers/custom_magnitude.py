"""A magnitude h(|x|) from any callable."""

from __future__ import annotations

from collections.abc import Callable

from torch import Tensor, nn

from .magnitude import Magnitude

__all__ = ["CustomMagnitude"]


class CustomMagnitude(Magnitude):
    """Any h, as a function of |x|: a plain callable or a module.

    A module's parameters are trained with the layer.

    Args:
        function: maps norms to values of the same shape.
        alpha: scales h, > 0.

    >>> import torch
    >>> CustomMagnitude(torch.sqrt, alpha=3.0)(torch.tensor([[4.0]]))
    tensor([[6.]])
    """

    def __init__(self, function: Callable[[Tensor], Tensor], alpha: float = 1.0) -> None:
        super().__init__(alpha)
        if not callable(function):
            raise TypeError(f"CustomMagnitude expects a callable of |x|, got {function!r}")
        self.function = function

    def value(self, norm: Tensor) -> Tensor:
        return self.function(norm)

    def extra_repr(self) -> str:
        shown = "" if isinstance(self.function, nn.Module) else f"{self.function!r}, "
        return shown + super().extra_repr()
