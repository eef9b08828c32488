"""OGD for the rotations beside Adam for the rest, as the graph networks of F.3 are trained."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, cast

import torch
from torch import Tensor
from torch.optim.adam import adam

from hypersphere.orthogonal import OGD

__all__ = ["OGDAdam"]


class OGDAdam(OGD):
    """Eq. 7.6 on the matrices of `rotate(method="ogd")`; Adam, or AdamW, on everything else.

    "We use our own OGD optimizer to train the rotation matrix and use the original optimizer to
    train the other variables" (F.3). One optimizer, so that schedules and checkpoints see one.
    `momentum` and `nesterov` are those of the matrices.

    >>> from hypersphere.orthogonal import orthogonality_error, rotate
    >>> layer = rotate(torch.nn.Linear(8, 5), method="ogd")
    >>> optimizer = OGDAdam(layer.parameters(), lr=0.01)
    >>> layer(torch.randn(16, 8)).square().mean().backward()
    >>> optimizer.step()
    >>> orthogonality_error(layer) < 1e-5, sorted(optimizer.state[layer.bias])
    (True, ['exp_avg', 'exp_avg_sq', 'step'])
    """

    def __init__(
        self,
        params: Iterable[Any],
        lr: float = 0.01,
        momentum: float = 0.0,
        iterations: int = 2,
        betas: tuple[float, float] = (0.9, 0.999),
        eps: float = 1e-8,
        decoupled: bool = False,
        nesterov: bool = False,
    ) -> None:
        self.betas, self.eps, self.decoupled = betas, eps, decoupled
        super().__init__(params, lr, momentum, iterations, nesterov=nesterov)

    def _step_plain(self, params: list[Tensor], group: dict[str, Any]) -> None:
        for p in params:
            if not self.state[p]:
                self.state[p].update(
                    step=torch.tensor(0.0),
                    exp_avg=torch.zeros_like(p),
                    exp_avg_sq=torch.zeros_like(p),
                )
        states = [self.state[p] for p in params]
        adam(
            params,
            [cast(Tensor, p.grad) for p in params],
            [s["exp_avg"] for s in states],
            [s["exp_avg_sq"] for s in states],
            [],
            [s["step"] for s in states],
            amsgrad=False,
            beta1=self.betas[0],
            beta2=self.betas[1],
            lr=group["lr"],
            weight_decay=group["weight_decay"],
            eps=self.eps,
            maximize=False,
            decoupled_weight_decay=self.decoupled,
        )
