r"""Angles of von Mises-Fisher samples by rejection (Ulrich 1984, Wood 1994), without cancellation.

The proposal is a uniform direction moved by a Moebius map: with G, H ~ Gamma((d-1)/2) and
b = (d-1) / (2 kappa + sqrt(4 kappa^2 + (d-1)^2)), it has tan^2(theta/2) = b G / H, hence
1 - cos(theta) = 2 b G / (H + b G). With c = 2 b / (1 + b) it is accepted with the probability

    exp(kappa (c - v)) ((c + (1 - c) v) (1 + b)^2 / (4 b))^(d-1),        v = 1 - cos(theta),

which is at least 0.65 on average for every d and kappa. The gradient comes from
:func:`~hypersphere.functional.vmf_angle_slope`, not through the proposal.
"""

from __future__ import annotations

import torch
from torch import Tensor

__all__ = ["draw_angle"]

# Off the CPU, asking whether all are accepted would wait for the device. There a fixed number of
# proposals is drawn, of which all are rejected with probability 0.35^32 < 3e-15.
BLOCK, BLOCKS = 8, 4


def draw_angle(kappa: Tensor, dim: int, synchronize: bool | None = None) -> Tensor:
    """Angles between samples and their mean direction, without gradient.

    Args:
        kappa: Concentrations >= 0 of any shape, one angle each; float64 for full accuracy.
        dim: Dimension d >= 2.
        synchronize: Draw until all are accepted (data-dependent control flow), rather than a fixed
            number of proposals. Default: on the CPU, outside of `torch.compile`.

    Returns:
        Angles in (0, pi), of the shape of `kappa`.
    """
    if synchronize is None:
        synchronize = kappa.device.type == "cpu" and not torch.compiler.is_compiling()
    flat = kappa.detach().reshape(-1)
    if not synchronize:
        return _first_accepted(flat, dim).reshape(kappa.shape)
    theta = torch.empty_like(flat)
    pending = torch.arange(len(flat), device=flat.device)
    while len(pending):
        proposal, accepted = _propose(flat[pending], dim)
        theta[pending[accepted]] = proposal[accepted]
        pending = pending[~accepted]
    return theta.reshape(kappa.shape)


def _first_accepted(kappa: Tensor, dim: int) -> Tensor:
    theta, found = torch.zeros_like(kappa), torch.zeros_like(kappa, dtype=torch.bool)
    for _ in range(BLOCKS):
        proposals, accepted = _propose(kappa.expand(BLOCK, -1), dim)
        first = proposals.gather(0, accepted.int().argmax(0, keepdim=True)).squeeze(0)
        theta = torch.where(found, theta, first)
        found = found | accepted.any(0)
    return theta


def _propose(kappa: Tensor, dim: int) -> tuple[Tensor, Tensor]:
    """One proposal per entry of kappa, and whether it is accepted."""
    shape = torch.full_like(kappa, (dim - 1) / 2)
    moved, other = torch._standard_gamma(shape), torch._standard_gamma(shape)
    b = (dim - 1) / (2 * kappa + torch.hypot(2 * kappa, 2 * shape))
    moved = b * moved
    v = 2 * moved / (other + moved)
    c = 2 * b / (1 + b)
    envelope = torch.log((c + (1 - c) * v) * (1 + b).square() / (4 * b))
    log_ratio = kappa * (c - v) + (dim - 1) * envelope
    # Negated, so that an invalid kappa (NaN) is accepted instead of being drawn forever.
    accepted = ~(log_ratio < torch.rand_like(kappa).log())
    return 2 * torch.atan2(moved.sqrt(), other.sqrt()), accepted
