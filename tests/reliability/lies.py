"""Damages in a format's own words: headers that lie, values of another type, small files of large
work.
"""

from __future__ import annotations

import functools
import gzip
import io
import json
import pickle
import struct
import zipfile
import zlib
from collections.abc import Callable
from typing import Any

import numpy as np
from PIL import Image

from reliability.damage import Damage, gzip_bomb, replace, rewrite

ODD: dict[str, Any] = {
    "null": None, "minus one": -1, "a text": "x", "a list": [1, [2]], "a section": {"a": {}},
    "true": True, "1e400": float("inf"), "nan": float("nan"), "a huge number": 10**30,
}  # fmt: skip


def json_lies(*paths: str) -> list[Damage]:
    """Each value at a path such as "config.seed" removed, and replaced by values of other types."""
    found: list[Damage] = []
    for number, path in enumerate(paths):
        found.append(_edit(path, "removed", _remove))
        # All kinds of values meet all files; each path meets some of them.
        for i, (name, value) in enumerate(ODD.items()):
            if (i + number) % 3 == 0:
                found.append(_edit(path, name, lambda d, k, v=value: d.__setitem__(k, v)))
    return found


def _remove(section: Any, key: Any) -> None:
    del section[key]


def _edit(path: str, what: str, change: Callable[[Any, Any], None]) -> Damage:
    def apply(content: bytes) -> bytes:
        record = json.loads(content)
        if isinstance(record, dict):  # as an earlier version wrote it: only the types speak
            record.pop("checksum", None)
        *above, last = [int(k) if k.isdigit() else k for k in path.split(".")]
        place = record
        for key in above:
            place = place[key]
        change(place, last)
        return json.dumps(record).encode()

    return rewrite(f"{path}: {what}", "lying", apply)


def safetensors_lies() -> list[Damage]:
    """Headers that do not fit the values."""

    def header(change: Callable[[dict[str, Any]], None]) -> Callable[[bytes], bytes]:
        def apply(content: bytes) -> bytes:
            (length,) = struct.unpack("<Q", content[:8])
            record = json.loads(content[8 : 8 + length])
            change(record)
            text = json.dumps(record).encode()
            return struct.pack("<Q", len(text)) + text + content[8 + length :]

        return apply

    def first(record: dict[str, Any]) -> dict[str, Any]:
        return record[next(k for k in record if k != "__metadata__")]

    def overlap(record: dict[str, Any]) -> None:
        for item in record.values():
            if "data_offsets" in item:
                size = item["data_offsets"][1] - item["data_offsets"][0]
                item["data_offsets"] = [0, size]

    changes: dict[str, Callable[[dict[str, Any]], None]] = {
        "a shape of 10^12": lambda r: first(r).update(shape=[10**12]),
        "a negative shape": lambda r: first(r).update(shape=[-1]),
        "another shape": lambda r: first(r).update(shape=[1, *first(r)["shape"]]),
        "an unknown type": lambda r: first(r).update(dtype="F99"),
        "another type": lambda r: first(r).update(dtype="U8"),
        "overlapping values": overlap,
        "offsets beyond the end": lambda r: first(r).update(data_offsets=[0, 10**15]),
        "another name": lambda r: r.update({"\x1b[2Jeve": r.pop(next(iter(r)))}),
        "no tensors": lambda r: r.clear(),
    }
    lies = [rewrite(name, "lying", header(change)) for name, change in changes.items()]
    length = struct.pack("<Q", 1 << 62)
    lies.append(rewrite("a header of 2^62 bytes", "bombed", lambda c: length + c[8:]))
    return lies


def npy(array: np.ndarray, shape: str | None = None) -> bytes:
    """A .npy file; with `shape`, under a header that says so."""
    file = io.BytesIO()
    np.save(file, array, allow_pickle=True)
    content = file.getvalue()
    if shape is None:
        return content
    start = content.index(b"(")
    header = content[start : content.index(b"\n", start)]
    return content.replace(header, f"{shape}, }}".encode().ljust(len(header)), 1)


def archive(**members: bytes) -> bytes:
    """A .npz file of .npy files."""
    file = io.BytesIO()
    with zipfile.ZipFile(file, "w", zipfile.ZIP_DEFLATED, compresslevel=9) as out:
        for name, content in members.items():
            out.writestr(f"{name}.npy", content)
    return file.getvalue()


@functools.cache
def npz_bomb(megabytes: int = 400) -> bytes:
    """Zeros, a thousand times as large as they look."""
    return archive(features=npy(np.zeros(megabytes << 20, "u1")))


