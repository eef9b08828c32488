"""Low-rank bilateral form of a weight (Eq. E.23), as a torch parametrization."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.utils import parametrize

from ..functional import bilateral_low_rank, gaussian_projection
from .neurons import CONVOLUTIONS, find_neurons

__all__ = ["LowRankBilateral", "fold_low_rank", "low_rank"]


class LowRankBilateral(nn.Module):
    """weight = Y_2 (P_1 Y_2)^-1 Y_1 with the factors Y_1 (r, n), Y_2 (m, r) as parameters.

    n neurons of dimension m, columns in the text and rows of the weight here. P_1 (r, m) is drawn
    once and saved; a given weight W starts as Y_1 = P_1 W, Y_2 = W P_2 with P_2 random, its best
    guess of rank r. The layer has r (m + n) instead of m n parameters.
    """

    projection: Tensor
    mixture: Tensor

    def __init__(
        self, shape: torch.Size, rank: int, generator: torch.Generator | None = None
    ) -> None:
        super().__init__()
        n, m = shape[0], shape[1:].numel()
        if not 1 <= rank <= min(n, m):
            raise ValueError(
                f"rank of a {tuple(shape)} weight must be 1 to {min(n, m)}, got {rank}"
            )
        self.shape, self.rank = shape, rank
        # Scaled so that P_1 W has entries of the size of W's, as Y_2 does
        self.register_buffer("projection", gaussian_projection(m, rank, 1, generator)[0] / m**0.5)
        mixture = gaussian_projection(n, rank, 1, generator)[0].T / n**0.5
        self.register_buffer("mixture", mixture, persistent=False)

    def forward(self, y1: Tensor, y2: Tensor) -> Tensor:
        return bilateral_low_rank(y1, y2, self.projection.to(y1)).T.reshape(self.shape)

    def right_inverse(self, weight: Tensor) -> tuple[Tensor, Tensor]:
        columns = weight.flatten(1).T  # (m, n)
        return self.projection.to(weight) @ columns, columns @ self.mixture.to(weight)


def low_rank(
    model: nn.Module,
    rank: int,
    only: Sequence[str] | None = None,
    skip: Sequence[str] = (),
    seed: int = 0,
) -> nn.Module:
    """Give hidden convolutions and linear layers the form E.23, in place; returns the model.

    Layers of which a side is not larger than `rank`, grouped and transposed convolutions and the
    output layer stay as they are. Together with CoMHE(projection="bilateral") this is Low-Rank
    BP-CoMHE (E.6).

    >>> net = nn.Sequential(nn.Linear(40, 30), nn.ReLU(), nn.Linear(30, 5))
    >>> sum(p.numel() for p in low_rank(net, 4)[0].parameters())  # 4 (40 + 30) + 30 biases
    310
    """
    generator = torch.Generator().manual_seed(seed)
    changed = 0
    for neurons in find_neurons(model, only, skip):
        layer: Any = neurons.module
        plain = isinstance(layer, nn.Linear) or (
            isinstance(layer, CONVOLUTIONS) and layer.groups == 1
        )
        if not plain or neurons.role == "output" or parametrize.is_parametrized(layer, "weight"):
            continue
        shape = layer.weight.shape
        if rank >= min(shape[0], shape[1:].numel()):
            continue
        form = LowRankBilateral(shape, rank, generator).to(layer.weight.device)
        parametrize.register_parametrization(layer, "weight", form)
        changed += 1
    if not changed:
        raise ValueError(f"no hidden layer of {type(model).__name__} is larger than rank {rank}")
    return model


def fold_low_rank(model: nn.Module) -> nn.Module:
    """Plain weights again, of the same values: for inference and for a plain state dict."""
    for layer in model.modules():
        if factors(layer) is not None:
            parametrize.remove_parametrizations(layer, "weight", leave_parametrized=True)
    return model


def factors(layer: nn.Module | None) -> tuple[Tensor, Tensor] | None:
    """Y_1 (r, n) and Y_2 (m, r) of a low-rank layer, None for any other."""
    if layer is None or not parametrize.is_parametrized(layer, "weight"):
        return None
    parametrized = layer.parametrizations.weight  # type: ignore[union-attr]
    if not isinstance(parametrized[0], LowRankBilateral):  # type: ignore[index]
        return None
    return parametrized.original0, parametrized.original1  # type: ignore[union-attr, return-value]
