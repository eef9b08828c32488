"""Reading untrusted pickles: arrays and plain types, and nothing that runs code.

A pickle names the functions it wants called. This reader knows a short list of names, each bound to
a small builder of ours, and refuses every other name. So no code of the file's choosing is ever
reached, numpy's own unpickling (which trusts its input) is not used, and scipy is not needed.

Note [Small pickles, large work]: a pickle may use one object many times. Thirty nested lists, each
holding the one before twice, take 300 bytes and 2^30 steps to walk through, to print or to hash.
So what the builders make and what the finished value spans, shared parts counted each time, is
bounded by a multiple of the file's size; only numbers and text may be hashed; and no message shows
a value of the file. The interpreter is the one written in Python, because in the C one neither the
keys of a dictionary nor the size of its memo can be watched; arrays take one operation in both.
"""

from __future__ import annotations

import io
import math
import pickle
import re
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any, ClassVar

import numpy as np

from .._reading import check_regular
from .errors import DamagedData, damaged
from .sparse_rows import SparseRows

__all__ = ["RefusedPickle", "read_pickle"]

MOST_BYTES = 1 << 30  # of a file: the largest that is read here has 155 million


class RefusedPickle(DamagedData):
    """A pickle asked for something that is neither an array nor a plain type."""


class _PickledType:
    """A number type, e.g. from numpy.dtype('f4') with the byte order given afterwards."""

    __slots__ = ("dtype",)

    def __init__(self, code: Any) -> None:
        text = code.decode("ascii", "replace") if isinstance(code, bytes) else code
        if not isinstance(text, str):
            raise RefusedPickle("it holds an array whose type is not named; only numbers are read")
        if not re.fullmatch(r"[<>=|]?(b1|[iu][1248]|f[248])", text):
            raise RefusedPickle(f"it holds an array of type {text[:20]!r}; only numbers are read")
        self.dtype = np.dtype(text)

    def __setstate__(self, state: Any) -> None:
        order: Any = state[1].decode() if isinstance(state[1], bytes) else state[1]
        if order not in ("<", ">", "=", "|") or any(part is not None for part in state[2:5]):
            raise RefusedPickle("it holds an array of a compound type; only numbers are read")
        self.dtype = self.dtype.newbyteorder(order)


class _PickledArray:
    """An array: started empty, then filled from (version, shape, type, column order, bytes)."""

    __slots__ = ("_spend", "value")

    def __init__(self, spend: Callable[[int], None]) -> None:
        self._spend = spend

    def __setstate__(self, state: Any) -> None:
        shape, kind, columns, raw = state[-4:]
        if not isinstance(raw, (str, bytes)) or not isinstance(kind, _PickledType):
            raise RefusedPickle("it holds an array of something else than numbers")
        if not (
            isinstance(shape, tuple)
            and len(shape) <= 32
            and all(type(n) is int and 0 <= n < 1 << 48 for n in shape)
        ):
            raise RefusedPickle("it holds an array whose shape is not made of whole numbers")
        self._spend(len(raw))
        content = raw.encode("latin1") if isinstance(raw, str) else raw
        if len(content) != math.prod(shape) * kind.dtype.itemsize:
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


# The interpreter in Python; typeshed describes the C one only.
_Interpreter: Any = pickle._Unpickler  # type: ignore[attr-defined]


