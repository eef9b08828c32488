"""idx files: true bytes in, the same numbers out; broken ones named."""

from __future__ import annotations

import gzip

import numpy as np
import pytest
import torch

import hypersphere as hs
from hypersphere.data import DamagedData, MissingData, read_idx

from reference.data_files import IDX_CODES, idx_bytes


def write_set(
    folder, suffix=".gz", images_name="{}-images-idx3-ubyte", labels_name="{}-labels-idx1-ubyte"
):
    folder.mkdir(parents=True)
    random = np.random.default_rng(0)
    written = {}
    for part, count in (("train", 7), ("t10k", 3)):
        images = random.integers(0, 256, (count, 28, 28))
        labels = random.integers(0, 10, count)
        written[part] = images, labels
        for name, array in ((images_name, images), (labels_name, labels)):
            content = idx_bytes(array)
            path = folder / (name.format(part) + suffix)
            path.write_bytes(gzip.compress(content) if suffix else content)
    return written


@pytest.mark.parametrize("code", IDX_CODES)
@pytest.mark.parametrize("shape", [(3,), (2, 4), (2, 0, 3)])
def test_every_type_and_shape(tmp_path, code, shape):
    array = np.arange(np.prod(shape)).reshape(shape)
    (tmp_path / "a").write_bytes(idx_bytes(array, code))
    assert read_idx(tmp_path / "a").tolist() == array.tolist()


@pytest.mark.parametrize(
    ("folder", "suffix", "pattern"),
    [
        ("MNIST/raw", ".gz", "{}-{}-idx{}-ubyte"),
        ("mnist", "", "{}-{}-idx{}-ubyte"),
        (".", "", "{}-{}.idx{}-ubyte"),
    ],
)
def test_usual_layouts(tmp_path, folder, suffix, pattern):
    root = tmp_path / "data"
    written = write_set(
        root / folder, suffix, pattern.format("{}", "images", 3), pattern.format("{}", "labels", 1)
    )
    split = hs.data.load("mnist", root)
    for part, key in ((split.train, "train"), (split.test, "t10k")):
        images, labels = written[key]
        assert part.images.dtype == torch.uint8
        assert part.images[:, 0].tolist() == images.tolist()
        assert part.labels.tolist() == labels.tolist()
    assert split.classes == [str(c) for c in range(10)]


def test_fashion_has_its_names_and_the_environment_gives_the_root(tmp_path, monkeypatch):
    write_set(tmp_path / "FashionMNIST" / "raw")
    monkeypatch.setenv("HYPERSPHERE_DATA", str(tmp_path))
    assert hs.data.load("fashion-mnist").classes[9] == "Ankle boot"


def test_missing_files_are_named_with_the_place_to_get_them(tmp_path):
    with pytest.raises(MissingData, match=r"MNIST.*MNIST/raw.*ossci-datasets.*mnist --download"):
        hs.data.load("mnist", tmp_path)
    write_set(tmp_path / "MNIST" / "raw")
    (tmp_path / "MNIST" / "raw" / "t10k-labels-idx1-ubyte.gz").unlink()
    with pytest.raises(MissingData, match=r"file t10k-labels-idx1-ubyte\.gz is missing"):
        hs.data.load("mnist", tmp_path)


def test_damaged_files_are_named_with_what_was_expected(tmp_path):
    write_set(tmp_path / "MNIST" / "raw")
    path = tmp_path / "MNIST" / "raw" / "train-images-idx3-ubyte.gz"
    whole = path.read_bytes()
    unpacked = gzip.decompress(whole)
    for content, message in [
        (whole[:-20], "complete gzip"),
        (b"<html>not found</html>", "complete gzip"),
        (gzip.compress(unpacked[:-1]), r"5,504 bytes for shape \(7, 28, 28\), found 5,503"),
        (gzip.compress(b"PK\3\4" + unpacked[4:]), "an idx file"),
        (gzip.compress(unpacked[:9]), "a header of 16 bytes"),
        (gzip.compress(idx_bytes(np.zeros((6, 28, 28)))), "one label for each"),
    ]:
        path.write_bytes(content)
        with pytest.raises(DamagedData, match=message):
            hs.data.load("mnist", tmp_path)
    path.write_bytes(whole)
    with pytest.raises(DamagedData, match="the checksum md5:f68b3c2dcbeaaa9fbdd348bbdeb94873"):
        hs.data.load("mnist", tmp_path, verify=True)


@pytest.mark.timeout(20)
def test_what_a_file_claims_is_bounded(tmp_path):
    header = b"\0\0\x08"
    for name, content, message in [
        ("claim", header + b"\x02" + b"\xff" * 8, "at most 4,294,967,296 bytes of content"),
        ("ratio", header + b"\x01\x10\0\0\0", "at most 200 times the file's"),
        ("long", header + b"\x01\0\0\0\x02abc", "10 bytes for shape .2,., found more"),
        ("dims", header + b"\xff" + b"\0\0\0\x01" * 255 + b"a", "an array, found"),
    ]:
        for path, written in (
            (tmp_path / name, content),
            (tmp_path / f"{name}.gz", gzip.compress(content)),
        ):
            path.write_bytes(written)
            with pytest.raises(DamagedData, match=message):
                read_idx(path)


@pytest.mark.timeout(20)
def test_a_gzip_bomb_is_read_no_further_than_its_header_says(tmp_path, monkeypatch):
    path = tmp_path / "bomb.gz"
    path.write_bytes(gzip.compress(b"\0\0\x08\x01\0\0\0\x02" + bytes(300_000_000), 9))
    taken = []
    read = gzip.GzipFile.read
    monkeypatch.setattr(gzip.GzipFile, "read", lambda self, n=-1: taken.append(n) or read(self, n))
    with pytest.raises(DamagedData, match="expected at most 2 bytes, packed, found"):
        read_idx(path)
    assert max(taken) < 10 and min(taken) >= 0


def test_labels_outside_the_classes_name_the_file(tmp_path):
    write_set(tmp_path / "MNIST" / "raw")
    path = tmp_path / "MNIST" / "raw" / "train-labels-idx1-ubyte.gz"
    path.write_bytes(gzip.compress(idx_bytes(np.full(7, 77))))
    with pytest.raises(DamagedData, match="labels-idx1-ubyte.gz is damaged.*labels up to 77"):
        hs.data.load("mnist", tmp_path)
