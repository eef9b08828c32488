"""The angle-preserving projection of chapter 6 (6.3.4)."""

from __future__ import annotations

import torch
from torch import Tensor

from ._kernels.energy.angle_distortion import (
    cosine_limit,
    distortion_gradient,
    off_diagonal_cosines,
)
from ._kernels.spreading.cosines import in_range
from .projections import gaussian_projection, project

__all__ = ["angle_preserving_loss", "angle_preserving_projection", "angle_preserving_step"]


def angle_preserving_loss(neurons: Tensor, projection: Tensor, measure: str = "angle") -> Tensor:
    r"""How much P distorts the angles, Eq. 6.6 divided by the number of pairs:

    .. math:: L_P = \frac{1}{N(N-1)} \sum_{i \ne j}
        (\theta_{(w_i, w_j)} - \theta_{(P w_i, P w_j)})^2

    Args:
        neurons: (N, d) or (B, N, d), one neuron per row.
        projection: (k, d), or (C, k, d), averaged over.
        measure: "angle", or "cosine" for cosines in place of angles.

    Returns:
        A scalar, differentiable in both, twice.

    >>> w = torch.tensor([[1.0, 0.0, 0.0], [1.0, 1.0, 0.0], [0.0, 1.0, 0.0]])
    >>> angle_preserving_loss(w, torch.eye(3)[:2])  # the plane of the neurons loses nothing
    tensor(0.)
    """
    if measure not in ("angle", "cosine"):
        raise ValueError(f"measure must be 'angle' or 'cosine', got {measure!r}")
    if neurons.shape[-2] < 2:
        raise ValueError(f"expected at least two neurons, got {tuple(neurons.shape)}")
    w = in_range(neurons if neurons.ndim == 3 else neurons[None])
    p = projection if projection.ndim == 3 else projection[None]
    sets, n, _ = w.shape
    original = off_diagonal_cosines(w)[0].repeat_interleave(len(p), 0)
    image = off_diagonal_cosines(project(w, p))[0]
    if measure == "angle":
        limit = cosine_limit(image)
        original, image = (torch.acos(c.clamp(-limit, limit)) for c in (original, image))
    return (original - image).square().sum() / (sets * len(p) * n * (n - 1))


def angle_preserving_step(
    neurons: list[Tensor] | Tensor,
    projection: Tensor,
    lr: float | Tensor = 0.3,
    measure: str = "angle",
    differentiable: bool = False,
) -> Tensor:
    r"""One gradient step P - eta dL_P/dP on :func:`angle_preserving_loss`.

    Args:
        neurons: one set (N, d), or several that share P, whose losses are averaged.
        projection: (k, d) or (C, k, d), the present P.
        lr: the step is eta = lr \|P\|^2: angles do not change with the scale of P, and neither does
            the effect of this step.
        measure: "angle" or "cosine".
        differentiable: whether the result keeps its dependence on the neurons, through second
            derivatives, as unrolled optimization needs (6.3.4).

    Returns:
        The new P, of the same shape.
    """
    sets = [neurons] if isinstance(neurons, Tensor) else neurons
    held = sets if differentiable else [w.detach() for w in sets]
    p = projection if differentiable else projection.detach()
    with torch.set_grad_enabled(differentiable):
        gradient = sum(distortion_gradient(in_range(w), p, measure) for w in held) / len(held)
        return p - lr * p.square().sum((-2, -1), keepdim=True) * gradient


def angle_preserving_projection(
    neurons: Tensor,
    dim: int,
    steps: int = 100,
    lr: float = 0.3,
    measure: str = "angle",
    generator: torch.Generator | None = None,
) -> Tensor:
    """P by gradient descent on Eq. 6.6 from a Gaussian start; a step that fails is halved.

    Args:
        neurons: (N, d), one neuron per row.
        dim: k, dimension of the images.
        steps: gradient steps.
        lr: of the first step, see :func:`angle_preserving_step`.
        measure: "angle" or "cosine".
        generator: source of the Gaussian start, on the CPU.

    Returns:
        P, (dim, d).

    >>> w = torch.randn(20, 50, generator=torch.Generator().manual_seed(0))
    >>> start = gaussian_projection(50, 10, generator=torch.Generator().manual_seed(1))[0]
    >>> p = angle_preserving_projection(w, 10, generator=torch.Generator().manual_seed(1))
    >>> angle_preserving_loss(w, p) < 0.2 * angle_preserving_loss(w, start)
    tensor(True)
    """
    p = gaussian_projection(neurons.shape[-1], dim, 1, generator)[0].to(neurons)
    loss, rate = angle_preserving_loss(neurons.detach(), p, measure), p.new_full((), lr)
    for _ in range(steps):
        trial = angle_preserving_step(neurons, p, rate, measure)
        reached = angle_preserving_loss(neurons.detach(), trial, measure)
        better = reached < loss
        p, loss = torch.where(better, trial, p), torch.where(better, reached, loss)
        rate = torch.where(better, 1.2 * rate, rate / 2)
    return p
