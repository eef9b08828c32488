"""Autoencoder training, and what its angles and its magnitudes carry (Fig. 1.1).

The network learns to give back its input. After that, with all weights as they are, the last layer
of its encoder gives out angles alone, or norms alone, and the decoder makes pictures of them.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor, nn

from hypersphere.registry import register
from hypersphere.training.build import Loaders, change_net, make_loaders, make_sized_model
from hypersphere.training.config import Config
from hypersphere.training.run.folder import RunFolder
from hypersphere.training.runtime import Objective, Player

__all__ = ["Reconstruction", "ReconstructionLoss"]

EMISSIONS = ("product", "angle", "norm")


class ReconstructionLoss(nn.Module):
    """x (B, C, H, W) -> (mean squared error of the pixels, pictures)."""

    def __init__(self, net: nn.Module) -> None:
        super().__init__()
        self.net = net

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        pictures = self.net(x)
        return nn.functional.mse_loss(pictures, x), pictures


@register("task", "reconstruction", source="Fig. 1.1")
class Reconstruction:
    """An autoencoder; tests measure the error of pictures made of products, angles and norms."""

    sections = frozenset({"data"})
    best = ("loss", -1)

    def __init__(self, net: nn.Module, loaders: Loaders, fabric: Any) -> None:
        self.model, self.loaders, self.fabric = net, loaders, fabric
        self.players: list[Player] = []

    @classmethod
    def build(cls, config: Config, fabric: Any) -> Reconstruction:
        if config.data.normalize != "unit":
            raise ValueError(
                "task reconstruction makes pixels of 0..1: use data.normalize: unit; "
                f"got {config.data.normalize!r}"
            )
        ranks = (fabric.global_rank, fabric.world_size)
        loaders = make_loaders(config.data, config.seed, *ranks, device=fabric.device)
        net = make_sized_model(config.model, loaders.shape)
        if not hasattr(net, "encode"):
            name = (
                config.model.get("name", type(net).__name__)
                if isinstance(config.model, dict)
                else type(net).__name__
            )
            raise ValueError(
                f"task reconstruction trains an autoencoder; {name!r} is none: "
                "use model.name: autoencoder"
            )
        return cls(change_net(config, net), loaders, fabric)

    def objectives(self) -> list[Objective]:
        return [Objective(self.model, ReconstructionLoss(self.model))]

    @property
    def batches_per_epoch(self) -> int:
        return len(self.loaders.train)

    def batches(self) -> Iterator[tuple[Tensor, ...]]:
        while True:
            for x, _ in self.loaders.train:
                yield (x.to(self.fabric.device),)

    def measure(self, batch: tuple[Tensor, ...], outputs: Any) -> dict[str, Tensor]:
        return {}

    @torch.no_grad()
    def test(self) -> dict[str, float]:
        """Mean squared error of pictures made of products ("loss"), of angles and of norms."""
        totals = torch.zeros(4, dtype=torch.float64)
        for x, _ in self.loaders.test:
            x = x.to(self.fabric.device)
            for i, emit in enumerate(EMISSIONS):
                totals[i] += (self.model(x, emit=emit) - x).square().sum().item()
            totals[3] += x.numel()
        if self.fabric.world_size > 1:
            totals = self.fabric.all_reduce(totals, reduce_op="sum").cpu()
        product, angle, norm = (totals[:3] / totals[3]).tolist()
        return {"loss": product, "angle_loss": angle, "norm_loss": norm}

    @classmethod
    def metrics(cls, config: Config) -> tuple[str, ...]:
        """The names of what a test gives, the main one first."""
        return ("loss", "angle_loss", "norm_loss")

    @torch.no_grad()
    def conclude(self, run: Any, record: RunFolder, say: Any) -> dict[str, Any]:
        """Keep 16 test pictures and what comes of them: (4, 16, C, H, W) uint8, from the input,
        products, angles and norms, as reconstructions.npy.
        """
        self.model.eval()
        x = next(iter(self.loaders.test))[0][:16].to(self.fabric.device)
        rows = torch.stack([x, *(self.model(x, emit=emit) for emit in EMISSIONS)])
        pictures = (rows.clamp(0, 1) * 255).round().to(torch.uint8)
        record.array("reconstructions.npy", pictures.cpu().numpy())
        return {"reconstructions": "reconstructions.npy"}

    def state_dict(self) -> dict[str, Any]:
        return {"loader": self.loaders.train.state_dict()}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.loaders.train.load_state_dict(state["loader"])
