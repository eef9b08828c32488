"""Independent readers: damaged content -> the same content written afresh, or None if it is not
valid in its format. A command that accepts a damaged file has to give the answer that it gives for
the file written afresh.
"""

from __future__ import annotations

import csv
import gzip
import io
import json
import pickle
import re
import struct
import warnings
import zlib
from typing import Any

import numpy as np

LIMIT = 64 << 20
TYPES = {"F64": "<f8", "F32": "<f4", "F16": "<f2", "I64": "<i8", "I32": "<i4", "I16": "<i2"}
TYPES |= {"I8": "i1", "U8": "u1", "BOOL": "?"}


def safetensors(content: bytes) -> bytes | None:
    """8 bytes of length, a JSON header, then the values; all bytes used once."""
    import torch
    from safetensors.torch import save

    try:
        (length,) = struct.unpack("<Q", content[:8])
        header = json.loads(content[8 : 8 + length].decode())
        body, tensors = content[8 + length :], {}
        header.pop("__metadata__", None)
        reached = 0
        for name, item in sorted(header.items(), key=lambda kv: kv[1]["data_offsets"]):
            first, last = item["data_offsets"]
            if first != reached or last < first or last > len(body):
                return None
            values = np.frombuffer(body[first:last], TYPES[item["dtype"]])
            tensors[name] = torch.from_numpy(values.reshape(item["shape"]).copy())
            reached = last
        return save(tensors) if reached == len(body) else None
    except (ValueError, KeyError, TypeError, AttributeError, struct.error, RecursionError):
        return None


def npz(content: bytes) -> bytes | None:
    """A zip of .npy files; the checksums of zip are right."""
    if len(content) > LIMIT:
        return None
    try:
        with np.load(io.BytesIO(content), allow_pickle=False) as arrays:
            found = {name: arrays[name] for name in arrays.files}
    except Exception:  # numpy and zipfile fail in many ways
        return None
    file = io.BytesIO()
    np.savez(file, **found)
    return file.getvalue()


def idx(content: bytes) -> bytes | None:
    """00 00 type dimensions, sizes, values; big-endian."""
    if len(content) < 4 or content[:2] != b"\0\0" or content[2] not in (8, 9, 11, 12, 13, 14):
        return None
    size = {8: 1, 9: 1, 11: 2, 12: 4, 13: 4, 14: 8}[content[2]]
    dimensions = content[3]
    if len(content) < 4 + 4 * dimensions:
        return None
    for extent in struct.unpack(f">{dimensions}I", content[4 : 4 + 4 * dimensions]):
        size *= extent
    return content if len(content) == 4 + 4 * dimensions + size else None


def idx_gz(content: bytes) -> bytes | None:
    """The same, packed."""
    try:
        with gzip.open(io.BytesIO(content)) as file:
            found = idx(file.read(LIMIT))
    except Exception:  # zlib and gzip fail in many ways
        return None
    return None if found is None else gzip.compress(found, mtime=0)


class _Plain(pickle.Unpickler):
    def find_class(self, module: str, name: str) -> Any:
        if module.split(".")[0] in ("numpy", "scipy") and name in (
            "_reconstruct", "ndarray", "dtype", "csr_matrix", "scalar", "_frombuffer",
        ):  # fmt: skip
            return super().find_class(module, name)
        known = {"defaultdict", "list", "int", "encode"}
        if name in known and module in ("collections", "builtins", "__builtin__", "_codecs"):
            return super().find_class(module, name)
        raise pickle.UnpicklingError(f"{module}.{name}")


def pickled(content: bytes) -> bytes | None:
    """One pickle of plain values, arrays and sparse rows."""
    try:
        found = _Plain(io.BytesIO(content), encoding="latin1").load()
        return pickle.dumps(found, protocol=2)
    except Exception:  # a damaged pickle fails in any way
        return None


def picture(content: bytes) -> bytes | None:
    """What Pillow reads without a complaint."""
    from PIL import Image

    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # of pictures that are large
            with Image.open(io.BytesIO(content)) as found:
                found.load()
                file = io.BytesIO()
                found.convert("L" if found.mode in ("1", "L") else "RGB").save(file, "PNG")
    except Exception:  # so does Pillow
        return None
    return file.getvalue()


def text(content: bytes) -> str | None:
    """UTF-8 without control characters other than blanks."""
    try:
        found = content.decode("utf-8-sig")
    except UnicodeDecodeError:
        return None
    return None if re.search(r"[\x00-\x08\x0e-\x1b\x7f]", found) else found


def numbers(content: bytes) -> bytes | None:
    """Whole numbers between blanks."""
    found = text(content)
    if found is None or not all(re.fullmatch(r"[+-]?\d+", word) for word in found.split()):
        return None
    return "".join(f"{int(word)}\n" for word in found.split()).encode()


def words(content: bytes) -> bytes | None:
    """Lines of words."""
    found = text(content)
    if found is None:
        return None
    lines = [" ".join(line.split()) for line in found.splitlines() if line.strip()]
    return ("\n".join(lines) + "\n").encode()


def table(content: bytes) -> bytes | None:
    """filename,label on every line."""
    found = text(content)
    if found is None:
        return None
    rows = list(csv.DictReader(io.StringIO(found)))
    if not rows or any(not r.get("filename") or not r.get("label") or None in r for r in rows):
        return None
    return "\n".join(["filename,label", *(f"{r['filename']},{r['label']}" for r in rows)]).encode()


def listing(content: bytes) -> bytes | None:
    """JSON."""
    try:
        return json.dumps(json.loads(content.decode("utf-8"))).encode()
    except (ValueError, RecursionError):
        return None


def sealed(content: bytes) -> bytes | None:
    """A JSON object whose checksum, if it has one, is that of the rest."""
    try:
        found = json.loads(content.decode("utf-8"))
        checksum = found.pop("checksum", None)
        own = f"{zlib.crc32(json.dumps(found, sort_keys=True).encode()):08x}"
    except (ValueError, RecursionError, AttributeError, TypeError):
        return None
    return json.dumps(found).encode() if checksum in (None, own) else None


def hdf5(content: bytes) -> bytes | None:
    """What h5py reads without a complaint."""
    import h5py

    try:
        with h5py.File(io.BytesIO(content), "r") as file:
            found = {key: np.asarray(file[key]) for key in file}
        out = io.BytesIO()
        with h5py.File(out, "w") as file:
            for key, value in found.items():
                file[key] = value
    except Exception:  # h5py raises what its C library says
        return None
    return out.getvalue()


def yaml_config(content: bytes) -> bytes | None:
    """Sections of YAML."""
    import yaml

    if len(content) > 1 << 20:
        return None
    try:
        found = yaml.safe_load(content.decode("utf-8"))
    except Exception:  # the library has error types of its own
        return None
    return yaml.safe_dump(found, sort_keys=False).encode() if isinstance(found, dict) else None
