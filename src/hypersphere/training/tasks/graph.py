"""Full-batch training on one graph (7.5.4, E.10): all nodes are seen, the labelled ones count."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor, nn

from hypersphere.training.build import make_hooks, make_net, make_player_optimizer, make_rate
from hypersphere.training.config import Config
from hypersphere.training.loop import Player

__all__ = ["GraphLoss", "NodeClassification", "prepare_graph"]


class GraphLoss(nn.Module):
    """(labels of the graph) -> (loss over the training nodes, scores of all nodes)."""

    def __init__(self, net: nn.Module, inputs: tuple[Tensor, Tensor], train: Tensor) -> None:
        super().__init__()
        self.net, self.inputs, self.train_nodes = net, inputs, train

    def forward(self, labels: Tensor) -> tuple[Tensor, Tensor]:
        net: Any = self.net
        features = net.features(self.inputs)
        rows, wanted = features[self.train_nodes], labels[self.train_nodes]
        if hasattr(net.head, "loss"):
            return net.head.loss(rows, wanted), features
        return nn.functional.cross_entropy(net.head(rows), wanted), features


class NodeClassification:
    """The validation nodes choose the best step; the test nodes are reported with it."""

    best = ("validation_accuracy", 1)

    def __init__(
        self, net: nn.Module, player: Player, graph: Any, inputs: tuple[Tensor, Tensor]
    ) -> None:
        self.model, self.players, self.graph, self.inputs = net, [player], graph, inputs
        self.labels = graph.labels.to(inputs[0].device)

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

    def state_dict(self) -> dict[str, Any]:
        return {}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        pass


def prepare_graph(config: Config, fabric: Any) -> Any:
    """Data, network, optimizer for `task: graph`."""
    from hypersphere import data, models
    from hypersphere.training.job import Job, make_settings

    if fabric.world_size > 1:
        raise ValueError("task graph trains on one whole graph: use fabric.devices: 1")
    if config.train.accumulate > 1:
        raise ValueError("task graph has one batch, the graph: use train.accumulate: 1")
    graph = data.load(config.data.name, config.data.root, **config.data.options)
    if not isinstance(graph, data.GraphDataset):
        raise ValueError(f"task graph trains on a graph, which {config.data.name!r} is not")
    inputs = (graph.features, models.normalized_adjacency(graph.edges, graph.num_nodes))
    inputs = (inputs[0].to(fabric.device), inputs[1].to(fabric.device))
    config.model["in_channels"] = config.model.get("in_channels") or graph.features.shape[1]
    net = make_net(config, (graph.features.shape[1],), graph.num_classes)
    settings = make_settings(config.train, 1)
    module = fabric.setup_module(GraphLoss(net, inputs, graph.train.to(fabric.device)))
    optimizer = make_player_optimizer(config, net)
    rate = make_rate(optimizer, config.schedule, settings.steps)
    player = Player(module, fabric.setup_optimizers(optimizer), rate)
    return Job(NodeClassification(net, player, graph, inputs), make_hooks(config), settings)
