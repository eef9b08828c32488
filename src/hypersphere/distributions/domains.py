"""What parameters and values have to satisfy, in words that an error message can show."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.distributions import constraints

__all__ = ["broadcast_shape", "concentrations", "unit_vectors"]


class _UnitVectors(constraints.Constraint):
    """Vectors of length 1, up to rounding of the type that they come in."""

    event_dim = 1

    def check(self, value: Tensor) -> Tensor:
        sixteen_bits = value.dtype in (torch.float16, torch.bfloat16)
        wide = value.float() if sixteen_bits else value
        length: Tensor = torch.linalg.vector_norm(wide, dim=-1)
        return (length - 1).abs() <= (2e-2 if sixteen_bits else 1e-4)

    def __repr__(self) -> str:
        return "unit vectors along the last dimension (hypersphere.functional.normalize makes them)"


class _Concentrations(constraints.Constraint):
    """Finite numbers >= 0."""

    def check(self, value: Tensor) -> Tensor:
        return (value >= 0) & (value < torch.inf)

    def __repr__(self) -> str:
        return "finite concentrations >= 0"


unit_vectors = _UnitVectors()
concentrations = _Concentrations()


def broadcast_shape(*shapes: tuple[int, ...]) -> torch.Size:
    """The shape to which all of them broadcast.

    Args:
        shapes: Shapes of tensors.

    Returns:
        Their common shape.
    """
    shape: torch.Size = torch.broadcast_shapes(*shapes)  # type: ignore[no-untyped-call]
    return shape
