"""insightface's train.rec / train.idx: MXNet's RecordIO format, read without MXNet.

A .rec file is a sequence of records: the number 0xced7230a, a word whose upper 3 bits say which
part of a record this is (0: all of it, 1: first, 2: middle, 3: last; parts are joined by the number
that was cut out between them) and whose lower 29 bits are the length, then the content, padded to 4
bytes. A picture's content is a header (flag, label, id, id2) of 24 bytes, `flag` further labels as
float32 in place of one, and a JPEG or PNG. A .idx file names the offset of each record,
"key<TAB>offset".

insightface puts a header of two labels into record 0: pictures are the records 1 ... label[0] - 1,
and each of the records label[0] ... label[1] - 1 is a person with the range of their pictures.
"""

from __future__ import annotations

import os
import struct
from functools import partial
from pathlib import Path

import numpy as np
import torch

from .._reading import check_regular
from ..registry import register
from .dataset import Split
from .encoded import EncodedPictures
from .errors import damaged, missing
from .image_files import Size
from .splits import choose_test
from .unreadable import UnreadablePictures

__all__ = ["load_rec", "read_record_at", "unpack_record"]

MAGIC = 0xCED7230A
HEADER = struct.Struct("<IfQQ")
WHERE = "the set it belongs to, such as insightface's list of data sets"


@register("data", "rec")
def load_rec(
    root: Path,
    path: str = "train.rec",
    size: Size = None,
    mode: str = "RGB",
    test_fraction: float = 0.02,
    min_images: int = 1,
    seed: int = 0,
    unreadable: float = 0.05,
) -> Split:
    """Pictures of an insightface .rec file, which stay there and are decoded batch by batch.

    Args:
        root: the folder of the file.
        path: the .rec file, below `root`; the .idx file lies beside it.
        size: bring the pictures to (height, width), or a square of this side, bilinear. Default: as
            in the file.
        mode: "RGB" or "L" (gray).
        test_fraction: share of every person's pictures for testing.
        min_images: people with fewer pictures are left out.
        seed: seed of the choice.
        unreadable: share of the pictures that may be unreadable; each is named in a warning when it
            is met, and another of its class takes its place. More than that is an error.

    Returns:
        Training and test part.
    """
    file = root / path
    index_file = file.with_suffix(".idx")
    for wanted in (file, index_file):
        if not wanted.is_file():
            raise missing("the record file", wanted, WHERE)
    offsets = _read_index(index_file, check_regular(file))
    keys, people = _list_pictures(file, offsets)
    names, labels = np.unique(people, return_inverse=True)
    few = np.bincount(labels)[labels] < min_images
    if few.all():
        raise ValueError(f"{file}: nobody has {min_images} pictures or more")
    keys, people = keys[~few], people[~few]
    names, labels = np.unique(people, return_inverse=True)
    absent = [key for key in keys.tolist() if key not in offsets]
    if absent:
        raise damaged(index_file, f"record {absent[0]}", "none of that number", WHERE)
    places = torch.tensor([offsets[key] for key in keys.tolist()], dtype=torch.int64)
    everything = EncodedPictures(
        partial(_picture_at, str(file)),
        places,
        torch.from_numpy(labels.astype(np.int64)),
        [str(name) for name in names.tolist()],
        size,
        mode,
        str(file),
        UnreadablePictures(unreadable, len(places)),
    )
    test = choose_test(everything.labels, test_fraction, seed)
    train, rest = (everything.subset(part.nonzero().flatten()) for part in (~test, test))
    return Split(train, rest)


def read_record_at(path: str, offset: int) -> bytes:
    """The content of the record at an offset; several threads may ask at once.

    Args:
        path: the .rec file.
        offset: in bytes.

    Returns:
        The content.

    Raises:
        DamagedData: if there is no whole record.
    """
    handle = os.open(path, os.O_RDONLY)
    try:
        found: list[bytes] = []
        while True:
            head = os.pread(handle, 8, offset)
            magic, word = struct.unpack("<II", head) if len(head) == 8 else (0, 0)
            part, length = word >> 29, word & ((1 << 29) - 1)
            begins = part in (0, 1) if not found else part in (2, 3)
            content = os.pread(handle, length, offset + 8) if magic == MAGIC and begins else b""
            if magic != MAGIC or not begins or len(content) != length:
                place = f"no whole record at byte {offset:,}"
                raise damaged(Path(path), "a RecordIO file", place, WHERE)
            found.append(content)
            if part in (0, 3):
                return struct.pack("<I", MAGIC).join(found)
            offset += 8 + length + (-length) % 4
    finally:
        os.close(handle)


