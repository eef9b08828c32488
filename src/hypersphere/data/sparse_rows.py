"""A sparse matrix by rows, as scipy pickles one, without scipy."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from torch import Tensor

from .errors import DamagedData
from .limits import MAX_BYTES

__all__ = ["SparseRows"]


class SparseRows:
    """The content of a pickled scipy CSR matrix: `data`, `indices`, `indptr`, `shape`.

    It is filled by unpickling; `check` has to pass before the arrays may be trusted.
    """

    __slots__ = ("data", "indices", "indptr", "shape")

    data: np.ndarray
    indices: np.ndarray
    indptr: np.ndarray
    shape: tuple[int, int]

    def __setstate__(self, state: Any) -> None:
        if not isinstance(state, dict):
            raise DamagedData("it holds a sparse matrix without its arrays")
        for name in ("data", "indices", "indptr"):
            array = getattr(state.get(name), "value", None)  # a pickled array is wrapped
            if not isinstance(array, np.ndarray) or array.ndim != 1:
                raise DamagedData(f"it holds a sparse matrix without the array {name!r}")
            setattr(self, name, array)
        # scipy stores the shape as _shape; old versions as shape.
        shape = state.get("_shape", state.get("shape"))
        if not isinstance(shape, tuple) or len(shape) != 2:
            raise DamagedData("it holds a sparse matrix without its shape")
        rows, columns = shape
        if not (isinstance(rows, (int, np.integer)) and isinstance(columns, (int, np.integer))):
            raise DamagedData("it holds a sparse matrix without its shape")
        self.shape = (int(rows), int(columns))

    @property
    def nbytes(self) -> int:
        """Bytes of its arrays."""
        return sum(getattr(self, n).nbytes for n in ("data", "indices", "indptr"))

    def check(self) -> SparseRows:
        """The matrix itself, if its indices fit its shape and its values are finite numbers."""
        if not all(hasattr(self, name) for name in self.__slots__):
            raise DamagedData("a sparse matrix without its arrays")
        rows, columns = self.shape
        whole = self.indices.dtype.kind in "iu" and self.indptr.dtype.kind in "iu"
        fits = (
            whole
            and rows >= 0
            and columns >= 0
            and len(self.indptr) == rows + 1
            and self.indptr[0] == 0
            and bool((np.diff(self.indptr.astype(np.int64)) >= 0).all())
            and len(self.data) == len(self.indices) == self.indptr[-1]
            and (len(self.indices) == 0 or 0 <= self.indices.min() <= self.indices.max() < columns)
        )
        if not fits:
            raise DamagedData(f"a sparse matrix {self.shape} whose indices do not fit it")
        if 4 * rows * columns > MAX_BYTES:
            raise DamagedData(f"a sparse matrix {self.shape}, larger than {MAX_BYTES:,} bytes")
        if not np.isfinite(self.data).all():
            raise DamagedData("a sparse matrix with values that are not finite")
        return self

    def sparse(self) -> Tensor:
        """The matrix as a sparse COO tensor (rows, columns) float32, coalesced."""
        self.check()
        lengths: Any = np.diff(self.indptr.astype(np.int64))
        rows = np.repeat(np.arange(self.shape[0]), lengths)
        index = torch.from_numpy(np.stack([rows, self.indices.astype(np.int64)]))
        values = torch.from_numpy(self.data.astype(np.float32))
        # Checked above; coalescing sums entries that are given twice, as scipy does.
        return torch.sparse_coo_tensor(index, values, self.shape, check_invariants=False).coalesce()

    def dense(self) -> np.ndarray:
        """The matrix as (rows, columns) float32."""
        made: np.ndarray = self.sparse().to_dense().numpy()
        return made
