"""Citation graphs Cora, CiteSeer and PubMed: Planetoid's `ind.*` files and public split."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from .errors import DamagedData, damaged
from .files import find_folder
from .sources import SOURCES
from .unpickle import SparseRows, read_pickle


@dataclass(frozen=True)
class GraphDataset:
    """One graph with labelled nodes.

    `features` (n, d) float32; `edges` (2, E) int64, both directions of every edge, no node with
    itself, sorted; `labels` (n,) int64, -1 for nodes without one; `train`, `validation`, `test`:
    node indices.
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
        return len(self.features)

    @property
    def num_classes(self) -> int:
        return len(self.classes)

    def adjacency(self) -> Tensor:
        """A as a sparse (n, n) float32 matrix; A + I and the scaling of E.24 are the model's."""
        ones = torch.ones(self.edges.shape[1])
        size = (self.num_nodes, self.num_nodes)
        with torch.sparse.check_sparse_tensor_invariants(True):
            return torch.sparse_coo_tensor(self.edges, ones, size, is_coalesced=True)


def load_planetoid(name: str, root: Path, normalize: bool = True) -> GraphDataset:
    """ "cora", "citeseer" or "pubmed" with the public split: 20 labels a class, 500, 1000.

    `normalize`: divide each feature row by its sum, as the released GCN code does. Nodes of
    CiteSeer that appear in no file get zero features and the label -1 (the released code says class
    0, but no part contains them). Self-citations in the files are dropped, so that A + I of E.24
    counts every node once; the released code counts those twice.
    """
    source = SOURCES[name]
    keys = ("x", "tx", "allx", "y", "ty", "ally", "graph", "test.index")
    paths = dict(
        zip(keys, find_folder(root, source, [f"ind.{name}.{k}" for k in keys]), strict=True)
    )
    part: dict[str, Any] = {
        key: read_pickle(path, source.where) for key, path in paths.items() if key != "test.index"
    }
    for key in ("x", "tx", "allx"):
        if not isinstance(part[key], SparseRows):
            raise damaged(paths[key], "a sparse matrix", type(part[key]).__name__, source.where)
        try:
            part[key] = part[key].dense()
        except DamagedData as error:
            raise damaged(paths[key], "a sparse matrix", str(error), source.where) from None
    for key in ("y", "ty", "ally"):
        rows = len(part["x" if key == "y" else key.replace("y", "x")])
        if not isinstance(part[key], np.ndarray) or part[key].ndim != 2 or len(part[key]) != rows:
            raise damaged(paths[key], f"one-hot labels ({rows}, classes)", "others", source.where)
    try:
        test = np.array(paths["test.index"].read_text().split(), dtype=np.int64)
    except ValueError as error:
        raise damaged(
            paths["test.index"], "a node number a line", str(error), source.where
        ) from None
    known, labelled = len(part["allx"]), len(part["x"])
    if len(test) != len(part["tx"]) or test.min() < known:
        raise damaged(
            paths["test.index"],
            f"{len(part['tx'])} nodes from {known} on",
            f"{len(test)}",
            source.where,
        )
    # Row i of tx belongs to node test[i]; nodes between that have no row stay empty.
    nodes = int(test.max()) + 1
    features = np.zeros((nodes, part["allx"].shape[1]), np.float32)
    features[:known], features[test] = part["allx"], part["tx"]
    one_hot = np.zeros((nodes, part["ally"].shape[1]), np.float32)
    one_hot[:known], one_hot[test] = part["ally"], part["ty"]
    labels = np.where(one_hot.sum(1) > 0, one_hot.argmax(1), -1)
    if normalize:
        total = features.sum(1, keepdims=True)
        features = np.divide(features, total, out=np.zeros_like(features), where=total != 0)
    return GraphDataset(
        torch.from_numpy(features),
        _edges(part["graph"], nodes, paths["graph"], source.where),
        torch.from_numpy(labels),
        train=torch.arange(labelled),
        validation=torch.arange(labelled, labelled + 500),
        test=torch.from_numpy(np.sort(test)),
        classes=[str(c) for c in range(one_hot.shape[1])],
    )


def _edges(graph: Any, nodes: int, path: Path, where: str) -> Tensor:
    """The neighbour lists {node: [node, ...]} as sorted undirected edges (2, E)."""
    try:
        lengths = [len(neighbours) for neighbours in graph.values()]
        rows = np.repeat(np.fromiter(graph.keys(), np.int64, len(graph)), lengths)
        columns = np.fromiter((n for ns in graph.values() for n in ns), np.int64, sum(lengths))
    except (AttributeError, TypeError, ValueError) as error:
        raise damaged(path, "{node: [neighbours]}", str(error), where) from None
    if len(rows) and not (
        min(rows.min(), columns.min()) >= 0 and max(rows.max(), columns.max()) < nodes
    ):
        raise damaged(path, f"nodes in 0..{nodes - 1}", "others", where)
    keep = rows != columns
    rows, columns = rows[keep], columns[keep]
    code = np.unique(np.concatenate([rows * nodes + columns, columns * nodes + rows]))
    return torch.from_numpy(np.stack([code // nodes, code % nodes]))
