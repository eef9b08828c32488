"""The restricted unpickler: arrays and plain types pass, everything else is refused unbuilt."""

from __future__ import annotations

import collections
import os
import pickle
import subprocess

import numpy as np
import pytest
import scipy.sparse

from hypersphere.data import DamagedData, RefusedPickle, read_pickle


class Calls:
    """Pickles to a call of `function(*arguments)`."""

    def __init__(self, function, *arguments):
        self.function, self.arguments = function, arguments

    def __reduce__(self):
        return self.function, self.arguments


def write(tmp_path, value, protocol=2):
    path = tmp_path / "file"
    path.write_bytes(value if isinstance(value, bytes) else pickle.dumps(value, protocol=protocol))
    return path


@pytest.mark.parametrize("protocol", [0, 1, 2, 3, 4])
@pytest.mark.parametrize("dtype", ["u1", "<i8", ">i4", "f4", ">f8", "?"])
def test_arrays_come_back_equal_native_and_writable(tmp_path, protocol, dtype):
    array = (np.arange(6).reshape(2, 3) % 5).astype(dtype)
    content = {"c": array, b"f": np.asfortranarray(array), "n": [array[0, 1], (1, 2.5, "é", None)]}
    read = read_pickle(write(tmp_path, content, protocol))
    for key in ("c", b"f"):
        np.testing.assert_array_equal(read[key], array)
        assert read[key].dtype.isnative
        read[key][0, 0] = 0
    assert read["n"][0] == array[0, 1] and read["n"][1] == (1, 2.5, "é", None)


def test_text_of_python_2_is_read_as_latin1(tmp_path):
    # What Python 2 writes for {"data": <2 bytes as uint8 array>}: all its text is bytes.
    content = (
        b"\x80\x02}U\x04datacnumpy.core.multiarray\n_reconstruct\ncnumpy\nndarray\nK\x00\x85U\x01b"
        b"\x87R(K\x01K\x02\x85cnumpy\ndtype\nU\x02u1K\x00K\x01\x87R(K\x03U\x01|NNNJ\xff\xff\xff\xff"
        b"J\xff\xff\xff\xffK\x00tb\x89U\x02\x07\xfftbs."
    )
    assert read_pickle(write(tmp_path, content))["data"].tolist() == [7, 255]


@pytest.mark.parametrize("protocol", [2, 4])
def test_sparse_rows_and_default_dictionaries(tmp_path, protocol):
    matrix = scipy.sparse.random(
        5, 4, 0.5, "csr", np.float32, random_state=np.random.default_rng(0)
    )
    graph = collections.defaultdict(list, {0: [1, 2], 1: [0]})
    read = read_pickle(write(tmp_path, [matrix, graph], protocol))
    np.testing.assert_array_equal(read[0].dense(), matrix.toarray())
    assert read[1] == {0: [1, 2], 1: [0]}


def test_a_sparse_matrix_whose_indices_do_not_fit_is_damaged(tmp_path):
    matrix = scipy.sparse.csr_matrix(np.eye(3, dtype=np.float32))
    matrix.indices[1] = 77
    with pytest.raises(DamagedData, match="do not fit"):
        read_pickle(write(tmp_path, matrix)).dense()


ATTACKS = {
    "system": Calls(os.system, "touch {mark}"),
    "popen": Calls(subprocess.Popen, ["touch", "{mark}"]),
    "eval": Calls(eval, "open('{mark}', 'w')"),
    "open": Calls(open, "{mark}", "w"),
    "getattr": Calls(getattr, "text", "format"),
    "import": Calls(__import__, "antigravity"),
    "nested in an array of objects": np.array([Calls(os.system, "touch {mark}")], dtype=object),
    "numpy load": Calls(np.load, "{mark}"),
    "codecs": Calls(__import__("codecs").encode, "abc", "rot13"),
    "dtype": Calls(np.dtype, "O"),
    "compound dtype": np.zeros(2, [("a", "f4"), ("b", "O")]),
}


@pytest.mark.parametrize("name", ATTACKS)
@pytest.mark.parametrize("protocol", [0, 2, 4])
def test_malicious_pickles_are_refused_and_do_nothing(tmp_path, name, protocol):
    mark = tmp_path / "attacked"
    content = pickle.dumps(ATTACKS[name], protocol=protocol)
    if b"{mark}" in content and protocol == 0:  # lengths are not written in protocol 0
        content = content.replace(b"{mark}", str(mark).encode())
    before = set(os.listdir())
    with pytest.raises(RefusedPickle, match=r"file is refused: .*A genuine copy"):
        read_pickle(write(tmp_path, content))
    assert not mark.exists()
    assert set(os.listdir()) == before


def test_the_attack_would_have_worked(tmp_path):
    # Otherwise the test above proves nothing.
    mark = tmp_path / "attacked"
    content = pickle.dumps(Calls(os.system, "touch {mark}"), protocol=0)
    pickle.loads(content.replace(b"{mark}", str(mark).encode()))
    assert mark.exists()