class _Restricted(_Interpreter):  # type: ignore[misc]
    """An unpickler of the names below, whose work is bounded by the size of the pickle."""

    dispatch: ClassVar[dict[int, Any]] = dict(_Interpreter.dispatch)
    # Extensions of the running program, and an array that is allocated before its bytes are read.
    for _code in (pickle.EXT1, pickle.EXT2, pickle.EXT4, pickle.BYTEARRAY8):
        del dispatch[_code[0]]

    def __init__(self, content: bytes) -> None:
        super().__init__(io.BytesIO(content), encoding="latin1")
        self.limit = self.left = (1 << 20) + 16 * len(content)
        self.builders = self._make_builders()

    def spend(self, amount: int) -> None:
        """Count elements or bytes that a builder copies; see Note [Small pickles, large work]."""
        self.left -= amount
        if self.left < 0:
            raise RefusedPickle("it uses the same parts again and again, to many times its size")

    def find_class(self, module: str, name: str) -> Any:
        if (module, name) not in self.builders:
            raise RefusedPickle(
                f"it asks for {module[:80]}.{name[:80]}, which is neither an array nor a plain type"
            )
        return self.builders[module, name]

    def _make_builders(self) -> dict[tuple[str, str], Any]:
        def array(*_: Any) -> _PickledArray:
            return _PickledArray(self.spend)

        def scalar(kind: Any, content: Any) -> Any:
            made = array()
            made.__setstate__(((1,), kind, False, content))
            return made.value[0]

        def encode(text: Any, encoding: Any = "latin1") -> bytes:
            # Python 3 writes bytes into old pickle protocols as text in latin1.
            if not isinstance(text, str) or encoding not in ("latin1", "latin-1"):
                raise RefusedPickle("it wants another encoding of bytes than latin1")
            self.spend(len(text))
            return text.encode("latin1")

        def copy(kind: Callable[[Any], Any]) -> _Builder:
            def build(items: Any = ()) -> Any:
                if not isinstance(items, (list, tuple, dict, set)):
                    raise RefusedPickle("it builds a collection from something else than one")
                self.spend(len(items))
                if kind is dict and not isinstance(items, dict):
                    items = [(key, value) for key, value in items]
                    _check_keys(key for key, _ in items)
                if kind is set:
                    _check_keys(items)
                return kind(items)

            return _Builder(build)

        return {
            ("numpy", "ndarray"): _Builder(array),
            ("numpy", "dtype"): _Builder(lambda code, *_: _PickledType(code)),
            ("_codecs", "encode"): _Builder(encode),
            # The default of a defaultdict and the order of an OrderedDict are not needed.
            ("collections", "defaultdict"): _Builder(lambda *_: {}),
            ("collections", "OrderedDict"): _Builder(lambda *_: {}),
            **{
                (f"numpy.{core}.multiarray", name): _Builder(function)
                for core in ("core", "_core")
                for name, function in (("_reconstruct", array), ("scalar", scalar))
            },
            **{
                (module, kind.__name__): copy(kind)
                for module in ("builtins", "__builtin__")
                for kind in (list, dict, set, tuple)
            },
            # A class, because protocol 2 creates it with the operation NEWOBJ.
            **{
                (module, "csr_matrix"): SparseRows
                for module in ("scipy.sparse.csr", "scipy.sparse._csr", "scipy.sparse")
            },
        }

    # The operations that hash: the same as in the library, with their keys checked before.

    def load_dict(self) -> None:
        items = self.pop_mark()
        _check_keys(items[::2])
        self.append(dict(zip(items[::2], items[1::2], strict=True)))

    dispatch[pickle.DICT[0]] = load_dict

    def load_setitem(self) -> None:
        value, key = self.stack.pop(), self.stack.pop()
        self._set([key], [value])

    dispatch[pickle.SETITEM[0]] = load_setitem

    def load_setitems(self) -> None:
        items = self.pop_mark()
        self._set(items[::2], items[1::2])

    dispatch[pickle.SETITEMS[0]] = load_setitems

    def load_additems(self) -> None:
        items = self.pop_mark()
        _check_keys(items)
        if not isinstance(self.stack[-1], set):
            raise RefusedPickle("it adds elements to something that is no set")
        self.stack[-1].update(items)

    dispatch[pickle.ADDITEMS[0]] = load_additems

    def load_frozenset(self) -> None:
        items = self.pop_mark()
        _check_keys(items)
        self.append(frozenset(items))

    dispatch[pickle.FROZENSET[0]] = load_frozenset

    def _set(self, keys: list[Any], values: list[Any]) -> None:
        _check_keys(keys)
        if not isinstance(self.stack[-1], dict):
            raise RefusedPickle("it sets items of something that is no dictionary")
        self.stack[-1].update(zip(keys, values, strict=True))


def _check_keys(keys: Iterable[Any]) -> None:
    """Numbers and text: hashing a tuple walks through it, as often as its parts are shared."""
    if not all(isinstance(k, (str, bytes, int, float, type(None), np.generic)) for k in keys):
        raise RefusedPickle("it uses something else than a number or text as a key")


def read_pickle(path: Path | str, where: str = "the publisher of the set") -> Any:
    """The content of a pickle made of arrays and plain types; text of Python 2 is read as latin1.

    Anything else, and so anything that could run code, is refused before it is built; so is a
    pickle whose content, shared parts counted each time, is many times larger than the file.

    Args:
        path: the file.
        where: where a genuine copy is available, for messages.

    Returns:
        Numbers, text, lists, tuples, sets, dictionaries, numpy arrays and `SparseRows`.

    Raises:
        RefusedPickle: if it asks for something else.
        DamagedData: if it is no pickle, or is cut off.
    """
    path = Path(path)
    check_regular(path, MOST_BYTES)
    reader = _Restricted(path.read_bytes())
    try:
        return _Unwrapper(reader.limit).unwrap(reader.load())
    except RefusedPickle as error:
        raise RefusedPickle(f"{path} is refused: {error}. A genuine copy: {where}") from None
    except Exception as error:  # a broken pickle can fail in any operation
        # The text of an error may show a value; see Note [Small pickles, large work].
        plain = all(isinstance(part, (str, int)) for part in error.args)
        reason = f"{type(error).__name__}: {error}"[:200] if plain else type(error).__name__
        raise damaged(path, "a pickle of arrays and plain types", reason, where) from None


class _Unwrapper:
    """Puts the finished arrays in place of their builders, each shared part once."""

    def __init__(self, limit: int) -> None:
        self.limit = limit
        self.done: dict[int, tuple[Any, int]] = {}  # by id: the value, and how much it spans
        self.keep: list[Any] = []  # no id is used twice while its object lives

    def unwrap(self, value: Any) -> Any:
        made, span = self._visit(value)
        if span > self.limit:
            raise RefusedPickle("it uses the same parts again and again, to many times its size")
        return made

    def _visit(self, value: Any) -> tuple[Any, int]:
        if isinstance(value, _PickledArray):
            return value.value, 1 + value.value.nbytes
        if isinstance(value, (_PickledType, _Builder, type)):
            raise RefusedPickle("it holds a type where a value belongs")
        if isinstance(value, (str, bytes, set, frozenset)):
            return value, 1 + len(value)
        if isinstance(value, SparseRows):
            return value, 1 + value.nbytes
        if not isinstance(value, (dict, list, tuple)):
            return value, 1
        known = self.done.get(id(value))
        if known is not None:
            if known[1] < 0:
                raise ValueError("a collection contains itself")
            return known
        self.done[id(value)] = (None, -1)
        self.keep.append(value)
        if isinstance(value, dict):
            pairs = [(key, self._visit(item)) for key, item in value.items()]
            found: Any = {key: made for key, (made, _) in pairs}
            span = 1 + sum(size + 1 for _, (_, size) in pairs)
        else:
            parts = [self._visit(item) for item in value]
            found = type(value)(made for made, _ in parts)
            span = 1 + sum(size for _, size in parts)
        self.done[id(value)] = found, span
        return found, span
