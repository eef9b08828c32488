"""R as a product of block-diagonal factors over ever wider strides: the butterfly of BOFT."""

from __future__ import annotations

from collections.abc import Iterable

import torch
from torch import Tensor

from .block_matrix import Matrix, times_blocks
from .matrices import matrix

__all__ = ["Butterfly", "most_factors"]


def most_factors(blocks: int) -> int:
    """Factors until every input can reach every output, or as many as the blocks allow.

    >>> most_factors(8), most_factors(6), most_factors(1)
    (4, 2, 1)
    """
    return 1 + (blocks & -blocks).bit_length() - 1


class Butterfly(Matrix):
    r"""w = R_m ... R_1 v, each factor block-diagonal after a permutation (BOFT, Liu et al. 2024).

    The d coordinates are cut into 2 k halves of blocks. A block of factor i turns two halves that
    lie 2^(i-1) halves apart: factor 1 is the block-diagonal R, and with k = 2^(m-1) blocks the m
    factors connect every coordinate to every other with m d (b - 1) / 2 numbers, b = d/k.

    Args:
        U: (sets, m k, b, b), or packed as in :class:`Matrix`: the k blocks of factor 1, then those
            of factor 2, and so on.
        method: a name of :func:`hypersphere.functional.orthogonalize`.
        blocks: k, the blocks of a factor.
        factors: m. k must be divisible by 2^(m-1), and b even if m > 1.
    """

    def __init__(self, U: Tensor, method: str, blocks: int, factors: int) -> None:
        super().__init__(U, method, blocks)
        if blocks % 2 ** (factors - 1) or (factors > 1 and self.size % 2):
            raise ValueError(
                f"{factors} butterfly factors need a number of blocks divisible by "
                f"{2 ** (factors - 1)} and blocks of even length; got {blocks} blocks of length "
                f"{self.size}"
            )
        self.factors = factors

    def forward(self, rows: Tensor) -> Tensor:
        with torch.autocast(device_type=self.U.device.type, enabled=False):
            R = self._by_factor(self.matrix())
            work = torch.promote_types(R.dtype, rows.dtype)
            turned = self._through(rows.to(work), R.to(work).mT, range(self.factors))
            return turned.to(rows.dtype)

    def turn_inputs(self, rows: Tensor) -> Tensor:
        """R^T x = R_1^T ... R_m^T x for inputs.

        Args:
            rows: (n, d), one input per row.

        Returns:
            (n, d).
        """
        with torch.autocast(device_type=self.U.device.type, enabled=False):
            R = self._by_factor(self.matrix()).to(rows.dtype)
            return self._through(rows, R, reversed(range(self.factors)))

    def dense(self) -> Tensor:
        """R as one matrix.

        Returns:
            (sets, d, d).
        """
        sets, d = self.U.shape[0], self.blocks * self.size
        eye = torch.eye(d, dtype=self.U.dtype, device=self.U.device).repeat(sets, 1)
        turned: Tensor = self(eye)
        return turned.view(sets, d, d).mT

    def undo(self, rows: Tensor) -> Tensor:
        """R^{-1} applied to neurons, in float64.

        Args:
            rows: (sets * n, d), one neuron per row.

        Returns:
            (sets * n, d), in the type of the rows.
        """
        R = self._by_factor(matrix(self.square().detach().double(), self.method))
        return self._through(rows.double(), R, reversed(range(self.factors))).to(rows.dtype)

    def determinant(self) -> float:
        """det R.

        Returns:
            The product of the determinants of all blocks.
        """
        return float(torch.linalg.det(self.matrix().double()).prod())

    def _by_factor(self, R: Tensor) -> Tensor:
        """(sets, m k, b, b) -> (m, sets, k, b, b)"""
        sets, _, size, _ = R.shape
        return R.view(sets, self.factors, self.blocks, size, size).transpose(0, 1)

    def _through(self, rows: Tensor, R: Tensor, order: Iterable[int]) -> Tensor:
        for i in order:
            # d = (groups, 2, stride, half): a block holds the halves [g, 0, s] and [g, 1, s]
            cut = rows.view(len(rows), -1, 2, 2**i, self.size // 2 or 1) if i else rows
            parts = cut.transpose(2, 3).reshape(rows.shape) if i else cut
            parts = times_blocks(parts, R[i])
            if i:
                parts = parts.view(len(rows), -1, 2**i, 2, self.size // 2).transpose(2, 3)
            rows = parts.reshape(rows.shape)
        return rows

    def extra_repr(self) -> str:
        return f"{super().extra_repr()}, factors={self.factors}"
