"""CIFAR batches as the publisher pickles them (and as Python 3 re-pickles them)."""

from __future__ import annotations

import pickle

import numpy as np
import pytest

import hypersphere as hs
from hypersphere.data import DamagedData, MissingData, RefusedPickle


def batch(count: int, seed: int, labels: dict[str, int], as_bytes: bool):
    random = np.random.default_rng(seed)
    content = {"data": random.integers(0, 256, (count, 3072), np.uint8), "batch_label": "x"}
    content |= {key: random.integers(0, most, count).tolist() for key, most in labels.items()}
    return {k.encode() if as_bytes else k: v for k, v in content.items()}


def write10(folder, batches=5, as_bytes=False):
    folder.mkdir(parents=True)
    written = {}
    for i, name in enumerate([*(f"data_batch_{b}" for b in range(1, batches + 1)), "test_batch"]):
        written[name] = batch(4, i, {"labels": 10}, as_bytes)
        (folder / name).write_bytes(pickle.dumps(written[name], protocol=2))
    names = [f"name{c}" for c in range(10)]
    (folder / "batches.meta").write_bytes(pickle.dumps({"label_names": names}, protocol=2))
    return written


@pytest.mark.parametrize("as_bytes", [False, True])
def test_cifar10(tmp_path, as_bytes):
    written = write10(tmp_path / "cifar-10-batches-py", as_bytes=as_bytes)
    split = hs.data.load("cifar10", tmp_path)
    assert split.train.images.shape == (20, 3, 32, 32) and len(split.test) == 4
    key = b"data" if as_bytes else "data"
    second = written["data_batch_2"][key]
    # The publisher's order: 1024 red, 1024 green, 1024 blue values, row by row.
    assert split.train.images[5, 1, 2, 3] == second[1, 1024 + 2 * 32 + 3]
    assert split.classes[3] == "name3"


def test_some_of_the_training_batches(tmp_path):
    write10(tmp_path / "cifar10", batches=2)
    with pytest.warns(UserWarning, match=r"lacks data_batch_3, .*2 of 5 .*batches=2 says"):
        assert len(hs.data.load("cifar10", tmp_path).train) == 8
    assert len(hs.data.load("cifar10", tmp_path, batches=2).train) == 8
    assert len(hs.data.load("cifar10", tmp_path, batches=1).train) == 4
    with pytest.raises(MissingData, match=r"data_batch_3.*kriz/cifar"):
        hs.data.load("cifar10", tmp_path, batches=5)
    with pytest.raises(ValueError, match=r"batches is 1\.\.5"):
        hs.data.load("cifar10", tmp_path, batches=6)


@pytest.mark.parametrize("coarse", [False, True])
def test_cifar100(tmp_path, coarse):
    folder = tmp_path / "cifar-100-python"
    folder.mkdir()
    for i, name in enumerate(("train", "test")):
        content = batch(6, i, {"fine_labels": 100, "coarse_labels": 20}, False)
        (folder / name).write_bytes(pickle.dumps(content, protocol=2))
    meta = {"fine_label_names": ["f"] * 100, "coarse_label_names": ["c"] * 20}
    (folder / "meta").write_bytes(pickle.dumps(meta, protocol=2))
    split = hs.data.load("cifar100", tmp_path, coarse=coarse)
    assert split.num_classes == (20 if coarse else 100)
    assert split.test.labels.tolist() == content["coarse_labels" if coarse else "fine_labels"]


def test_damage_is_named(tmp_path):
    folder = tmp_path / "cifar-10-batches-py"
    write10(folder)
    with pytest.raises(
        DamagedData, match="data_batch_1 is damaged: expected the checksum md5:c99c"
    ):
        hs.data.load("cifar10", tmp_path, verify=True)
    good = batch(4, 0, {"labels": 10}, False)
    for content, message in [
        ({**good, "labels": [1, 2]}, r"expected data \(n, 3072\)"),
        ({**good, "labels": [1, 2, 3, 10]}, "below 10"),
        ({**good, "data": good["data"].astype(np.float32)}, "uint8"),
        ({"data": good["data"]}, "an entry 'labels'"),
        ([1, 2], "a dictionary, found list"),
        ({**good, "labels": 5}, "other labels"),
        ({**good, "labels": [[1], [2], [3], [4]]}, "other labels"),
        ({**good, "labels": [1, 2, [3], 4]}, "other labels"),
        ({**good, "labels": [1, 2, 3, 4.5]}, "other labels"),
        ({**good, "labels": np.zeros((4, 1), int)}, "other labels"),
        ({**good, "labels": []}, "0 labels"),
    ]:
        (folder / "data_batch_3").write_bytes(pickle.dumps(content, protocol=2))
        with pytest.raises(DamagedData, match=message):
            hs.data.load("cifar10", tmp_path)
    (folder / "data_batch_3").write_bytes(pickle.dumps(good, protocol=2))
    meta = (folder / "batches.meta").read_bytes()
    for names in (5, [1, 2], "names"):
        (folder / "batches.meta").write_bytes(pickle.dumps({"label_names": names}, protocol=2))
        with pytest.raises(DamagedData, match=r"batches\.meta is damaged: expected a list"):
            hs.data.load("cifar10", tmp_path)
    (folder / "batches.meta").write_bytes(meta)
    (folder / "data_batch_3").write_bytes(b"cposix\nsystem\n(S'true'\ntR.")
    with pytest.raises(RefusedPickle, match=r"data_batch_3 is refused: it asks for posix\.system"):
        hs.data.load("cifar10", tmp_path)
