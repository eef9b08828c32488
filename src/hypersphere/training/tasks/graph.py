"""Full-batch training on one graph (7.5.4, E.10): all nodes are seen, the labeled ones count."""

from __future__ import annotations

import dataclasses
import inspect
from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor, nn

from hypersphere.registry import register
from hypersphere.training.build import make_net
from hypersphere.training.config import Config
from hypersphere.training.runtime import Objective, Player
from hypersphere.training.tasks.classification import head_loss, smoothing_option

__all__ = ["GraphLoss", "NodeClassification"]


class GraphLoss(nn.Module):
    """Labels of all nodes (N,) -> (loss over the training nodes, features of all nodes (N, d))."""

    def __init__(
        self, net: nn.Module, inputs: tuple[Tensor, Tensor], train: Tensor, smoothing: float = 0.0
    ) -> None:
        super().__init__()
        self.net, self.inputs, self.train_nodes = net, inputs, train
        self.options: dict[str, Any] = dict(smoothing_option(smoothing))

    def forward(self, labels: Tensor) -> tuple[Tensor, Tensor]:
        net: Any = self.net
        features = net.features(self.inputs)
        rows, wanted = features[self.train_nodes], labels[self.train_nodes]
        return head_loss(net.head, rows, wanted, **self.options), features


@register("task", "graph", source="Sec. 7.5.4, E.10")
class NodeClassification:
    """Nodes of one graph; validation nodes choose the best step, test nodes are reported."""

    sections = frozenset({"data.name", "data.root", "data.options", "head"})
    sections |= {"train.label_smoothing"}
    best = ("validation_accuracy", 1)
    batches_per_epoch = 1

    def __init__(
        self, net: nn.Module, graph: Any, inputs: tuple[Tensor, Tensor], smoothing: float = 0.0
    ) -> None:
        self.model, self.graph, self.inputs = net, graph, inputs
        self.players: list[Player] = []
        self.label_smoothing = smoothing
        self.labels = graph.labels.to(inputs[0].device)

    @classmethod
    def build(cls, config: Config, fabric: Any) -> NodeClassification:
        from hypersphere import data, models

        if fabric.world_size > 1:
            raise ValueError("task graph trains on one whole graph: use fabric.devices: 1")
        if config.train.accumulate > 1:
            raise ValueError("task graph has one batch, the graph: use train.accumulate: 1")
        graph = data.load(config.data.name, config.data.root, **config.data.options)
        if not isinstance(graph, data.GraphDataset):
            raise ValueError(f"task graph trains on a graph, which {config.data.name!r} is not")
        adjacency = models.normalized_adjacency(graph.edges, graph.num_nodes)
        width = graph.features.shape[1]
        if isinstance(config.model, dict) and config.model.get("in_channels") is None:
            # In a copy: the recorded config stays as it was given, so that the run can go on.
            config = dataclasses.replace(config, model={**config.model, "in_channels": width})
        net: Any = make_net(config, (width,), graph.num_classes)
        features = graph.features
        if not getattr(net.backbone, "takes_sparse", False):  # as most modules, dropout too
            features = features.to_dense()
        inputs = (features.to(fabric.device), adjacency.to(fabric.device))
        try:
            inspect.signature(net.backbone.forward).bind(*inputs)
        except TypeError:
            raise ValueError(
                f"task graph needs a network of node features and adjacency, such as model.name "
                f"gcn; {type(net.backbone).__name__} does not take both"
            ) from None
        return cls(net, graph, inputs, config.train.label_smoothing)

    def objectives(self) -> list[Objective]:
        train = self.graph.train.to(self.inputs[0].device)
        loss = GraphLoss(self.model, self.inputs, train, self.label_smoothing)
        return [Objective(self.model, loss)]

    def batches(self) -> Iterator[tuple[Tensor, ...]]:
        while True:
            yield (self.labels,)

    def measure(self, batch: tuple[Tensor, ...], outputs: Any) -> dict[str, Tensor]:
        train = self.graph.train
        scores = self.model.head(outputs[train])  # type: ignore[operator, union-attr]
        return {"accuracy": (scores.argmax(1) == self.labels[train]).double().mean()}

    @torch.no_grad()
    def test(self) -> dict[str, float]:
        scores = self.model(self.inputs)
        right = (scores.argmax(1) == self.labels).double()
        found = {}
        for name, nodes in (("", self.graph.test), ("validation_", self.graph.validation)):
            loss = nn.functional.cross_entropy(scores[nodes], self.labels[nodes])
            found[f"{name}loss"] = float(loss)
            found[f"{name}accuracy"] = float(right[nodes].mean())
        return found

    @classmethod
    def metrics(cls, config: Config) -> tuple[str, ...]:
        """The names of what a test gives, the main one first."""
        return ("accuracy", "loss", "validation_accuracy", "validation_loss")

    def state_dict(self) -> dict[str, Any]:
        return {}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        pass
