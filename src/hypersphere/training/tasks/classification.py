"""Classification: images or point clouds, a network and a head. See `graph.py` and `gan.py` for
the others.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor, nn

from hypersphere.training.loop import Player

__all__ = ["Classification", "ClassifierLoss", "extract_features"]


class ClassifierLoss(nn.Module):
    """(x, y) -> (loss, features): one forward pass that gives both, the unit DDP wraps.

    `net` is a `hypersphere.models.Classifier`; the loss is that of `net.loss(x, y)`. A head with
    `detached` set learns from features that do not learn from it: the network is trained by what
    hooks add (the triplet loss alone), and test accuracy still has a meaning.
    """

    def __init__(self, net: nn.Module, label_smoothing: float = 0.0) -> None:
        super().__init__()
        self.net = net
        self.options = {"label_smoothing": label_smoothing} if label_smoothing else {}

    def forward(self, x: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
        net: Any = self.net
        penalized = getattr(net.backbone, "features_and_penalty", None)  # PointNet's T-Nets
        features, penalty = (net.features(x), 0.0) if penalized is None else penalized(x)
        seen = features.detach() if getattr(net.head, "detached", False) else features
        if hasattr(net.head, "loss"):
            loss = net.head.loss(seen, y, **self.options)
        else:
            loss = nn.functional.cross_entropy(net.head(seen), y, **self.options)  # type: ignore[arg-type]
        return loss + penalty, features


class Classification:
    """The task of the loop for labelled samples.

    `train` is a `BatchLoader` (or anything that iterates over one epoch of (x, y) and has a state
    dict);
    `test` any iterable of (x, y), or None.
    """

    best = ("accuracy", 1)
    normalize: Any = None  # how pixels became inputs, for attacks on them

    def __init__(self, net: nn.Module, player: Player, train: Any, test: Any, fabric: Any) -> None:
        self.model, self.players = net, [player]
        self.train_loader, self.test_loader, self.fabric = train, test, fabric

    def batches(self) -> Iterator[tuple[Tensor, ...]]:
        device = self.fabric.device
        while True:
            for x, y in self.train_loader:
                yield x.to(device, non_blocking=True), y.to(device, non_blocking=True)

    def measure(self, batch: tuple[Tensor, ...], outputs: Any) -> dict[str, Tensor]:
        """Training accuracy of one batch, without margin."""
        scores = self.model.head(outputs.detach())  # type: ignore[operator, union-attr]
        return {"accuracy": (scores.argmax(1) == batch[1]).double().mean()}

    @torch.no_grad()
    def test(self) -> dict[str, float]:
        """Loss (without margin), accuracy and error on the test part, with more than five classes
        also the top-5 error; processes share the work.
        """
        if self.test_loader is None:
            return {}
        device = self.fabric.device
        totals = torch.zeros(4, dtype=torch.float64)
        several = False
        for x, y in self.test_loader:
            y = y.to(device)
            with self.fabric.autocast():
                scores = self.model(x.to(device)).float()
            totals[0] += nn.functional.cross_entropy(scores, y, reduction="sum").item()
            totals[1] += (scores.argmax(1) == y).sum().item()
            totals[2] += len(y)
            several = scores.shape[1] > 5
            if several:
                totals[3] += (scores.topk(5).indices == y.unsqueeze(1)).sum().item()
        if self.fabric.world_size > 1:
            totals = self.fabric.all_reduce(totals, reduce_op="sum").cpu()
        loss, correct, count, among = totals.tolist()
        found = {"loss": loss / count, "accuracy": correct / count, "error": 1 - correct / count}
        return {**found, "top5_error": 1 - among / count} if several else found

    def state_dict(self) -> dict[str, Any]:
        return {"loader": self.train_loader.state_dict()}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.train_loader.load_state_dict(state["loader"])


@torch.no_grad()
def extract_features(net: nn.Module, loader: Any, device: Any = "cpu") -> tuple[Tensor, Tensor]:
    """(features (N, d), labels (N,)) of everything `loader` serves, in its order, in evaluation
    mode.
    """
    was_training = net.training
    net.eval()
    features, labels = [], []
    for x, y in loader:
        features.append(net.features(x.to(device)).float().cpu())  # type: ignore[operator]
        labels.append(y.cpu())
    net.train(was_training)
    return torch.cat(features), torch.cat(labels)
