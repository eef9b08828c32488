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
from tolerances import close

NODES, KNOWN, TRAIN, WIDTH, CLASSES = 620, 600, 40, 7, 3
TEST = [612, 605, 619, 601, 600, 618]  # as in CiteSeer: not in order, and with holes


def sparse_of(dense):
    return pickle.dumps(scipy.sparse.csr_matrix(dense.astype(np.float32)), protocol=2)


def claim(rows, columns):
    """A matrix of six empty rows that says it is (rows, columns)."""
    matrix = scipy.sparse.csr_matrix((6, 7), dtype=np.float32)
    matrix._shape = (rows, columns)
    return matrix


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
    data = hs.data.load("citeseer", root, normalize=False, sparse=False)
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
    data = hs.data.load("citeseer", root, sparse=False)
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
        ("graph", pickle.dumps([1, 2]), DamagedData, r"\{node: \[neighbors\]\}"),
        ("graph", pickle.dumps({0: [10**9]}), DamagedData, r"nodes in 0\.\.619"),
        ("graph", b"cos\nsystem\n(S'true'\ntR.", RefusedPickle, r"asks for os\.system"),
        ("test.index", b"601\nsix\n", DamagedData, "a node number per line"),
        ("test.index", b"601\n", DamagedData, "6 nodes from 600 on, found 1"),
        ("test.index", b"", DamagedData, "6 nodes from 600 on, found 0"),
        ("test.index", b"\xff\xfe", DamagedData, "a node number per line"),
        ("test.index", b"612 605 619 601 600 99999999999999999999", DamagedData, "per line"),
        ("test.index", b"612 605 619 601 600 600", DamagedData, "a node that is named twice"),
        ("test.index", b"612 605 619 601 600 8000000000", DamagedData, "node 8000000000"),
        ("graph", pickle.dumps({0: [1.7]}), DamagedData, "whole numbers"),
        ("graph", pickle.dumps({0.5: [1]}), DamagedData, "whole numbers"),
        ("graph", pickle.dumps({0: [True]}), DamagedData, "whole numbers"),
        ("graph", pickle.dumps({"0": [1]}), DamagedData, "whole numbers"),
        ("graph", pickle.dumps({0: 3}), DamagedData, r"\{node: \[neighbors\]\}"),
        ("graph", pickle.dumps({0: [1 << 70]}), DamagedData, "whole numbers"),
        ("graph", pickle.dumps({0: [-1]}), DamagedData, r"nodes in 0\.\.619"),
        ("graph", b"", DamagedData, "a pickle of arrays"),
        ("graph", b"<html>", DamagedData, "a pickle of arrays"),
        ("x", sparse_of(np.ones((40, 5))), DamagedData, r"7 features, as in ind\.citeseer\.allx"),
        ("tx", sparse_of(np.ones((6, 9))), DamagedData, r"7 features, as in ind\.citeseer\.allx"),
        ("allx", sparse_of(np.ones((500, 7))), DamagedData, "one-hot labels|at least 540 nodes"),
        ("allx", sparse_of(np.full((600, 7), np.nan)), DamagedData, "not finite"),
        ("tx", sparse_of(np.full((6, 7), np.inf)), DamagedData, "not finite"),
        ("tx", pickle.dumps(claim(10**6, 10**7)), DamagedData, "a sparse matrix"),
        ("tx", pickle.dumps(claim(6, 10**12)), DamagedData, "larger than 4,294,967,296 bytes"),
        ("y", pickle.dumps(np.full((40, 3), np.nan)), DamagedData, r"one-hot labels \(40"),
        ("y", pickle.dumps(np.ones((40, 3))), DamagedData, r"one-hot labels \(40"),
        ("y", pickle.dumps(np.eye(3)[[0] * 40]), DamagedData, "first 40 rows of ind.citeseer.ally"),
        ("x", sparse_of(np.ones((40, 7))), DamagedData, "first 40 rows of ind.citeseer.allx"),
        ("ally", pickle.dumps(np.zeros((600, 3))), DamagedData, "40 rows of ind.citeseer.ally"),
        ("y", pickle.dumps(np.zeros((40, 3))), DamagedData, "a class for every training node"),
        (
            "ty",
            pickle.dumps(np.zeros((6, 4))),
            DamagedData,
            r"3 classes, as in ind\.citeseer\.ally",
        ),
        ("ty", pickle.dumps(np.zeros((6, 0))), DamagedData, "one-hot labels"),
    ],
)
def test_damage_is_named(citations, key, content, error, message):
    path = citations[0] / "Planetoid" / "CiteSeer" / "raw" / f"ind.citeseer.{key}"
    path.write_bytes(content)
    with pytest.raises(error, match=message) as raised:
        hs.data.load("citeseer", citations[0])
    assert f"ind.citeseer.{key}" in str(raised.value) or key == "allx"


def test_sparse_features_are_the_dense_ones(citations):
    for normalize in (False, True):
        dense = hs.data.load("citeseer", citations[0], normalize=normalize, sparse=False)
        sparse = hs.data.load("citeseer", citations[0], normalize=normalize)
        assert sparse.features.layout == torch.sparse_coo and sparse.features.is_coalesced()
        close(sparse.features.to_dense(), dense.features)
        assert repr(sparse) == repr(dense) and sparse.num_nodes == NODES


def test_entries_given_twice_are_summed_as_scipy_does(citations):
    path = citations[0] / "Planetoid" / "CiteSeer" / "raw" / "ind.citeseer.tx"
    twice = scipy.sparse.csr_matrix(
        (np.array([1.0, 2.0]), np.array([3, 3]), np.array([0, 2, 2, 2, 2, 2, 2])), shape=(6, WIDTH)
    )
    path.write_bytes(pickle.dumps(twice))
    data = hs.data.load("citeseer", citations[0], normalize=False, sparse=False)
    assert data.features[TEST[0]].tolist() == twice.toarray()[0].tolist()


def test_missing_files_are_named(citations):
    (citations[0] / "Planetoid" / "CiteSeer" / "raw" / "ind.citeseer.ty").unlink()
    with pytest.raises(MissingData, match=r"ind\.citeseer\.ty is missing.*kimiyoung/planetoid"):
        hs.data.load("citeseer", citations[0])
