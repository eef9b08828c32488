"""Maps from R^d to a smaller R^k that keep angles, for the compressive energy of chapter 6.

A projection is a matrix P (k, d), several of them a stack (C, k, d); neurons are the rows of
W (N, d), and their images the rows of W P^T. Only directions matter, so P has no fixed scale.
"""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor

__all__ = [
    "adversarial_step",
    "angle_preserving_loss",
    "angle_preserving_projection",
    "angle_preserving_step",
    "bilateral_low_rank",
    "count_sketch_projection",
    "gaussian_projection",
    "hadamard_projection",
    "project",
    "sketch",
]


def gaussian_projection(
    in_dim: int, dim: int, count: int = 1, generator: torch.Generator | None = None
) -> Tensor:
    """`count` matrices (dim, in_dim) with independent N(0, 1) entries, Eq. 6.4: float32."""
    _check_sizes(in_dim, dim, count)
    return torch.randn(count, dim, in_dim, generator=generator)


def hadamard_projection(
    in_dim: int, dim: int, count: int = 1, generator: torch.Generator | None = None
) -> Tensor:
    """Subsampled randomized Hadamard transform P = S H D (6.5), written out as a matrix.

    D flips the sign of each coordinate at random, H is the Hadamard matrix of the next power of
    two, S keeps `dim` different rows of it at random. H[r, c] = (-1)^popcount(r & c). For the few
    rows that CoMHE keeps, the product with the matrix is faster than the butterfly transform.

    >>> p = hadamard_projection(8, 8)[0]
    >>> torch.equal(p @ p.T, 8 * torch.eye(8))
    True
    """
    _check_sizes(in_dim, dim, count)
    size = 1 << (in_dim - 1).bit_length()
    if dim > size:
        raise ValueError(
            f"a Hadamard sketch of {in_dim} coordinates has at most {size} rows, not {dim}"
        )
    stack = []
    for _ in range(count):
        kept = torch.randperm(size, generator=generator)[:dim]
        signs = torch.randint(0, 2, (in_dim,), generator=generator) * 2 - 1
        common = kept[:, None] & torch.arange(in_dim)[None]
        parity = torch.zeros_like(common)
        while bool(common.any()):
            parity ^= common & 1
            common = common >> 1
        stack.append((1 - 2 * parity) * signs)
    return torch.stack(stack).float()


def count_sketch_projection(
    in_dim: int, dim: int, count: int = 1, generator: torch.Generator | None = None
) -> Tensor:
    """Count sketch (6.5): each coordinate is added, with a random sign, to one random row.

    >>> (count_sketch_projection(50, 8)[0] != 0).sum(0).unique()  # one entry a column
    tensor([1])
    """
    _check_sizes(in_dim, dim, count)
    bucket = torch.randint(0, dim, (count, 1, in_dim), generator=generator)
    signs = torch.randint(0, 2, (count, 1, in_dim), generator=generator) * 2.0 - 1
    return torch.zeros(count, dim, in_dim).scatter_(1, bucket, signs)


SKETCHES = {
    "gaussian": gaussian_projection,
    "hadamard": hadamard_projection,
    "count": count_sketch_projection,
}


def sketch(
    kind: str, in_dim: int, dim: int, count: int = 1, generator: torch.Generator | None = None
) -> Tensor:
    """A random projection by name: "gaussian", "hadamard" or "count"; (count, dim, in_dim)."""
    if kind not in SKETCHES:
        raise ValueError(f"sketch must be one of {sorted(SKETCHES)}, got {kind!r}")
    return SKETCHES[kind](in_dim, dim, count, generator)


def project(neurons: Tensor, projection: Tensor) -> Tensor:
    """Images of B sets of neurons under C projections: (B, N, d), (C, k, d) -> (B * C, N, k).

    One matrix product for all of them; lengths are left as they come, the energy ignores them.
    """
    if neurons.ndim != 3 or projection.ndim != 3 or neurons.shape[-1] != projection.shape[-1]:
        raise ValueError(
            f"expected neurons (B, N, d) and projection (C, k, d), got {tuple(neurons.shape)} and "
            f"{tuple(projection.shape)}"
        )
    sets, n, _ = neurons.shape
    count, dim, _ = projection.shape
    images = neurons @ projection.flatten(0, 1).T  # (B, N, C k)
    return images.view(sets, n, count, dim).transpose(1, 2).reshape(sets * count, n, dim)


