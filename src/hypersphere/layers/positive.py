"""A parameter that cannot leave the positive numbers, for k and the operator radius."""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn
from torch.nn import functional as F

__all__ = ["PositiveParameter"]

FLOOR = 1e-3


class PositiveParameter(nn.Module):
    """value = 1e-3 + softplus(raw): positive whatever an optimizer does to raw.

    Near its start a softplus is almost a line, so learning rates mean what they mean for a plain
    parameter. The floor keeps 1 / value finite.

    Args:
        start: the first value, > 1e-3.
        shape: shape of the value.
        device: where it lies.
        dtype: its type.

    >>> PositiveParameter(0.5)()
    tensor(0.5000, grad_fn=<AddBackward0>)
    """

    no_weight_decay = True

    def __init__(
        self,
        start: float,
        shape: tuple[int, ...] = (),
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        super().__init__()
        if not start > FLOOR:
            raise ValueError(f"a learned positive value must start above {FLOOR}, got {start}")
        self.start = start
        self.raw = nn.Parameter(torch.empty(shape, device=device, dtype=dtype))
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """Set the value to where it started."""
        x = self.start - FLOOR
        with torch.no_grad():
            self.raw.fill_(math.log(math.expm1(x)) if self.start < 30 else x)

    def forward(self) -> Tensor:
        return FLOOR + F.softplus(self.raw)

    def expand(self, count: int) -> PositiveParameter:
        """Make it a value per filter, all starting where this one is.

        Args:
            count: number of filters.

        Returns:
            The module itself.
        """
        if self.raw.ndim == 0:
            self.raw = nn.Parameter(self.raw.detach().repeat(count))
        elif self.raw.shape != (count,):
            raise ValueError(f"a parameter of {self.raw.numel()} filters cannot serve {count}")
        return self
