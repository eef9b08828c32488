"""ModelNet40 HDF5 files."""

from __future__ import annotations

import h5py
import numpy as np
import pytest
import torch

import hypersphere as hs
from hypersphere.data import DamagedData, MissingData


@pytest.fixture
def clouds(tmp_path):
    folder = tmp_path / "modelnet40_ply_hdf5_2048"
    folder.mkdir()
    random = np.random.default_rng(0)
    # Eleven training files, so that 10 has to come after 9 and not after 1.
    for name, count in [*((f"train{i}", 2) for i in range(11)), ("test0", 3)]:
        with h5py.File(folder / f"ply_data_{name}.h5", "w") as file:
            number = int(name.removeprefix("train").removeprefix("test"))
            file["data"] = random.random((count, 32, 3), np.float32) + number
            file["label"] = random.integers(0, 4, (count, 1), np.uint8)
    (folder / "shape_names.txt").write_text("airplane\nbathtub\nbed\nbench\n")
    return tmp_path


def test_files_in_order_with_names(clouds):
    split = hs.data.load("modelnet40", clouds)
    assert split.train.images.shape == (22, 32, 3) and split.test.images.shape == (3, 32, 3)
    assert split.train.images.dtype == torch.float32 and split.train.labels.dtype == torch.int64
    assert split.train.images.amin((1, 2)).int().tolist() == [i // 2 for i in range(22)]
    assert split.classes == ["airplane", "bathtub", "bed", "bench"]


def test_a_random_subset_of_the_points(clouds):
    whole = hs.data.load("modelnet40", clouds)
    part = hs.data.load("modelnet40", clouds, points=8, seed=1)
    for cloud, points in zip(whole.train.images, part.train.images, strict=True):
        assert {tuple(p) for p in points.tolist()} < {tuple(p) for p in cloud.tolist()}
    assert not torch.equal(part.train.images, whole.train.images[:, :8])
    with pytest.raises(ValueError, match="64 points are wanted; the files have 32"):
        hs.data.load("modelnet40", clouds, points=64)


def test_damage_is_named(clouds):
    folder = clouds / "modelnet40_ply_hdf5_2048"
    (folder / "shape_names.txt").write_text("airplane\n")
    with pytest.raises(
        DamagedData, match=r"shape_names\.txt is damaged: expected 4 names, found 1"
    ):
        hs.data.load("modelnet40", clouds)
    path = folder / "ply_data_test0.h5"
    with h5py.File(path, "w") as file:
        file["data"] = np.zeros((2, 32, 2))
        file["label"] = np.zeros(2)
    with pytest.raises(DamagedData, match=r"data \(n, points, 3\)"):
        hs.data.load("modelnet40", clouds)
    with h5py.File(path, "w") as file:
        file["data"] = np.zeros((2, 32, 3))
    with pytest.raises(DamagedData, match="'data' and 'label'"):
        hs.data.load("modelnet40", clouds)
    path.write_bytes(b"no HDF5")
    with pytest.raises(DamagedData, match="an HDF5 file"):
        hs.data.load("modelnet40", clouds)
    path.unlink()
    with pytest.raises(MissingData, match=r"ply_data_test0\.h5"):
        hs.data.load("modelnet40", clouds)
    with pytest.raises(MissingData, match="shapenet"):
        hs.data.load("modelnet40", clouds / "elsewhere")
