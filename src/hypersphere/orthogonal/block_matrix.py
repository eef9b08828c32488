"""R = Diag(R_1, ..., R_k), the matrix that turns all neurons of a layer (F.33, F.34)."""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor, nn

from ..functional.orthogonalize import (
    apply_packed,
    determinants,
    inverts_blocks,
    pack_skew,
    packed_length,
    packed_size,
    solve_each,
    unpacked_skew,
)
from .matrices import CONSTRUCTED, PACKED, apply, matrix, neutral
from .steps import only_ogd_steps

__all__ = ["Matrix", "times_blocks", "wide_dtype"]

# Blocks up to this size: R is formed and multiplied, which is cheaper than acting without it.
FORMED = 128


def wide_dtype(dtype: torch.dtype) -> torch.dtype:
    """The type of the numbers behind R: float32 or wider, whatever the weights are."""
    return torch.promote_types(dtype, torch.float32)


def times_blocks(rows: Tensor, R: Tensor) -> Tensor:
    """rows Diag(R_1, ..., R_k), a set at a time.

    Args:
        rows: (sets * n, d).
        R: (sets, stored blocks, d/k, d/k); a single stored block stands for all.

    Returns:
        (sets * n, d).
    """
    sets, stored, size, _ = R.shape
    if sets == stored == 1:  # a plain product is quicker than a batch of one
        return (rows.reshape(-1, size) @ R[0, 0]).reshape(rows.shape)
    if sets == 1:  # bmm reads strided blocks as they are; matmul would copy them
        parts = rows.reshape(-1, stored, size).transpose(0, 1)
        return torch.bmm(parts, R[0]).transpose(0, 1).reshape(rows.shape)
    parts = rows.reshape(sets, -1, stored, size).transpose(1, 2)
    return (parts @ R).transpose(1, 2).reshape(rows.shape)


