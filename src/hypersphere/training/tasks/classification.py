"""Classification of images or point clouds: a network and a head."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor, nn

from hypersphere.models.classifier import head_loss, head_scores
from hypersphere.registry import register
from hypersphere.training.build import Loaders, make_loaders, make_net
from hypersphere.training.config import Config
from hypersphere.training.runtime import Objective, Player

__all__ = ["Classification", "ClassifierLoss", "extract_features", "head_loss", "smoothing_option"]


def smoothing_option(value: float) -> dict[str, float]:
    """As an argument of `head_loss`; none at 0, since not every head takes it."""
    return {"label_smoothing": value} if value else {}


class ClassifierLoss(nn.Module):
    """(x, y[, shares]) -> (loss, features): one forward pass that gives both, the unit DDP wraps.

    The loss is that of ``net.loss(x, y)``. A head with `detached` set learns from features that do
    not learn from it: the network is trained by what hooks add (the triplet loss alone), and test
    accuracy still has a meaning.

    Shapes: x (B, ...) as the network takes it, y (B,) of class indices, or (B, M) with shares
    (B, M), as mixup makes them; loss scalar, features (B, d).

    Args:
        net: a `hypersphere.models.Classifier`.
        label_smoothing: share of the target that is spread over all classes. Default: 0.
    """

    def __init__(self, net: nn.Module, label_smoothing: float = 0.0) -> None:
        super().__init__()
        self.net = net
        self.options = smoothing_option(label_smoothing)

    def forward(self, x: Tensor, y: Tensor, shares: Tensor | None = None) -> tuple[Tensor, Tensor]:
        net: Any = self.net
        penalized = getattr(net.backbone, "features_and_penalty", None)  # PointNet's T-Nets
        features, penalty = (net.features(x), 0.0) if penalized is None else penalized(x)
        seen = features.detach() if getattr(net.head, "detached", False) else features
        return head_loss(net.head, seen, y, shares, **self.options) + penalty, features


@register("task", "classification", source="Ch. 2-7")
class Classification:
    """Samples with labels: a backbone and a head, tested by accuracy.

    Args:
        net: a `hypersphere.models.Classifier`.
        player: how it is trained; None where `prepare` makes it of `objectives`.
        train: a `BatchLoader`, or anything that iterates over one epoch of (x, y) and has a state
            dict.
        test: any iterable of (x, y), or None for no test.
        fabric: devices and processes.
    """

    sections = frozenset({"data", "head", "train.label_smoothing", "run.baseline"})
    best = ("accuracy", 1)
    gives_labels = True
    normalize: Any = None  # how pixels became inputs, for attacks on them
    labeled: Loaders | None = None
    label_smoothing: float = 0.0
    sharded: bool = False
    tests_new_classes = False  # then `data.holdout` holds out classes, not samples of each

    def __init__(
        self, net: nn.Module, player: Player | None, train: Any, test: Any, fabric: Any
    ) -> None:
        self.model = net
        self.players: list[Player] = [] if player is None else [player]
        self.train_loader, self.test_loader, self.fabric = train, test, fabric

    @classmethod
    def build(cls, config: Config, fabric: Any, split: Any = None) -> Classification:
        """Data and network of a config.

        Args:
            config: the settings of the run.
            fabric: devices and processes.
            split: a data set to take instead of the one that the config names.

        Returns:
            The task, without players.
        """
        ranks = (fabric.global_rank, fabric.world_size)
        loaders = make_loaders(
            config.data, config.seed, *ranks, split, fabric.device, cls.tests_new_classes
        )
        net = make_net(config, loaders.shape, loaders.num_classes)
        task = cls(net, None, loaders.train, loaders.test, fabric)
        task.labeled, task.normalize = loaders, loaders.normalize
        task.label_smoothing = config.train.label_smoothing
        settings = config.head if isinstance(config.head, dict) else {}
        task.sharded = bool(settings.get("sharded")) and fabric.world_size > 1
        return task

    def objectives(self) -> list[Objective]:
        """One network with one loss; the classes may be spread over the processes.

        Returns:
            The one objective.
        """
        loss = ClassifierLoss(self.model, self.label_smoothing)
        if self.sharded:
            from hypersphere.heads.sharded import ignore_in_ddp, shard

            shard(self.model.head)  # type: ignore[arg-type]
            ignore_in_ddp(loss)
        return [Objective(self.model, loss)]

    @property
    def batches_per_epoch(self) -> int:
        """Batches of one pass over the training part."""
        return len(self.train_loader)

    def batches(self) -> Iterator[tuple[Tensor, ...]]:
        """Training batches without end, epoch after epoch.

        Returns:
            Iterator of (x, y), x (B, ...) and y (B,).
        """
        device = self.fabric.device
        while True:
            for x, y in self.train_loader:
                yield x.to(device, non_blocking=True), y.to(device, non_blocking=True)

    def measure(self, batch: tuple[Tensor, ...], outputs: Any) -> dict[str, Tensor]:
        """Training accuracy of one batch, without margin.

        Args:
            batch: (x, y), or (x, labels, shares), where the label of the largest share counts.
            outputs: features (B, d).

        Returns:
            {"accuracy": scalar tensor}.
        """
        scores = head_scores(self.model.head, outputs.detach())  # type: ignore[arg-type]
        labels = batch[1]
        if len(batch) > 2:
            labels = labels.gather(1, batch[2].argmax(1, keepdim=True))[:, 0]
        return {"accuracy": (scores.argmax(1) == labels).double().mean()}

    @torch.no_grad()
    def test(self) -> dict[str, float]:
        """Loss (without margin), accuracy and error on the test part, with more than five classes
        also the top-5 error; processes share the work.

        Returns:
            Values by name; empty without a test part.
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

    @classmethod
    def metrics(cls, config: Config) -> tuple[str, ...]:
        """The names of what a test gives.

        Args:
            config: of the run.

        Returns:
            The main one first. More than five classes have a top-5 error.
        """
        return ("accuracy", "error", "loss", "top5_error")

    def state_dict(self) -> dict[str, Any]:
        """The place in the data.

        Returns:
            {"loader": ...}.
        """
        return {"loader": self.train_loader.state_dict()}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Go on at that place.

        Args:
            state: from `state_dict`.
        """
        self.train_loader.load_state_dict(state["loader"])


@torch.no_grad()
def extract_features(net: nn.Module, loader: Any, device: Any = "cpu") -> tuple[Tensor, Tensor]:
    """Features of everything a loader serves, in its order, in evaluation mode.

    Args:
        net: a `hypersphere.models.Classifier`, or anything with a method `features`.
        loader: iterates over (x, y).
        device: where the network is. Default: the CPU.

    Returns:
        (features (N, d), labels (N,)), on the CPU.
    """
    was_training = net.training
    net.eval()
    features, labels = [], []
    for x, y in loader:
        features.append(net.features(x.to(device)).float().cpu())  # type: ignore[operator]
        labels.append(y.cpu())
    net.train(was_training)
    return torch.cat(features), torch.cat(labels)
