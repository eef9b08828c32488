"""Lower the energy of the neurons before training (7.3.7)."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from ..functional import hyperspherical_energy, normalize

REFINEMENTS = ("mhe", "half_space_mhe")


def refine_neurons(
    rows: Tensor, sets: int = 1, half_space: bool = False, steps: int = 1000, lr: float = 1e-2
) -> Tensor:
    """Move directions (not lengths) downhill on the s = 1 energy of 7.3.2; returns new rows.

    Adam with a cosine schedule on the directions; the dissertation runs 5,000 plain steps.

    >>> rows = torch.randn(6, 3)
    >>> hyperspherical_energy(refine_neurons(rows), s=1.0) < hyperspherical_energy(rows, s=1.0)
    tensor(True)
    """
    n = rows.shape[0] // sets
    if n < 2:
        return rows.clone()
    lengths = torch.linalg.vector_norm(rows, dim=-1, keepdim=True)
    with torch.enable_grad():
        directions = normalize(rows.detach().float()).requires_grad_()
        optimizer = torch.optim.Adam([directions], lr=lr)
        for step in range(steps):
            optimizer.param_groups[0]["lr"] = lr * 0.5 * (1 + math.cos(math.pi * step / steps))
            optimizer.zero_grad()
            parts = directions.reshape(sets, n, -1)
            # times n: the mean over pairs would leave each neuron with a gradient of order 1/n
            total = sum(hyperspherical_energy(part, s=1.0, half_space=half_space) for part in parts)
            (n * total).backward()  # type: ignore[union-attr]
            optimizer.step()
            with torch.no_grad():
                directions.copy_(normalize(directions))
    refined: Tensor = directions.detach().to(rows.dtype) * lengths
    return refined
