"""W = P W_0 R^T, orthogonal matrices on both sides: the spectrum of W stays (POET)."""

from __future__ import annotations

from torch import Tensor, nn

from .block_matrix import Matrix

__all__ = ["TwoSided"]


class TwoSided(nn.Module):
    """One map turns every neuron, another mixes the neurons (POET, Qiu et al. 2025).

    With the neurons as the rows of W_0 (n, d), W = P W_0 R^T: lengths and angles of the neurons may
    change, the singular values of W_0 never do. Neurons of different sets or groups are not mixed.

    Args:
        inputs: R, acting on vectors of length d.
        outputs: P, acting on vectors of length n, a set or group at a time.
    """

    no_weight_decay = True

    def __init__(self, inputs: nn.Module, outputs: Matrix) -> None:
        super().__init__()
        self.inputs = inputs
        self.outputs = outputs

    @property
    def method(self) -> str:
        """How R is made from its parameter."""
        return str(self.inputs.method)

    @property
    def orthogonal(self) -> bool:
        """False: the energy of the neurons changes."""
        return False

    @property
    def blocks(self) -> int:
        """Blocks of R."""
        return int(self.inputs.blocks)  # type: ignore[arg-type]

    def forward(self, rows: Tensor) -> Tensor:
        turned: Tensor = self.inputs(rows)
        return self._mixed(turned, self.outputs)

    def undo(self, rows: Tensor) -> Tensor:
        """The neurons behind a weight, in float64.

        Args:
            rows: (sets * n, d).

        Returns:
            (sets * n, d), in the type of the rows.
        """
        mixed = self._mixed(rows.double(), self.outputs.undo)
        undone: Tensor = self.inputs.undo(mixed)  # type: ignore[operator]
        return undone.to(rows.dtype)

    def orthogonality_error(self) -> float:
        """max |R^T R - I| of both matrices.

        Returns:
            The largest entry.
        """
        inputs: float = self.inputs.orthogonality_error()  # type: ignore[operator]
        return max(inputs, self.outputs.orthogonality_error())

    def determinant(self) -> float:
        """det R det P.

        Returns:
            The product.
        """
        inputs: float = self.inputs.determinant()  # type: ignore[operator]
        return inputs * self.outputs.determinant()

    def _mixed(self, rows: Tensor, turn: object) -> Tensor:
        sets = self.outputs.U.shape[0]
        length = self.outputs.size * self.outputs.blocks
        columns = rows.reshape(sets, length, -1).mT  # (sets, d, n)
        turned = turn(columns.reshape(-1, length))  # type: ignore[operator]
        result: Tensor = turned.view(columns.shape).mT.reshape(rows.shape)
        return result
