"""Citation graphs Cora, CiteSeer and PubMed: Planetoid's `ind.*` files and public split."""

from __future__ import annotations

import numbers
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from .._reading import read_lines
from ..registry import register
from .errors import DamagedData, damaged
from .files import find_folder
from .sources import SOURCES
from .sparse_rows import SparseRows
from .unpickle import read_pickle

VALIDATION = 500  # nodes after the labeled ones, in the public split


@dataclass(frozen=True)
class GraphDataset:
    """One graph with labeled nodes.

    Args:
        features: (n, d) float32, dense or sparse.
        edges: (2, E) int64, both directions of every edge, no node with itself, sorted.
        labels: (n,) int64, -1 for nodes without one.
        train: indices of the training nodes.
        validation: indices of the nodes to choose settings on.
        test: indices of the test nodes.
        classes: names of the classes.
    """

    features: Tensor
    edges: Tensor
    labels: Tensor
    train: Tensor
    validation: Tensor
    test: Tensor
    classes: Sequence[str]

    def __repr__(self) -> str:
        parts = ", ".join(f"{p} {len(getattr(self, p)):,}" for p in ("train", "validation", "test"))
        return (
            f"GraphDataset({self.num_nodes:,} nodes of {self.features.shape[1]:,} features, "
            f"{self.edges.shape[1]:,} edges, {self.num_classes} classes; {parts})"
        )

    @property
    def num_nodes(self) -> int:
        """Number of nodes n."""
        return self.features.shape[0]

    @property
    def num_classes(self) -> int:
        """Number of classes."""
        return len(self.classes)

    def adjacency(self) -> Tensor:
        """The adjacency matrix A; A + I and the scaling of E.24 are the model's.

        Returns:
            A as a sparse COO tensor (n, n) float32.
        """
        ones = torch.ones(self.edges.shape[1])
        size = (self.num_nodes, self.num_nodes)
        with torch.sparse.check_sparse_tensor_invariants(True):
            return torch.sparse_coo_tensor(self.edges, ones, size, is_coalesced=True)


@register("data", "pubmed")
@register("data", "citeseer")
@register("data", "cora")
def load_planetoid(
    name: str, root: Path, normalize: bool = True, sparse: bool = True
) -> GraphDataset:
    """A citation graph with the public split: 20 labels per class, 500 and 1000 for testing.

    Nodes of CiteSeer that appear in no file get zero features and the label -1 (the released code
    says class 0, but no part contains them). Self-citations in the files are dropped, so that
    A + I of E.24 counts every node once; the released code counts those twice.

    Args:
        name: "cora", "citeseer" or "pubmed".
        root: the data folder.
        normalize: divide each row of the features by its sum, as the released GCN code does.
        sparse: features as a sparse COO tensor, with which steps of a GCN are faster. False gives a
            dense one, for networks that do not take sparse tensors, for indexing and for numpy.

    Returns:
        The graph.
    """
    source = SOURCES[name]
    keys = ("x", "tx", "allx", "y", "ty", "ally", "graph", "test.index")
    paths = dict(
        zip(keys, find_folder(root, source, [f"ind.{name}.{k}" for k in keys]), strict=True)
    )
    where = source.where
    x, tx, allx = (_features(paths[key], where) for key in ("x", "tx", "allx"))
    for key, matrix in (("x", x), ("tx", tx)):
        if matrix.shape[1] != allx.shape[1]:
            expected = f"{allx.shape[1]} features, as in {paths['allx'].name}"
            raise damaged(paths[key], expected, f"{matrix.shape[1]}", where)
    y, ty, ally = (
        _one_hot(paths[key], len(matrix), where)
        for key, matrix in (("y", x), ("ty", tx), ("ally", allx))
    )
    for key, given in (("y", y), ("ty", ty)):
        if given.shape[1] != ally.shape[1]:
            expected = f"{ally.shape[1]} classes, as in {paths['ally'].name}"
            raise damaged(paths[key], expected, f"{given.shape[1]}", where)
    known, labeled = len(allx), len(x)
    if labeled + VALIDATION > known:
        expected = f"at least {labeled + VALIDATION} nodes: {labeled} of x and {VALIDATION} to test"
        raise damaged(paths["allx"], expected, f"{known}", where)
    if not bool(y.any(1).all()):
        raise damaged(paths["y"], "a class for every training node", "nodes without one", where)
    if not np.array_equal(y, ally[:labeled]):
        expected = f"the first {labeled} rows of {paths['ally'].name}"
        raise damaged(paths["y"], expected, "others", where)
    if not _same(x, allx, labeled):
        expected = f"the first {labeled} rows of {paths['allx'].name}"
        raise damaged(paths["x"], expected, "others", where)
    test = _test_nodes(paths["test.index"], len(tx), known, where)
    # Row i of tx belongs to node test[i]; nodes between that have no row stay empty.
    nodes = int(test.max()) + 1
    place = torch.cat([torch.arange(known), torch.from_numpy(test)])
    one_hot = np.zeros((nodes, ally.shape[1]), bool)
    one_hot[:known], one_hot[test] = ally, ty
    labels = np.where(one_hot.any(1), one_hot.argmax(1), -1)
    rows = torch.cat([allx, tx]).coalesce()
    features = torch.sparse_coo_tensor(
        torch.stack([place[rows.indices()[0]], rows.indices()[1]]),
        rows.values(),
        (nodes, allx.shape[1]),
        check_invariants=False,  # those of rows, moved to their nodes
    ).coalesce()
    if normalize:
        features = _divided_by_row_sums(features)
    return GraphDataset(
        features if sparse else features.to_dense(),
        _edges(paths["graph"], nodes, where),
        torch.from_numpy(labels),
        train=torch.arange(labeled),
        validation=torch.arange(labeled, labeled + VALIDATION),
        test=torch.from_numpy(np.sort(test)),
        classes=[str(c) for c in range(one_hot.shape[1])],
    )


