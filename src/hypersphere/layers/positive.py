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
        raw = math.log(math.expm1(start - FLOOR)) if start < 30 else start - FLOOR
        self.raw = nn.Parameter(torch.full(shape, raw, device=device, dtype=dtype))

    def forward(self) -> Tensor:
        return FLOOR + F.softplus(self.raw)

    def expand(self, count: int) -> PositiveParameter:
        """One value for each of `count` filters, all starting where this one is."""
        if self.raw.ndim == 0:
            self.raw = nn.Parameter(self.raw.detach().repeat(count))
        elif self.raw.shape != (count,):
            raise ValueError(f"holds {self.raw.numel()} values already, not {count}")
        return self