def npz_lies() -> list[Damage]:
    """Archives whose members are not what the reader wants."""
    features, labels = np.random.default_rng(1).random((12, 6), np.float32), np.arange(12) % 4
    own = npy(labels)
    holes = features.copy()
    holes[3, 2] = np.nan
    return [
        replace("zeros of 400 MB", "bombed", npz_bomb),
        replace(
            "a shape of 10^12", "bombed", archive(features=npy(features, "(10**12,)"), labels=own)
        ),
        replace(
            "terabytes", "bombed", archive(features=npy(features, "(1000000000000,)"), labels=own)
        ),
        replace("no features", "lying", archive(labels=own)),
        replace("no arrays", "lying", archive()),
        replace("labels of another length", "lying", archive(features=npy(features), labels=own[:-8])),  # noqa: E501
        replace("fewer labels", "lying", archive(features=npy(features), labels=npy(labels[:5]))),
        replace("objects", "lying", archive(features=npy(np.array([{}], object)), labels=own)),
        replace("texts", "lying", archive(features=npy(np.array([["a"] * 6] * 12)), labels=own)),
        replace("one axis", "lying", archive(features=npy(features[0]), labels=own)),
        replace("three axes", "lying", archive(features=npy(features[None]), labels=own)),
        replace("no rows", "lying", archive(features=npy(features[:0]), labels=npy(labels[:0]))),
        replace("no columns", "lying", archive(features=npy(features[:, :0]), labels=own)),
        replace("NaN in a row", "lying", archive(features=npy(holes), labels=own)),
        replace("complex numbers", "lying", archive(features=npy(features + 1j), labels=own)),
    ]  # fmt: skip


def pickle_lies() -> list[Damage]:
    """Pickles of little size and large work, and of other things."""
    bomb = b"\x80\x02]q\x00" + b"".join(
        b"]q" + bytes([i + 1]) + (b"(" + b"h" + bytes([i]) + b"h" + bytes([i]) + b"e")
        for i in range(60)
    )
    return [
        replace("references of references", "bombed", bomb + b"."),
        replace("a claim of 2^31 bytes", "bombed", b"\x80\x02T\xff\xff\xff\x7fabc."),
        replace("tuples without end", "bombed", b"\x80\x02)" + b"\x85" * 200_000 + b"."),
        replace("a number", "lying", pickle.dumps(5, 2)),
        replace("the text data", "lying", pickle.dumps("data", 2)),
        replace("an empty dictionary", "lying", pickle.dumps({}, 2)),
        replace("other values", "lying", pickle.dumps({"data": 1, "labels": None}, 2)),
        replace("an array of NaN", "lying", pickle.dumps(np.full((4, 3), np.nan), 2)),
        replace("nested lists", "lying", pickle.dumps({"data": [[1], [2]], "labels": [[1]]}, 2)),
    ]


def idx_lies() -> list[Damage]:
    """Headers of more than there is."""
    return [
        replace("255 dimensions", "lying", bytes([0, 0, 8, 255]) + bytes([0, 0, 0, 1]) * 255 + b"a"),  # noqa: E501
        replace("2^96 bytes", "bombed", bytes([0, 0, 8, 3]) + b"\xff" * 12),
        replace("2^40 bytes of nothing", "bombed", bytes([0, 0, 8, 2]) + b"\x00\x10\x00\x00" * 2),
        replace("no dimensions", "lying", bytes([0, 0, 8, 0]) + b"a"),
        replace("no pictures", "lying", bytes([0, 0, 8, 3]) + bytes(12)),
        replace("floats", "lying", bytes([0, 0, 13, 1, 0, 0, 0, 2]) + bytes(8)),
    ]  # fmt: skip


def gz_lies() -> list[Damage]:
    """Archives that unpack to more than they look like."""
    header = bytes([0, 0, 8, 3]) + struct.pack(">3I", 512, 1024, 1024)
    honest = gzip.compress(header, mtime=0)
    return [
        replace("zeros of 512 MB", "bombed", gzip_bomb),
        replace("a header and zeros of 512 MB", "bombed", lambda: honest + gzip_bomb()),
    ]


def text_lies(*lines: str) -> list[Damage]:
    """Each line in front of the others, alone, and behind them."""
    found = []
    for line in lines:
        body = line.encode()
        shown = line if len(line) < 40 else line[:40] + "..."
        found.append(replace(f"only {shown!r}", "lying", body + b"\n"))
        found.append(rewrite(f"first {shown!r}", "lying", lambda c, b=body: b + b"\n" + c))
        found.append(rewrite(f"last {shown!r}", "lying", lambda c, b=body: c + b + b"\n"))
    return found


def saved(picture: Image.Image, kind: str = "PNG", **options: Any) -> bytes:
    """The file of a picture."""
    file = io.BytesIO()
    picture.save(file, kind, **options)
    return file.getvalue()


@functools.cache
def large_picture() -> bytes:
    """A picture of a hundred million pixels, small as a file."""
    return saved(Image.new("1", (10_000, 10_000)))


def picture_lies() -> list[Damage]:
    """Pictures of other sizes and kinds."""
    gray = Image.new("L", (8, 8), 99)
    huge = bytearray(saved(gray))
    huge[16:24] = struct.pack(">II", 60_000, 60_000)
    huge[29:33] = struct.pack(">I", zlib.crc32(bytes(huge[12:29])))
    return [
        replace("3.6 billion pixels", "bombed", bytes(huge)),
        replace("100 million pixels of one color", "bombed", large_picture),
        replace("16 bits per pixel", "lying", saved(Image.new("I;16", (8, 8)))),
        replace("floating point", "lying", saved(Image.new("F", (8, 8)), "TIFF")),
        replace("two pages", "lying", saved(gray, "TIFF", save_all=True, append_images=[gray])),
        replace("transparent", "lying", saved(Image.new("RGBA", (8, 8)))),
        replace("one pixel", "lying", saved(Image.new("L", (1, 1)))),
        replace("another size", "lying", saved(Image.new("L", (30, 9)))),
    ]  # fmt: skip