def _features(path: Path, where: str) -> Tensor:
    found = read_pickle(path, where)
    if not isinstance(found, SparseRows):
        raise damaged(path, "a sparse matrix", type(found).__name__, where)
    try:
        return found.sparse()
    except DamagedData as error:
        raise damaged(path, "a sparse matrix", str(error), where) from None


def _same(x: Tensor, allx: Tensor, rows: int) -> bool:
    """Whether x is the first rows of allx, both coalesced."""
    first = allx.indices()[0] < rows
    return torch.equal(x.indices(), allx.indices()[:, first]) and torch.equal(
        x.values(), allx.values()[first]
    )


def _one_hot(path: Path, rows: int, where: str) -> np.ndarray:
    """Labels (rows, classes) bool, at most one per row."""
    found = read_pickle(path, where)
    fits = (
        isinstance(found, np.ndarray)
        and found.ndim == 2
        and len(found) == rows
        and found.shape[1] > 0
        and bool(((found == 0) | (found == 1)).all())
        and bool((found.sum(1) <= 1).all())
    )
    if not fits:
        raise damaged(path, f"one-hot labels ({rows}, classes)", "others", where)
    return np.asarray(found).astype(bool)


def _test_nodes(path: Path, count: int, known: int, where: str) -> np.ndarray:
    try:
        test = np.array(" ".join(read_lines(path)).split(), dtype=np.int64)
    except (ValueError, OverflowError) as error:
        raise damaged(path, "a node number per line", str(error), where) from None
    if len(test) != count or count == 0 or test.min() < known:
        raise damaged(path, f"{count} nodes from {known} on", f"{len(test)}", where)
    if len(np.unique(test)) != len(test):
        raise damaged(path, "different nodes", "a node that is named twice", where)
    # CiteSeer leaves out 15 of 1,015; see Note [Claims of a file].
    most = known + 16 * count + 1024
    if test.max() >= most:
        raise damaged(path, f"nodes below {most}", f"node {test.max()}", where)
    return test


def _divided_by_row_sums(features: Tensor) -> Tensor:
    total = torch.sparse.sum(features, dim=1).to_dense()[features.indices()[0]]
    values = torch.where(total != 0, features.values() / total, torch.zeros_like(total))
    return torch.sparse_coo_tensor(
        features.indices(), values, features.shape, is_coalesced=True, check_invariants=False
    )


def _edges(path: Path, nodes: int, where: str) -> Tensor:
    """The neighbor lists {node: [node, ...]} as sorted undirected edges (2, E)."""
    graph = read_pickle(path, where)
    if not isinstance(graph, dict) or not all(isinstance(v, list) for v in graph.values()):
        raise damaged(path, "{node: [neighbors]}", "something else", where)
    lengths = [len(neighbors) for neighbors in graph.values()]
    rows = np.repeat(_whole(list(graph), path, where), lengths)
    columns = _whole([n for neighbors in graph.values() for n in neighbors], path, where)
    if len(rows) and not (
        min(rows.min(), columns.min()) >= 0 and max(rows.max(), columns.max()) < nodes
    ):
        raise damaged(path, f"nodes in 0..{nodes - 1}", "others", where)
    keep = rows != columns
    rows, columns = rows[keep], columns[keep]
    code = np.unique(np.concatenate([rows * nodes + columns, columns * nodes + rows]))
    return torch.from_numpy(np.stack([code // nodes, code % nodes]))


def _whole(values: list[Any], path: Path, where: str) -> np.ndarray:
    """The node numbers as int64; what numpy would round or parse is refused."""
    if not all(isinstance(n, numbers.Integral) and not isinstance(n, bool) for n in values):
        raise damaged(path, "{node: [neighbors]}, whole numbers", "other values", where)
    try:
        return np.array(values, dtype=np.int64)
    except OverflowError as error:
        raise damaged(path, "{node: [neighbors]}, whole numbers", str(error), where) from None
