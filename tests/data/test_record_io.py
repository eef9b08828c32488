"""insightface's .rec / .idx, written byte by byte as the format says, read without MXNet."""

import io
import struct

import numpy as np
import pytest
import torch
from PIL import Image

import hypersphere as hs
from hypersphere.data import DamagedData, MissingData
from hypersphere.data.record_io import MAGIC, read_record_at, unpack_record


def picture(value, size=(6, 5)):
    buffer = io.BytesIO()
    Image.fromarray(np.full((*size, 3), value, np.uint8)).save(buffer, "png")
    return buffer.getvalue()


def packed(labels, content=b""):
    if len(labels) == 1:
        return struct.pack("<IfQQ", 0, labels[0], 0, 0) + content
    extra = struct.pack(f"<{len(labels)}f", *labels)
    return struct.pack("<IfQQ", len(labels), 0.0, 0, 0) + extra + content


def write_rec(folder, records, split_at=None):
    """Records of one part each; `split_at` cuts one at every magic number inside it."""
    offsets, out = [], b""
    for number, content in enumerate(records):
        offsets.append(len(out))
        parts = [content]
        if number == split_at:
            parts = content.split(struct.pack("<I", MAGIC))
        for place, part in enumerate(parts):
            kind = 0 if len(parts) == 1 else 1 if place == 0 else 3 if part is parts[-1] else 2
            out += struct.pack("<II", MAGIC, kind << 29 | len(part))
            out += part + b"\0" * (-len(part) % 4)
    (folder / "train.rec").write_bytes(out)
    (folder / "train.idx").write_text("".join(f"{i}\t{o}\n" for i, o in enumerate(offsets)))
    return offsets


def insightface(folder, pictures=(3, 5, 4)):
    """Record 0 has the ranges; then the pictures; then a record per person."""
    whose = [p for p, n in enumerate(pictures) for _ in range(n)]
    end = len(whose) + 1
    records = [packed([float(end), float(end + len(pictures))])]
    records += [packed([float(p)], picture(10 * p + i)) for i, p in enumerate(whose)]
    start = 1
    for n in pictures:
        records.append(packed([float(start), float(start + n)]))
        start += n
    write_rec(folder, records)
    return whose


def test_insightface_layout(tmp_path):
    whose = insightface(tmp_path)
    split = hs.data.load("rec", tmp_path, test_fraction=0.3)
    assert split.classes == ["0", "1", "2"] and split.train.shape == (3, 6, 5)
    assert len(split.train) + len(split.test) == len(whose)
    seen = {}
    for part in (split.train, split.test):
        batch = part.take(torch.arange(len(part)))
        assert batch.dtype == torch.uint8
        for value, label in zip(batch[:, 0, 0, 0].tolist(), part.labels.tolist(), strict=True):
            seen[value] = label
    assert seen == {10 * p + i: p for i, p in enumerate(whose)}
    small = hs.data.load("rec", tmp_path, size=4, mode="L", min_images=4).train
    assert small.shape == (1, 4, 4) and small.num_classes == 2
    loader = hs.data.BatchLoader(split.train, 4, seed=1)
    assert sum(len(y) for _, y in loader) == len(split.train)


def test_im2rec_layout(tmp_path):
    write_rec(tmp_path, [packed([float(i % 2)], picture(i)) for i in range(6)])
    split = hs.data.load("rec", tmp_path, test_fraction=0.4)
    assert split.num_classes == 2 and len(split.train) == 4


def test_a_record_in_several_parts(tmp_path):
    mark = struct.pack("<I", MAGIC)
    content = packed([7.0], b"abcd" + mark + b"efg" + mark + b"hi")
    offsets = write_rec(tmp_path, [packed([1.0], b"x"), content, packed([2.0], b"y")], split_at=1)
    file = str(tmp_path / "train.rec")
    assert read_record_at(file, offsets[1]) == content
    assert unpack_record(read_record_at(file, offsets[2])) == ([2.0], b"y")
    assert unpack_record(packed([1.0, 2.0, 3.0], b"z")) == ([1.0, 2.0, 3.0], b"z")


def test_damaged_files_are_named(tmp_path):
    with pytest.raises(MissingData, match="train.rec"):
        hs.data.load("rec", tmp_path)
    insightface(tmp_path)
    good, index = (tmp_path / "train.rec").read_bytes(), (tmp_path / "train.idx").read_text()
    for rec, idx, message in [
        (good[:-30], index, "no whole record|inside the"),
        (b"\0" * len(good), index, "no whole record at byte 0"),
        (good, "a\tb\n", "lines of key and offset"),
        (good, "", "lines of key and offset|no data"),
        (good, index.replace("\n3\t", "\n77\t"), "record 3|ranges"),
        (good, "0\t999999999\n", "inside the"),
    ]:
        (tmp_path / "train.rec").write_bytes(rec)
        (tmp_path / "train.idx").write_text(idx)
        with pytest.raises(DamagedData, match=message):
            split = hs.data.load("rec", tmp_path)
            split.train.take(torch.arange(len(split.train)))
    write_rec(tmp_path, [packed([0.0], b"no picture")] * 4)
    split = hs.data.load("rec", tmp_path, unreadable=0)
    with pytest.raises(DamagedData, match="(?s)1 of 4 pictures cannot be read.*picture 0: cannot"):
        split.train.take(torch.tensor([0]))
