"""Planetoid files: against a slow reading of the published description."""

from __future__ import annotations

import collections
import pickle

import numpy as np
import pytest
import scipy.sparse
import torch

import hypersphere as hs
from hypersphere.data import DamagedData, MissingData, RefusedPickle

NODES, KNOWN, TRAIN, WIDTH, CLASSES = 620, 600, 40, 7, 3
TEST = [612, 605, 619, 601, 600, 618]  # as in CiteSeer: not in order, and with holes


@pytest.fixture
def citations(tmp_path):
    folder = tmp_path / "Planetoid" / "CiteSeer" / "raw"
    folder.mkdir(parents=True)
    random = np.random.default_rng(0)
    words = (random.random((NODES, WIDTH)) < 0.4).astype(np.float32)
    words[3] = 0
    labels = np.eye(CLASSES, dtype=np.int32)[random.integers(0, CLASSES, NODES)]
    graph = collections.defaultdict(list)
    for a, b in random.integers(0, NODES, (900, 2)):
        graph[int(a)].append(int(b))
    graph[5] += [5, 8, 8]  # a self-citation and a repeated one
    sparse = scipy.sparse.csr_matrix
    content = {
        "x": sparse(words[:TRAIN]),
        "allx": sparse(words[:KNOWN]),
        "tx": sparse(words[TEST]),
        "y": labels[:TRAIN],
        "ally": labels[:KNOWN],
        "ty": labels[TEST],
        "graph": graph,
    }
    for key, value in content.items():
        (folder / f"ind.citeseer.{key}").write_bytes(pickle.dumps(value, protocol=2))
    (folder / "ind.citeseer.test.index").write_text("".join(f"{i}\n" for i in TEST))
    return tmp_path, words, labels, graph


def test_features_labels_edges_and_split(citations):
    root, words, labels, graph = citations
    data = hs.data.load("citeseer", root, normalize=False)
    for node in range(NODES):
        known = node < KNOWN or node in TEST
        assert data.features[node].tolist() == (words[node].tolist() if known else [0] * WIDTH)
        assert data.labels[node].item() == (labels[node].argmax() if known else -1)
    expected = {(a, b) for a, ns in graph.items() for b in ns if a != b}
    expected |= {(b, a) for a, b in expected}
    assert list(zip(*data.edges.tolist(), strict=True)) == sorted(expected)
    assert data.train.tolist() == list(range(40))
    assert data.validation.tolist() == list(range(40, 540))
    assert data.test.tolist() == sorted(TEST)
    dense = data.adjacency().to_dense()
    assert torch.equal(dense, dense.T) and dense.sum() == len(expected) and dense.trace() == 0


def test_rows_are_divided_by_their_sum(citations):
    root, words, *_ = citations
    data = hs.data.load("citeseer", root)
    node = int(words.sum(1).argmax())
    assert data.features[3].tolist() == [0] * WIDTH
    np.testing.assert_allclose(data.features[node], words[node] / words[node].sum(), rtol=1e-6)
    assert data.num_classes == CLASSES and data.num_nodes == NODES


def test_the_graph_feeds_the_network(citations):
    data = hs.data.load("citeseer", citations[0])
    adjacency = hs.models.normalized_adjacency(data.edges, data.num_nodes)
    assert adjacency.shape == (NODES, NODES)


@pytest.mark.parametrize(
    ("key", "content", "error", "message"),
    [
        ("x", pickle.dumps(np.zeros((3, 3))), DamagedData, "a sparse matrix, found ndarray"),
        ("ally", pickle.dumps(np.zeros((3, 3))), DamagedData, r"one-hot labels \(600, classes\)"),
        ("graph", pickle.dumps([1, 2]), DamagedData, r"\{node: \[neighbours\]\}"),
        ("graph", pickle.dumps({0: [10**9]}), DamagedData, r"nodes in 0\.\.619"),
        ("graph", b"cos\nsystem\n(S'true'\ntR.", RefusedPickle, r"asks for os\.system"),
        ("test.index", b"601\nsix\n", DamagedData, "a node number a line"),
        ("test.index", b"601\n", DamagedData, "6 nodes from 600 on, found 1"),
    ],
)
def test_damage_is_named(citations, key, content, error, message):
    path = citations[0] / "Planetoid" / "CiteSeer" / "raw" / f"ind.citeseer.{key}"
    path.write_bytes(content)
    with pytest.raises(error, match=message):
        hs.data.load("citeseer", citations[0])


def test_missing_files_are_named(citations):
    (citations[0] / "Planetoid" / "CiteSeer" / "raw" / "ind.citeseer.ty").unlink()
    with pytest.raises(MissingData, match=r"ind\.citeseer\.ty is missing.*kimiyoung/planetoid"):
        hs.data.load("citeseer", citations[0])
