"""R as a product of a few reflections: Householder reflection adaptation (HRA)."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from ..functional import normalize
from .block_matrix import gram_error, wide_dtype

__all__ = ["Reflections"]


class Reflections(nn.Module):
    r"""w = H_1 ... H_r v with H_i = I - 2 u_i u_i^T / \|u_i\|^2 (HRA, Yuan et al. 2024).

    The product is I - V T V^T with the unit vectors V (d, r) and the triangular T whose inverse is
    triu(V^T V, 1) + I / 2: two thin products per neuron. Pairs of equal vectors are the identity.

    Args:
        U: (sets, r, d), one vector per row. It becomes the parameter.
    """

    no_weight_decay = True
    method = "reflections"
    orthogonal = True
    blocks = 1

    def __init__(self, U: Tensor) -> None:
        super().__init__()
        self.U = nn.Parameter(U)

    def _apply(self, fn: Any, recurse: bool = True) -> Any:  # float32 or wider, as in Matrix
        before = self.U.detach()
        super()._apply(fn, recurse)  # type: ignore[no-untyped-call]
        if self.U.dtype.itemsize < 4:
            self.U.data = before.to(device=self.U.device, dtype=wide_dtype(self.U.dtype))
        return self

    def forward(self, rows: Tensor) -> Tensor:
        return self._turned(rows, self.U, transposed=False)

    def turn_inputs(self, rows: Tensor) -> Tensor:
        """R^T x for inputs.

        Args:
            rows: (sets * n, d), one input per row.

        Returns:
            (sets * n, d).
        """
        return self._turned(rows, self.U, transposed=True)

    def undo(self, rows: Tensor) -> Tensor:
        """R^T applied to neurons, in float64.

        Args:
            rows: (sets * n, d), one neuron per row.

        Returns:
            (sets * n, d), in the type of the rows.
        """
        turned = self._turned(rows.double(), self.U.detach().double(), transposed=True)
        return turned.to(rows.dtype)

    def dense(self) -> Tensor:
        """R as one matrix.

        Returns:
            (sets, d, d).
        """
        sets, _, d = self.U.shape
        eye = torch.eye(d, dtype=self.U.dtype, device=self.U.device).repeat(sets, 1)
        turned: Tensor = self(eye)
        return turned.view(sets, d, d).mT

    def orthogonality_error(self) -> float:
        """max |R^T R - I|, in float64.

        Returns:
            The largest entry.
        """
        return gram_error(self.dense().double())

    def determinant(self) -> float:
        """det R: (-1)^r for each set.

        Returns:
            1 or -1.
        """
        sets, rank, _ = self.U.shape
        return (-1.0) ** (rank * sets)

    def _turned(self, rows: Tensor, U: Tensor, transposed: bool) -> Tensor:
        with torch.autocast(device_type=U.device.type, enabled=False):
            sets, rank, d = U.shape
            V = normalize(U)
            inverse = (V @ V.mT).triu(1) + 0.5 * torch.eye(rank, dtype=U.dtype, device=U.device)
            # R v = v - V T (V^T v); for rows, x - ((x V) T^T) V^T, and T for the transpose.
            work = torch.promote_types(U.dtype, rows.dtype)
            x = rows.to(work).reshape(sets, -1, d)
            V, inverse = V.to(work), inverse.to(work)
            inner = x @ V.mT
            if transposed:
                solved = torch.linalg.solve_triangular(inverse, inner, upper=True, left=False)
            else:
                solved = torch.linalg.solve_triangular(inverse.mT, inner, upper=False, left=False)
            turned: Tensor = x - solved @ V
            return turned.reshape(rows.shape).to(rows.dtype)

    def extra_repr(self) -> str:
        return f"U={tuple(self.U.shape)}"