class Matrix(nn.Module):
    """w = R v for all neurons of a layer, R = Diag(R_1, ..., R_k) (Eq. 7.1, F.33, F.34).

    Maps rows (sets * n, d), one neuron per row, to rows of the same shape. A shared block sees each
    sub-neuron as a neuron of its own. The parameter U stays in float32 or wider, whatever becomes
    of the model around it.

    Args:
        U: (sets, k, d/k, d/k): one matrix per block, or a single one (k stored as 1) where the
            blocks are shared. It becomes the parameter. Of methods that use a skew matrix, the
            numbers above the diagonal are stored, row by row: (sets, k, m) with
            m = d/k (d/k - 1) / 2, which may be given as well.
        method: how R is made from U, a name of :func:`rotate`.
        blocks: k, the number of blocks.
        bandwidth: of method "banded".
    """

    no_weight_decay = True

    def __init__(self, U: Tensor, method: str, blocks: int = 1, bandwidth: int = 1) -> None:
        super().__init__()
        self.method = method
        self.blocks = blocks
        self.bandwidth = bandwidth
        if method in PACKED and U.dim() == 4:
            self.size, U = U.shape[-1], pack_skew(U)
        else:
            self.size = packed_size(U.shape[-1]) if method in PACKED else U.shape[-1]
        self.U = nn.Parameter(U)

    # An optimizer sees parameters, not methods: the mark tells which ones only OGD may step. torch
    # drops it in copies and pickles, hence __setstate__. See Note [Marks] in steps.py.
    def register_parameter(self, name: str, param: nn.Parameter | None) -> None:
        super().register_parameter(name, param)
        if param is not None and self.method == "ogd":
            param.orthogonal = True  # type: ignore[attr-defined]
            only_ogd_steps(self)

    def __setstate__(self, state: Any) -> None:
        super().__setstate__(state)  # type: ignore[no-untyped-call]
        self.register_parameter("U", self.U)

    # Steps of a rotation are far below the resolution of 16 bits: model.bfloat16() casts the rest.
    def _apply(self, fn: Any, recurse: bool = True) -> Any:
        before = self.U.detach()
        super()._apply(fn, recurse)  # type: ignore[no-untyped-call]
        if self.U.dtype.itemsize < 4:
            self.U.data = before.to(device=self.U.device, dtype=wide_dtype(self.U.dtype))
        self.register_parameter("U", self.U)
        return self

    # Checkpoints from before skew matrices were packed hold (sets, k, d/k, d/k).
    def _load_from_state_dict(self, state_dict: Any, prefix: str, *rest: Any) -> None:
        stored = state_dict.get(prefix + "U")
        if self.method in PACKED and stored is not None and stored.dim() == 4:
            state_dict[prefix + "U"] = pack_skew(stored)
        super()._load_from_state_dict(state_dict, prefix, *rest)

    # Note [Another optimizer]
    # Only OGD keeps a matrix of method "ogd" orthogonal; another optimizer is stopped at its first
    # step (see orthogonal/steps.py). What else may write to U, such as a loaded checkpoint, is
    # looked at once per version of the tensor, which costs one matrix product.
    def _check_orthogonal(self) -> None:
        """Raise in training if R of method "ogd" is not orthogonal. Note [Another optimizer]."""
        U = self.U
        # Without the mark it is not the parameter itself, but a stand-in of a transformation.
        if self.method != "ogd" or not (self.training and getattr(U, "orthogonal", False)):
            return
        if torch.compiler.is_compiling() or not (torch.is_grad_enabled() and U.requires_grad):
            return
        if getattr(U, "orthogonal_version", None) == U._version:
            return
        with torch.no_grad():
            error = gram_error(U.to(wide_dtype(U.dtype)))
        # Values that are not finite are no alarm: a loss shows those.
        if _FAR_FROM_ORTHOGONAL < error < math.inf:
            raise RuntimeError(
                f"R of method 'ogd' is not orthogonal any more: max |R^T R - I| is {error:.2g}. "
                f"Only hypersphere.orthogonal.OGD keeps it so; for another optimizer, choose "
                f"another method, such as rotate(model, method='cayley')"
            )
        mark_orthogonal(U)

    @property
    def orthogonal(self) -> bool:
        """Whether R is meant to be orthogonal, so that the energy stays (Eq. 7.2)."""
        return self.method in (*CONSTRUCTED, "ogd")

    def square(self) -> Tensor:
        """U as matrices; what is stored packed is upper triangular.

        Returns:
            (sets, stored blocks, d/k, d/k).
        """
        return unpacked_skew(self.U, self.size) if self.method in PACKED else self.U

    def forward(self, rows: Tensor) -> Tensor:
        self._check_orthogonal()
        sets, stored = self.U.shape[:2]
        size = self.size
        if sets * stored > 1 and size <= FORMED and not self._eliminated(rows):
            with torch.autocast(device_type=self.U.device.type, enabled=False):
                R = self.matrix()
                work = torch.promote_types(R.dtype, rows.dtype)
                return times_blocks(rows.to(work), R.to(work).mT).to(rows.dtype)
        if sets == stored == 1:  # one matrix: nothing to take apart, which is quicker
            columns = rows.reshape(-1, size).mT
            return self._applied(self.U.view(self.U.shape[2:]), columns).mT.reshape(rows.shape)
        columns = rows.reshape(sets, -1, stored, size).permute(0, 2, 3, 1)
        return self._applied(self.U, columns).permute(0, 3, 1, 2).reshape(rows.shape)

    def _eliminated(self, rows: Tensor) -> bool:
        """Whether blocks act on their few columns at less cost than R is formed."""
        n = rows.numel() // max(self.U.shape[0] * self.U.shape[1] * self.size, 1)
        return self.method == "cayley" and not inverts_blocks(self.U, self.size, n, "cayley")

    def _applied(self, U: Tensor, columns: Tensor) -> Tensor:
        """R V for the parameter U, or one block of it, and columns V."""
        if self.method in PACKED and self.method in CONSTRUCTED:
            return apply_packed(U, columns, self.method)
        if self.method in PACKED:
            U = unpacked_skew(U, self.size)
        return apply(U, columns, self.method, self.bandwidth)

    def turn_inputs(self, rows: Tensor) -> Tensor:
        """R^T x for inputs, as W (R^T x) = (W R^T) x: the other side of the same map.

        Args:
            rows: (m, d), one input per row.

        Returns:
            (m, d), in the type of the rows.
        """
        self._check_orthogonal()
        with torch.autocast(device_type=self.U.device.type, enabled=False):
            return times_blocks(rows, self.matrix().to(rows.dtype))

    def matrix(self) -> Tensor:
        """R as it is now.

        Returns:
            (sets, stored blocks, d/k, d/k).
        """
        return matrix(self.square(), self.method, self.bandwidth)

    def dense(self) -> Tensor:
        """R with its blocks on the diagonal.

        Returns:
            (sets, d, d).
        """
        R = self.matrix().expand(-1, self.blocks, -1, -1)
        return torch.stack([_block_diagonal(list(blocks)) for blocks in R])

    def undo(self, rows: Tensor) -> Tensor:
        """R^{-1} applied to neurons, in float64.

        Args:
            rows: (sets * n, d), one neuron per row.

        Returns:
            (sets * n, d), in the type of the rows.
        """
        R = matrix(self.square().detach().double(), self.method, self.bandwidth)
        if self.method in CONSTRUCTED:
            return times_blocks(rows.double(), R).to(rows.dtype)
        sets, stored, size, _ = R.shape
        columns = rows.double().reshape(sets, -1, stored, size).permute(0, 2, 3, 1)
        turned = solve_each(R, columns)
        return turned.permute(0, 3, 1, 2).reshape(rows.shape).to(rows.dtype)

    def orthogonality_error(self) -> float:
        """max |R^T R - I|, in float64.

        Returns:
            The largest entry.
        """
        return gram_error(self.matrix().double())

    def determinant(self) -> float:
        """det R; 1 or -1 if it is orthogonal.

        Returns:
            The determinant.
        """
        R = self.matrix().double()
        repeats = self.blocks if R.shape[1] == 1 else 1
        return float(determinants(R).prod() ** repeats)

    def extra_repr(self) -> str:
        return f"method={self.method!r}, U={tuple(self.U.shape)}, blocks={self.blocks}"


