"""Arrays of .npz files: what is damaged or lies about its size is one sentence."""

import io
import zipfile

import numpy as np
import pytest

from hypersphere.data import DamagedData, read_npz


def npy(array):
    file = io.BytesIO()
    np.save(file, array, allow_pickle=True)
    return file.getvalue()


def zipped(path, members, method=zipfile.ZIP_DEFLATED):
    with zipfile.ZipFile(path, "w", method) as archive:
        for name, content in members.items():
            archive.writestr(name, content)
    return path


@pytest.mark.parametrize("save", [np.savez, np.savez_compressed])
def test_arrays_come_back_equal(tmp_path, save):
    arrays = {
        "features": np.random.default_rng(0).random((3, 4)),
        "labels": np.arange(3),
        "names": np.array(["a", "b", "c"]),
        "columns": np.asfortranarray(np.arange(6).reshape(2, 3)),
        "number": np.float32(2.5),
    }
    save(tmp_path / "a.npz", **arrays)
    read = read_npz(tmp_path / "a.npz")
    assert read.keys() == arrays.keys()
    for key, array in arrays.items():
        np.testing.assert_array_equal(read[key], array)


def lying(shape):
    """Three numbers under a header that says they are of `shape`."""
    content = npy(np.zeros(3, np.float32))
    start = content.index(b"(3,)")
    header = content[start : content.index(b"\n", start)]
    return content.replace(header, f"{shape}, }}".encode().ljust(len(header)), 1)


def cases():
    good = npy(np.arange(1000))
    return {
        "empty": b"",
        "text": b"hello",
        "cut": None,
        "no array": {"a.npy": b"hello"},
        "cut array": {"a.npy": good[:200]},
        "terabytes": {"a.npy": lying((1 << 40,))},
        "negative": {"a.npy": lying((-1,))},
        "objects": {"a.npy": npy(np.array([{}, []], dtype=object))},
        "bomb": {"a.npy": npy(np.zeros(100_000_000, np.uint8))},
    }


@pytest.mark.parametrize("name", cases())
def test_damage_is_named(tmp_path, name):
    path, content = tmp_path / "features.npz", cases()[name]
    if isinstance(content, dict):
        zipped(path, content)
    elif content is None:
        whole = zipped(path, {"a.npy": npy(np.arange(1000))}).read_bytes()
        path.write_bytes(whole[: len(whole) // 2])
    else:
        path.write_bytes(content)
    with pytest.raises(DamagedData, match=r"features\.npz is damaged: expected"):
        read_npz(path)


def test_a_flipped_bit_is_found(tmp_path):
    path = zipped(tmp_path / "features.npz", {"a.npy": npy(np.arange(1000))}, zipfile.ZIP_STORED)
    content = bytearray(path.read_bytes())
    content[2000] ^= 1
    path.write_bytes(content)
    with pytest.raises(DamagedData, match="CRC"):
        read_npz(path)


def test_a_missing_file(tmp_path):
    with pytest.raises(FileNotFoundError, match="no file of arrays"):
        read_npz(tmp_path / "a.npz")