# --- angle-preserving projection (6.3.4) ---------------------------------------------------


def angle_preserving_loss(neurons: Tensor, projection: Tensor, measure: str = "angle") -> Tensor:
    r"""How much P distorts the angles, Eq. 6.6 divided by the number of pairs:

    .. math:: L_P = \frac{1}{N(N-1)} \sum_{i \ne j}
        (\theta_{(w_i, w_j)} - \theta_{(P w_i, P w_j)})^2

    neurons: (N, d) or (B, N, d); projection: (k, d) or (C, k, d), averaged over. `measure`:
    "angle", or "cosine" for cosines in place of angles. Differentiable in both, twice.

    >>> w = torch.tensor([[1.0, 0.0, 0.0], [1.0, 1.0, 0.0], [0.0, 1.0, 0.0]])
    >>> angle_preserving_loss(w, torch.eye(3)[:2])  # the plane of the neurons loses nothing
    tensor(0.)
    """
    if measure not in ("angle", "cosine"):
        raise ValueError(f"measure must be 'angle' or 'cosine', got {measure!r}")
    w = neurons if neurons.ndim == 3 else neurons[None]
    p = projection if projection.ndim == 3 else projection[None]
    if w.shape[1] < 2:
        raise ValueError(f"expected at least two neurons, got {tuple(neurons.shape)}")
    sets, n, _ = w.shape
    original = _off_diagonal_cosines(w)[0].repeat_interleave(len(p), 0)
    image = _off_diagonal_cosines(project(w, p))[0]
    if measure == "angle":
        limit = _limit(image)
        original, image = (torch.acos(c.clamp(-limit, limit)) for c in (original, image))
    return (original - image).square().sum() / (sets * len(p) * n * (n - 1))


def _off_diagonal_cosines(x: Tensor) -> tuple[Tensor, Tensor]:
    """Cosines (0 on the diagonal) from the Gram matrix alone, and 1 / |x|: no copy of x."""
    gram = _Gram.apply(x)
    squares = gram.diagonal(dim1=-2, dim2=-1)
    inverse = torch.where(squares > 0, squares, 1.0).rsqrt() * (squares > 0)
    other = 1 - torch.eye(x.shape[1], dtype=x.dtype, device=x.device)
    return gram * (inverse[..., None] * inverse[..., None, :] * other), inverse


class _Gram(torch.autograd.Function):
    """x x^T, whose gradient takes one matrix product instead of the two of a general product."""

    @staticmethod
    def forward(x: Tensor) -> Tensor:
        return x @ x.mT

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Any) -> None:
        ctx.save_for_backward(*inputs)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> Tensor:  # type: ignore[override]
        (x,) = ctx.saved_tensors
        with torch.autocast(x.device.type, enabled=False):
            return (grad + grad.mT) @ x


def _limit(cos: Tensor) -> float:
    # The second derivative of arccos grows as sin^-3: a pair closer than this is left alone.
    return 1 - 10 * torch.finfo(cos.dtype).eps ** 0.75


def angle_preserving_step(
    neurons: list[Tensor] | Tensor,
    projection: Tensor,
    lr: float = 0.3,
    measure: str = "angle",
    differentiable: bool = False,
) -> Tensor:
    """One gradient step P - eta dL_P/dP on :func:`angle_preserving_loss`; returns the new P.

    neurons: one set (N, d), or several that share P, whose losses are averaged. The step is
    eta = lr |P|^2: angles do not change with the scale of P, and neither does this step's effect.
    With differentiable=True the result keeps its dependence on the neurons, through second
    derivatives, as unrolled optimization needs (6.3.4).
    """
    sets = [neurons] if isinstance(neurons, Tensor) else neurons
    held = sets if differentiable else [w.detach() for w in sets]
    p = projection if differentiable else projection.detach()
    with torch.set_grad_enabled(differentiable):
        gradient = sum(_loss_gradient(w, p, measure) for w in held) / len(held)
        return p - lr * p.square().sum((-2, -1), keepdim=True) * gradient