# Far above what OGD and rounding leave, 1e-5.
_FAR_FROM_ORTHOGONAL = 1e-3


def gram_error(R: Tensor) -> float:
    """max |R^T R - I| over a batch of matrices; 0 for none."""
    if R.numel() == 0:
        return 0.0
    R = R.detach()
    gram = R.mT @ R
    gram.diagonal(dim1=-2, dim2=-1).sub_(1.0)
    return float(gram.abs().amax())


def mark_orthogonal(U: Tensor) -> None:
    """Note that U is orthogonal in its present version. Note [Another optimizer]."""
    U.orthogonal_version = U._version  # type: ignore[attr-defined]


def start_matrix(
    method: str, sets: int, stored: int, size: int, blocks: int, bandwidth: int = 1
) -> Matrix:
    """A :class:`Matrix` at which R is the identity, or else a signed permutation, in float32."""
    if method in ("cayley", "exponential"):
        U = torch.zeros(sets, stored, packed_length(size))
        result = Matrix(U, method, blocks, bandwidth)
        result.size = size
        return result
    return Matrix(
        neutral(method, size).float().repeat(sets, stored, 1, 1), method, blocks, bandwidth
    )


def _block_diagonal(blocks: list[Tensor]) -> Tensor:
    result: Tensor = torch.block_diag(*blocks)  # type: ignore[no-untyped-call]
    return result