@pytest.mark.parametrize(
    "target",
    [
        b"cnumpy\ndtype\n",
        b"cnumpy\nndarray\n",
        b"cscipy.sparse\ncsr_matrix\n",
        b"c__builtin__\nlist\n",
    ],
)
def test_a_pickle_cannot_change_the_reader(tmp_path, target):
    # BUILD with a slot state sets attributes on whatever lies on the stack.
    content = b"\x80\x02" + target + b"N}U\x08functionK\x01s\x86b."
    with pytest.raises(DamagedData):
        read_pickle(write(tmp_path, content))
    array = np.arange(3)
    np.testing.assert_array_equal(read_pickle(write(tmp_path, array)), array)


def test_arrays_that_lie_about_their_size_are_refused(tmp_path):
    class Lying:
        def __reduce__(self):
            function, arguments, _ = np.arange(3).__reduce__()
            return function, arguments, (1, (1 << 40,), np.dtype("u1"), False, b"abc")

    with pytest.raises(RefusedPickle, match="in 3 bytes"):
        read_pickle(write(tmp_path, Lying()))


@pytest.mark.parametrize(
    "content", [b"", b"hello", pickle.dumps(np.arange(9))[:-9], b"\x80\x02]q\x00h\x00a."]
)
def test_broken_pickles_are_damaged_not_crashes(tmp_path, content):
    with pytest.raises(DamagedData, match="is damaged: expected a pickle"):
        read_pickle(write(tmp_path, content))


def nested(leaf, join, depth=40):
    """A value that holds the one below it twice, `depth` times over: 2^depth leaves."""
    value = leaf
    for _ in range(depth):
        value = join(value)
    return value


BOMBS = {
    "lists": nested([1], lambda v: [v, v]),
    "tuples": nested((1,), lambda v: (v, v)),
    "dictionaries": nested({"a": 1}, lambda v: {"a": v, "b": v}),
    "arrays": nested([np.zeros(1000)], lambda v: [v, v], depth=20),
    "key": {"a": 1, "b": nested((1,), lambda v: (v, v))},
    "array shape": Calls(np.dtype, nested([1], lambda v: [v, v])),
    "encoding": Calls(__import__("codecs").encode, "a", nested([1], lambda v: [v, v])),
    "set": Calls(set, [nested((1,), lambda v: (v, v))]),
    "pairs": Calls(dict, [(nested((1,), lambda v: (v, v)), 1)]),
}


@pytest.mark.timeout(20)
@pytest.mark.parametrize("name", BOMBS)
@pytest.mark.parametrize("protocol", [2, 4])
def test_small_pickles_of_large_work_are_refused_at_once(tmp_path, name, protocol):
    path = write(tmp_path, BOMBS[name], protocol)
    assert path.stat().st_size < 10_000
    with pytest.raises(RefusedPickle, match="file is refused") as raised:
        read_pickle(path)
    assert len(str(raised.value)) < 500


@pytest.mark.timeout(20)
@pytest.mark.parametrize("operation", [b"s", b"(", b"frozen", b"additems"])
def test_shared_tuples_are_never_hashed(tmp_path, operation):
    # ((1, 1), (1, 1)), ...: DUP and TUPLE2 double the depth in two bytes.
    bomb = b"K\x01" + b"2\x86" * 40
    content = {
        b"s": b"\x80\x04}" + bomb + b"K\x01s.",
        b"(": b"\x80\x04(" + bomb + b"K\x01d.",
        b"frozen": b"\x80\x04(" + bomb + b"\x91.",
        b"additems": b"\x80\x04\x8f(" + bomb + b"\x90.",
    }[operation]
    with pytest.raises(RefusedPickle, match="as a key"):
        read_pickle(write(tmp_path, content))


@pytest.mark.timeout(20)
@pytest.mark.parametrize("copies", [b"list", b"tuple"])
def test_copies_without_end_are_refused(tmp_path, copies):
    # One list of 100,000, copied 100,000 times in six bytes each.
    big = b"](" + b"N" * 100_000 + b"eq\x000"
    content = b"\x80\x02" + big + b"c__builtin__\n" + copies + b"\nq\x010]"
    with pytest.raises(RefusedPickle, match="again and again"):
        read_pickle(write(tmp_path, content + b"h\x01h\x00\x85Ra" * 100_000 + b"."))


@pytest.mark.timeout(20)
@pytest.mark.parametrize(
    "content",
    [
        b"\x80\x05\x96" + (1 << 40).to_bytes(8, "little") + b".",  # BYTEARRAY8 of a terabyte
        b"\x80\x04\x8e" + (1 << 40).to_bytes(8, "little") + b"ab.",  # BINBYTES8
        b"\x80\x02Nr\xff\xff\xff\x7f.",  # a memo of two billion entries
        b"\x80\x02\x82\x01.",  # an extension of the running program
        b"]" * 50_000 + b"a" * 49_999 + b".",  # deeper than any stack
    ],
)
def test_claims_of_single_operations_cost_nothing(tmp_path, content):
    try:
        read_pickle(write(tmp_path, content))
    except DamagedData as error:
        assert "file" in str(error)


def test_shared_parts_of_honest_files_are_read(tmp_path):
    row = list(range(100))
    array = np.arange(5)
    read = read_pickle(write(tmp_path, {"rows": [row, row], "arrays": (array, array), "set": {1}}))
    assert read["rows"] == [row, row] and read["set"] == {1}
    np.testing.assert_array_equal(read["arrays"][1], array)
