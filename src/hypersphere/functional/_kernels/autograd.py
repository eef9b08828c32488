"""`torch.autograd.Function` for type checkers: torch leaves ``apply`` without annotations."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch

__all__ = ["Function"]

if TYPE_CHECKING:

    class Function(torch.autograd.Function):
        @classmethod
        def apply(cls, *args: Any) -> Any: ...

else:
    Function = torch.autograd.Function