def unpack_record(content: bytes) -> tuple[list[float], bytes]:
    """Labels and picture of a record.

    Args:
        content: what `read_record_at` gave.

    Returns:
        The labels, one or more, and the encoded picture.
    """
    if len(content) < HEADER.size:
        raise ValueError(f"a record of {len(content)} bytes has no header of {HEADER.size}")
    flag, label, _, _ = HEADER.unpack_from(content)
    if flag == 0:
        return [label], content[HEADER.size :]
    end = HEADER.size + 4 * flag
    if len(content) < end:
        raise ValueError(f"a record of {len(content)} bytes cannot hold {flag} labels")
    return list(struct.unpack_from(f"<{flag}f", content, HEADER.size)), content[end:]


def _picture_at(path: str, offset: int) -> bytes:
    try:
        return unpack_record(read_record_at(path, offset))[1]
    except ValueError as error:
        raise damaged(Path(path), "a picture", str(error), WHERE) from None


def _read_index(path: Path, length: int) -> dict[int, int]:
    """key -> offset; every offset inside the file."""
    check_regular(path, 1 << 31)
    try:
        if not path.read_bytes()[:64].strip():
            raise ValueError("nothing in it")
        table = np.loadtxt(path, dtype=np.int64, delimiter="\t", ndmin=2)
    except (ValueError, UnicodeDecodeError, OverflowError) as error:
        raise damaged(path, "lines of key and offset", str(error), WHERE) from None
    if table.shape[1:] != (2,) or len(table) == 0:
        raise damaged(path, "lines of key and offset", f"shape {table.shape}", WHERE)
    outside = (table[:, 1] < 0) | (table[:, 1] >= length)
    if outside.any():
        found = f"{int(table[outside][0, 1]):,}"
        raise damaged(path, f"offsets inside the {length:,} bytes of the .rec", found, WHERE)
    return dict(zip(table[:, 0].tolist(), table[:, 1].tolist(), strict=True))


def _list_pictures(file: Path, offsets: dict[int, int]) -> tuple[np.ndarray, np.ndarray]:
    """Keys of the pictures, and the person of each."""

    def labels_of(key: int) -> list[float]:
        if key not in offsets:
            raise damaged(file.with_suffix(".idx"), f"record {key}", "none", WHERE)
        try:
            return unpack_record(read_record_at(str(file), offsets[key]))[0]
        except ValueError as error:
            raise damaged(file, f"record {key}", str(error), WHERE) from None

    first = labels_of(0) if 0 in offsets else [0.0]
    if len(first) < 2:  # made by im2rec: every record is a picture
        keys = np.array(sorted(offsets), dtype=np.int64)
        return keys, np.array([int(labels_of(int(key))[0]) for key in keys])
    end, last = int(first[0]), int(first[1])
    if not 1 <= end <= last <= max(offsets) + 1:
        raise damaged(file, "the ranges of pictures and people", f"{end} and {last}", WHERE)
    keys = np.arange(1, end)
    people = np.full(end, -1, dtype=np.int64)
    for number, key in enumerate(range(end, last)):  # a record per person: the range of pictures
        begin, stop = (int(v) for v in labels_of(key)[:2])
        if not 1 <= begin <= stop <= end:
            raise damaged(
                file, f"pictures 1 to {end}", f"person {number}: {begin} to {stop}", WHERE
            )
        people[begin:stop] = number
    if (people[1:] < 0).any():  # pictures that no range names say themselves whose they are
        for key in keys[people[1:] < 0]:
            people[key] = int(labels_of(int(key))[0])
    return keys, people[1:]
