"""The real data sets, where HYPERSPHERE_DATA names a folder with them."""

from __future__ import annotations

import shutil

import pytest
import torch

import hypersphere as hs


def real(name, root, **options):
    try:
        return hs.data.load(name, root, **options)
    except hs.data.MissingData as error:
        pytest.skip(str(error))


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "options", "train", "test", "shape", "classes"),
    [
        ("mnist", {"verify": True}, 60000, 10000, (1, 28, 28), 10),
        ("cifar10", {"batches": 2}, 20000, 10000, (3, 32, 32), 10),
        ("modelnet40", {}, 9843, 2468, None, 40),
        ("omniglot", {"size": 28}, 19280, 13180, (1, 28, 28), 964),
    ],
)
def test_published_numbers(data_root, name, options, train, test, shape, classes):
    split = real(name, data_root, **options)
    assert len(split.train) == train
    assert len(split.test) == test
    assert shape is None or tuple(split.train.shape) == shape
    assert split.num_classes == classes
    assert (split.train.counts() > 0).all()


def test_the_first_digit_of_mnist(data_root):
    split = real("mnist", data_root)
    assert split.train.labels[:5].tolist() == [5, 0, 4, 1, 9]
    assert abs(split.train.images.float().mean().item() / 255 - 0.1307) < 1e-4


def test_clouds_lie_in_the_unit_ball(data_root):
    clouds = real("modelnet40", data_root).test.images
    assert clouds.norm(dim=2).max() < 1.02 and clouds.norm(dim=2).amax(1).min() > 0.9


@pytest.mark.slow
def test_lfw_pairs(data_root):
    split = real("lfw", data_root)
    pairs = split.pairs
    assert len(pairs) == 6000 and int(pairs.same.sum()) == 3000
    labels = pairs.dataset.labels
    assert torch.equal(labels[pairs.first] == labels[pairs.second], pairs.same)
    assert pairs.fold.bincount().tolist() == [600] * 10
    assert len(split.test) == 7701 and split.test.num_classes == 4281
    assert len(split.train.classes) == 5749 - 4281


@pytest.mark.parametrize(
    ("name", "nodes", "width", "classes", "edges"),
    [
        ("cora", 2708, 1433, 7, 10556),
        ("citeseer", 3327, 3703, 6, 9104),
        ("pubmed", 19717, 500, 3, 88648),
    ],
)
def test_graphs_agree_with_torch_geometric(data_root, tmp_path, name, nodes, width, classes, edges):
    ours = real(name, data_root, normalize=False)
    assert ours.features.shape == (nodes, width) and ours.num_classes == classes
    assert ours.edges.shape == (2, edges) and len(ours.train) == 20 * classes
    folder = {"cora": "Cora", "citeseer": "CiteSeer", "pubmed": "PubMed"}[name]
    raw = data_root / "Planetoid" / folder / "raw"
    if not raw.is_dir():
        pytest.skip(f"torch_geometric reads {raw} only")
    datasets = pytest.importorskip("torch_geometric.datasets")
    shutil.copytree(raw, tmp_path / folder / "raw")
    theirs = datasets.Planetoid(str(tmp_path), folder)[0]
    assert torch.equal(ours.features, theirs.x)
    # They sort by the second row; the edges go both ways.
    assert torch.equal(ours.edges, theirs.edge_index.flip(0))
    known = ours.labels >= 0
    assert torch.equal(ours.labels[known], theirs.y[known])
    for part, mask in (("train", "train_mask"), ("validation", "val_mask"), ("test", "test_mask")):
        assert torch.equal(getattr(ours, part), theirs[mask].nonzero().squeeze(1))