def _loss_gradient(neurons: Tensor, projection: Tensor, measure: str) -> Tensor:
    """d angle_preserving_loss / dP, written out: so that unrolling needs one derivative less.

    With c the cosines of the images y = P w, D = dL/dc and K_ij = D_ij / (|y_i| |y_j|), dL/dy_i is
    2 (sum_j K_ij y_j - sum_j D_ij c_ij y_i / |y_i|^2), as in `energy.py`.
    """
    w = neurons if neurons.ndim == 3 else neurons[None]
    p = projection if projection.ndim == 3 else projection[None]
    sets, n, _ = w.shape
    original = _off_diagonal_cosines(w)[0].repeat_interleave(len(p), 0)
    y = project(w, p)
    cos, inverse = _off_diagonal_cosines(y)
    if measure == "angle":
        limit = _limit(cos)
        inside = (cos.detach().abs() < limit).to(cos)
        held = cos.clamp(-limit, limit)
        slope = (torch.acos(original.clamp(-limit, limit)) - torch.acos(held)) * inside
        slope = slope * (1 - held * held).rsqrt()
    else:
        slope = cos - original
    along = (slope * cos).sum(-1) * inverse * inverse
    dy = (slope * inverse[..., None] * inverse[..., None, :]) @ y - along[..., None] * y
    dp = (dy.unflatten(0, (sets, len(p))).mT @ w[:, None]).sum(0)  # (C, k, d)
    gradient = dp * (4 / (sets * len(p) * n * (n - 1)))
    return gradient if projection.ndim == 3 else gradient[0]


def angle_preserving_projection(
    neurons: Tensor,
    dim: int,
    steps: int = 100,
    lr: float = 0.3,
    measure: str = "angle",
    generator: torch.Generator | None = None,
) -> Tensor:
    """P (dim, d) by gradient descent on Eq. 6.6 from a Gaussian start; a step that fails is halved.

    >>> w = torch.randn(20, 50, generator=torch.Generator().manual_seed(0))
    >>> start = gaussian_projection(50, 10, generator=torch.Generator().manual_seed(1))[0]
    >>> p = angle_preserving_projection(w, 10, generator=torch.Generator().manual_seed(1))
    >>> angle_preserving_loss(w, p) < 0.2 * angle_preserving_loss(w, start)
    tensor(True)
    """
    p = gaussian_projection(neurons.shape[-1], dim, 1, generator)[0].to(neurons)
    loss = angle_preserving_loss(neurons.detach(), p, measure)
    for _ in range(steps):
        trial = angle_preserving_step(neurons, p, lr, measure)
        reached = angle_preserving_loss(neurons.detach(), trial, measure)
        if bool(reached < loss):
            p, loss, lr = trial, reached, lr * 1.2
        else:
            lr /= 2
    return p


def adversarial_step(gradient: Tensor, projection: Tensor, lr: float = 0.01) -> Tensor:
    """Ascent step of the min-max problem 6.8 on P: lr is the step's length relative to |P|."""
    size = gradient.flatten(1).norm(dim=1).clamp_min(torch.finfo(gradient.dtype).tiny)
    length = lr * projection.flatten(1).norm(dim=1)
    return projection + (length / size)[:, None, None] * gradient


# --- bilateral projection (E.6) ------------------------------------------------------------


def bilateral_low_rank(y1: Tensor, y2: Tensor, p1: Tensor) -> Tensor:
    r"""Neurons from their two sketches, :math:`\tilde W = Y_2 (P_1 Y_2)^{-1} Y_1` (Eq. E.23).

    In the text's layout the neurons are columns: y1 (r, n) = P_1 W, y2 (m, r) = W P_2,
    p1 (r, m); the result is (m, n), of rank r, and P_1 of it is y1 again. Exact if W has rank r.
    16-bit factors are computed in float32, under autocast too.
    """
    if p1.shape[-2] != y2.shape[-1]:
        raise ValueError(f"P_1 Y_2 must be square, got P_1 {tuple(p1.shape)} and "
                         f"Y_2 {tuple(y2.shape)}")  # fmt: skip
    with torch.autocast(y1.device.type, enabled=False):
        wide = torch.promote_types(y1.dtype, torch.float32)
        a, b, p = (x.to(y1.device, wide) for x in (y1, y2, p1))
        return (b @ torch.linalg.solve(p @ b, a)).to(y1.dtype)


def _check_sizes(in_dim: int, dim: int, count: int) -> None:
    if in_dim < 1 or dim < 1 or count < 1 or not math.isfinite(dim):
        raise ValueError(
            f"a projection needs in_dim, dim, count >= 1; got {in_dim}, {dim}, {count}"
        )
