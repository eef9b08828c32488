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
    """weight = Y_2 (P_1 Y_2)^-1 Y_1 with the factors Y_1 (r, n), Y_2 (m, r) as parameters (E.23).

    n neurons of dimension m, columns in E.6 and rows of the weight here. P_1 (r, m) is saved
    and stays constant. A given weight W = U S V^T starts as its best approximation of rank r,
    W_r = U_r S_r V_r^T: Y_2 = W P_2 = c U_r, c the largest of S, and Y_1 = P_1 W_r: a step on a
    factor then moves the weight no further than a step on the weight would. The layer has
    r (m + n) instead of m n parameters.

    Differs from E.6: P_1 = U_r^T plus a random matrix of a quarter of its size, instead of a
    random matrix alone. With that, P_1 Y_2 would be square and random, thus nearly singular, and
    training would leave the floating range; with this, its singular values lie around c.

    Args:
        shape: of the weight, (n, ...), whose further dimensions are flattened to m.
        rank: r, from 1 to min(n, m).
        generator: source of the random part of P_1, on the CPU.
    """

    projection: Tensor
    noise: Tensor

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
        noise = gaussian_projection(m, rank, 1, generator)[0] / m**0.5
        self.register_buffer("projection", noise.clone())
        self.register_buffer("noise", noise, persistent=False)

    def forward(self, y1: Tensor, y2: Tensor) -> Tensor:
        return bilateral_low_rank(y1, y2, self.projection).T.reshape(self.shape)

    @torch.no_grad()
    def right_inverse(self, weight: Tensor) -> tuple[Tensor, Tensor]:
        """The factors of the best approximation of rank r; sets P_1.

        Args:
            weight: of the shape given.

        Returns:
            Y_1 (r, n) and Y_2 (m, r).
        """
        wide = torch.promote_types(weight.dtype, torch.float32)
        u, s, vh = torch.linalg.svd(weight.flatten(1).T.to(wide), full_matrices=False)
        u, s, vh = u[:, : self.rank], s[: self.rank], vh[: self.rank]
        self.projection.copy_(u.T + 0.25 * self.noise)
        y2 = u * torch.where(s[0] > 0, s[0], 1.0)
        y1 = self.projection.to(wide) @ (u * s) @ vh
        return y1.to(weight.dtype), y2.to(weight.dtype)


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

    Args:
        model: the network.
        rank: r of the two factors.
        only: names of layers to take, with wildcards. Default: all.
        skip: names of layers to leave out, with wildcards.
        seed: seed of the random part of P_1.

    Returns:
        The model.

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
    """Plain weights again, of the same values: for inference and for a plain state dict.

    Args:
        model: a network changed by :func:`low_rank`; it is changed back in place.

    Returns:
        The model.
    """
    for layer in model.modules():
        if factors(layer) is not None:
            parametrize.remove_parametrizations(layer, "weight", leave_parametrized=True)
            # It comes back behind the bias; state dicts and optimizers go by the order
            parameters = layer._parameters
            for key in [key for key in parameters if key != "weight"]:
                parameters[key] = parameters.pop(key)
    return model


def factors(layer: nn.Module | None) -> tuple[Tensor, Tensor] | None:
    """Y_1 (r, n) and Y_2 (m, r) of a low-rank layer, None for any other."""
    if layer is None or not parametrize.is_parametrized(layer, "weight"):
        return None
    parametrized = layer.parametrizations.weight  # type: ignore[union-attr]
    if not isinstance(parametrized[0], LowRankBilateral):  # type: ignore[index]
        return None
    return parametrized.original0, parametrized.original1  # type: ignore[union-attr, return-value]
