"""Reading pickles of strangers: arrays and plain types, and nothing that runs code.

A pickle names the functions it wants called. This reader knows a short list of names, each bound to
a small builder of ours, and refuses every other name. So no code of the file's choosing is ever
reached, numpy's own unpickling (which trusts its input) is not used, and scipy is not needed.
"""

from __future__ import annotations

import io
import math
import pickle
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from .errors import DamagedData, damaged


class RefusedPickle(DamagedData):
    """A pickle asked for something that is neither an array nor a plain type."""


class SparseRows:
    """The content of a pickled scipy CSR matrix: `data`, `indices`, `indptr`, `shape`."""

    __slots__ = ("data", "indices", "indptr", "shape")

    data: np.ndarray
    indices: np.ndarray
    indptr: np.ndarray
    shape: tuple[int, int]

    def __setstate__(self, state: Any) -> None:
        if not isinstance(state, dict):
            raise RefusedPickle("it holds a sparse matrix without its arrays")
        for name in ("data", "indices", "indptr"):
            array = _unwrap(state.get(name))
            if not isinstance(array, np.ndarray) or array.ndim != 1:
                raise RefusedPickle(f"it holds a sparse matrix without the array {name!r}")
            setattr(self, name, array)
        # scipy stores the shape as _shape; old versions as shape.
        rows, columns = state["_shape"] if "_shape" in state else state["shape"]
        self.shape = (int(rows), int(columns))

    def dense(self) -> np.ndarray:
        """The matrix as (rows, columns) float32."""
        rows, columns = self.shape
        lengths = np.diff(self.indptr)
        fits = (
            len(lengths) == rows
            and (lengths >= 0).all()
            and len(self.data) == len(self.indices) == self.indptr[-1]
            and (len(self.indices) == 0 or 0 <= self.indices.min() <= self.indices.max() < columns)
        )
        if not fits:
            raise DamagedData(f"a sparse matrix {self.shape} whose indices do not fit it")
        matrix = np.zeros((rows, columns), np.float32)
        matrix[np.repeat(np.arange(rows), lengths), self.indices] = self.data
        return matrix


class _Type:
    """A number type, e.g. from numpy.dtype('f4') with the byte order given afterwards."""

    __slots__ = ("dtype",)

    def __init__(self, code: Any) -> None:
        text = code.decode("ascii", "replace") if isinstance(code, bytes) else code
        if not isinstance(text, str) or not re.fullmatch(r"[<>=|]?(b1|[iu][1248]|f[248])", text):
            raise RefusedPickle(f"it holds an array of type {code!r}; only numbers are read")
        self.dtype = np.dtype(text)

    def __setstate__(self, state: Any) -> None:
        order: Any = state[1].decode() if isinstance(state[1], bytes) else state[1]
        if order not in ("<", ">", "=", "|") or any(part is not None for part in state[2:5]):
            raise RefusedPickle("it holds an array of a compound type; only numbers are read")
        self.dtype = self.dtype.newbyteorder(order)


class _Array:
    """An array: started empty, then filled from (version, shape, type, column order, bytes)."""

    __slots__ = ("value",)

    def __setstate__(self, state: Any) -> None:
        shape, kind, columns, raw = state[-4:]
        content = raw.encode("latin1") if isinstance(raw, str) else raw
        if not isinstance(kind, _Type) or not isinstance(content, bytes):
            raise RefusedPickle("it holds an array of something else than numbers")
        if len(content) != math.prod(shape) * kind.dtype.itemsize or min(shape, default=0) < 0:
            raise RefusedPickle(f"it holds an array {shape} in {len(content)} bytes")
        array = np.frombuffer(content, kind.dtype).reshape(shape, order="F" if columns else "C")
        self.value = array.astype(kind.dtype.newbyteorder("="))  # a copy: writable, native order


class _Builder:
    """A function that the pickle may call, but whose attributes it cannot touch."""

    __slots__ = ("function",)

    def __init__(self, function: Callable[..., Any]) -> None:
        self.function = function

    def __call__(self, *arguments: Any) -> Any:
        return self.function(*arguments)

    def __setstate__(self, state: Any) -> None:
        raise RefusedPickle("it tries to change the reader")


def _encode(text: Any, encoding: Any = "latin1") -> bytes:
    # Python 3 writes bytes into old pickle protocols as text in latin1.
    if not isinstance(text, str) or encoding not in ("latin1", "latin-1"):
        raise RefusedPickle(f"it wants the encoding {encoding!r}; only latin1 is read")
    return text.encode("latin1")


def _scalar(kind: Any, content: Any) -> Any:
    array = _Array()
    array.__setstate__(((1,), kind, False, content))
    return array.value[0]


_BUILDERS: dict[tuple[str, str], Any] = {
    ("numpy", "ndarray"): _Builder(lambda *_: _Array()),
    ("numpy", "dtype"): _Builder(lambda code, *_: _Type(code)),
    ("_codecs", "encode"): _Builder(_encode),
    # The default of a defaultdict and the order of an OrderedDict are not needed for reading.
    ("collections", "defaultdict"): _Builder(lambda *_: {}),
    ("collections", "OrderedDict"): _Builder(lambda *_: {}),
    **{
        (f"numpy.{core}.multiarray", name): _Builder(function)
        for core in ("core", "_core")
        for name, function in (("_reconstruct", lambda *_: _Array()), ("scalar", _scalar))
    },
    **{
        (module, kind.__name__): kind
        for module in ("builtins", "__builtin__")
        for kind in (list, dict, set, tuple)
    },
    **{
        (module, "csr_matrix"): SparseRows
        for module in ("scipy.sparse.csr", "scipy.sparse._csr", "scipy.sparse")
    },
}


class _Restricted(pickle.Unpickler):
    def find_class(self, module: str, name: str) -> Any:
        if (module, name) not in _BUILDERS:
            raise RefusedPickle(
                f"it asks for {module}.{name}, which is neither an array nor a plain type"
            )
        return _BUILDERS[module, name]


def read_pickle(path: Path | str, where: str = "the publisher of the set") -> Any:
    """The content of a pickle made of arrays and plain types; text of Python 2 is read as latin1.

    Anything else, and so anything that could run code, raises `RefusedPickle` before it is built.
    """
    path = Path(path)
    content = path.read_bytes()
    try:
        return _unwrap(_Restricted(io.BytesIO(content), encoding="latin1").load())
    except RefusedPickle as error:
        raise RefusedPickle(f"{path} is refused: {error}. A genuine copy: {where}") from None
    except Exception as error:  # a broken pickle can fail in any operation
        raise damaged(
            path, "a pickle of arrays and plain types", f"{type(error).__name__}: {error}", where
        ) from None


def _unwrap(value: Any) -> Any:
    """The finished arrays in place of their builders."""
    if isinstance(value, _Array):
        return value.value
    if isinstance(value, dict):
        return {key: _unwrap(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return type(value)(_unwrap(item) for item in value)
    if isinstance(value, (_Type, _Builder, type)):
        raise RefusedPickle("it holds a type where a value belongs")
    return value
