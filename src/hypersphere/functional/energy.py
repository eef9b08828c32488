"""Hyperspherical energy (chapter 5): how far a set of neurons is from evenly spread directions.

Value and gradient come out of one pass over the cosines. With K_ij = c'(cos_ij) / (|w_i| |w_j|),
c' the slope of the potential, and t_i = sum_j c'(cos_ij) cos_ij, the gradient of sum_ij c(cos_ij)
with respect to w_i is

    2 (sum_j K_ij w_j - t_i w_i / |w_i|^2),

so it costs one more matrix product and no tensor of differences. The pass runs over row blocks
against the columns to their right: half of the symmetric work, and memory O(N x block).

Note [Distance floor]: equal directions would have infinite energy. Distances are floored at
:func:`distance_floor`, which depends on s and the floating type but not on the lengths of the
neurons; a pair below it has the floor's energy and no gradient. For weighted neurons (D.10) the
floor is scaled by the pair's sqrt(beta_i beta_j).
"""

from __future__ import annotations

import math
from typing import Any, NamedTuple

import torch
from torch import Tensor

from .angles import arccos, normalize, row_norm

__all__ = ["distance_floor", "hyperspherical_energy", "log_energy", "set_energies"]

# Entries of a block of cosines: enough for an efficient matrix product, little memory.
BLOCK_ENTRIES = 2**21


class Potential(NamedTuple):
    """f_s of a distance, as a function of the cosine; see Note [Distance floor]."""

    s: float
    geodesic: bool
    half_space: bool
    floor: float

    def of_distance(self, distance: Tensor) -> Tensor:
        return -distance.log() if self.s == 0 else distance.pow(-self.s)

    def value(self, cos: Tensor, gap: Tensor | None, product: Tensor | None) -> Tensor:
        """f_s between one pair of points; differentiable twice (Eq. 5.1, 5.5, D.10)."""
        if self.geodesic:
            return self.of_distance(arccos(cos).clamp_min(self.floor))
        square = self._square(cos, gap, product)
        if self.s == 0:
            return -0.5 * square.log()
        if self.s == 1:
            return square.rsqrt()
        return square.reciprocal() if self.s == 2 else square.pow(-self.s / 2)

    def slope(
        self, cos: Tensor, value: Tensor, gap: Tensor | None, product: Tensor | None
    ) -> Tensor:
        """d f_s / d cos, given the value."""
        power = value if self.s else 1.0
        factor = self.s if self.s else 1.0
        if self.geodesic:
            theta = arccos(cos)
            # sin(theta) vanishes at pi too, where the direction along which the angle falls is lost
            sine = (1 - cos * cos).clamp_min(self.floor**2).sqrt()
            slope = factor * power / (theta.clamp_min(self.floor) * sine)
            return slope.masked_fill_(theta <= self.floor, 0)
        square = self._square(cos, gap, product)
        slope = factor * power / square
        if product is None:
            return slope.masked_fill_(square <= self.floor**2, 0)
        return slope.mul_(product).masked_fill_(square <= self.floor**2 * product, 0)

    def _square(self, cos: Tensor, gap: Tensor | None, product: Tensor | None) -> Tensor:
        if gap is None or product is None:
            return (2 - 2 * cos).clamp_min(self.floor**2)
        # The rounding error of 2 - 2 cos is scaled by the pair's own weights, so the floor is too.
        return torch.maximum(torch.addcmul(gap, product, 2 - 2 * cos), self.floor**2 * product)


def distance_floor(s: float, dtype: torch.dtype = torch.float32) -> float:
    """Smallest distance the energy tells apart: 8 sqrt(eps), more for an s that would overflow.

    In float32 it is 2.8e-3 (0.16 degrees) and in float64 1.2e-7, a few times the error with which
    2 - 2 cos resolves a distance. Above s = 5.5 in float32 (20 in float64) it rises, so that the
    energy of a million coinciding pairs and their gradients stay finite.

    >>> f"{distance_floor(2.0):.4f} {distance_floor(30.0):.3f}"
    '0.0028 0.250'
    """
    info = torch.finfo(torch.float32 if dtype.itemsize < 4 else dtype)
    return max(8 * math.sqrt(info.eps), info.max ** (-0.5 / (s + 2)))


def hyperspherical_energy(
    weight: Tensor,
    s: float = 2.0,
    half_space: bool = False,
    distance: str = "euclidean",
    weights: Tensor | None = None,
    reduction: str = "mean",
) -> Tensor:
    r"""Energy of the directions of N neurons, Eq. 5.1:

    .. math:: E_s = \sum_{i \ne j} f_s(|\hat w_i - \hat w_j|), \quad f_s(z) = z^{-s},
        \quad f_0(z) = \log z^{-1}

    Args:
        weight: (N, ...), one neuron a row, flattened; N >= 2. Lengths do not matter, and a zero row
            counts as orthogonal to everything.
        s: power of the Riesz kernel, >= 0; 0 is the logarithmic energy.
        half_space: energy of the 2N directions {w, -w} (5.3.4), without a 2N x 2N matrix.
        distance: "euclidean", or "geodesic" for the angle in radians (Eq. 5.5).
        weights: (N,) positive factors beta_i that scale the directions before the distance is taken
            (Eq. D.10); Euclidean distance only. A large one makes its neuron stay put.
        reduction: "sum" is Eq. 5.1; "mean" divides by the number of ordered pairs, N(N-1), or
            2N(2N-1) in the half space (Eq. 5.4).

    The result is float32 for 16-bit neurons: float16 cannot hold the energy of coinciding ones.

    Differs from the released code: s = 0 is log(1/d), not log(1/d^2); geodesic distances are
    radians, not fractions of pi; the floor on distances does not depend on \|w\| (see
    :func:`distance_floor`); the half space really has 2N neurons.

    >>> triangle = torch.tensor([[1.0, 0.0], [-0.5, 0.75**0.5], [-0.5, -(0.75**0.5)]])
    >>> hyperspherical_energy(5 * triangle, s=2.0)  # all distances are sqrt(3)
    tensor(0.3333)
    >>> hyperspherical_energy(triangle, s=0.0, reduction="sum")
    tensor(-3.2958)
    """
    if weight.ndim < 2 or len(weight) < 2 or weight[0].numel() == 0:
        raise ValueError(
            f"hyperspherical_energy expects weight (N, ...) with one neuron a row and N >= 2, "
            f"got {tuple(weight.shape)}"
        )
    return set_energies(weight.flatten(1)[None], s, half_space, distance, weights, reduction)[0]


def log_energy(
    weight: Tensor,
    s: float = 2.0,
    half_space: bool = False,
    distance: str = "euclidean",
    weights: Tensor | None = None,
    reduction: str = "mean",
) -> Tensor:
    """E_log = sum of log f_s = s E_0, Eq. 5.3: by Jensen a lower bound, exp(mean) <= mean of E_s.

    Arguments as in :func:`hyperspherical_energy`, with s > 0.

    >>> w = torch.eye(3)
    >>> log_energy(w, s=2.0).exp() <= hyperspherical_energy(w, s=2.0) + 1e-6
    tensor(True)
    """
    if not s > 0:
        raise ValueError(f"log_energy expects s > 0 (log f_0 has no meaning in Eq. 5.3), got {s}")
    return s * hyperspherical_energy(weight, 0.0, half_space, distance, weights, reduction)


def set_energies(
    neurons: Tensor,
    s: float = 2.0,
    half_space: bool = False,
    distance: str = "euclidean",
    weights: Tensor | None = None,
    reduction: str = "mean",
) -> Tensor:
    """Energy of each of B separate sets of neurons, (B, N, d) -> (B,); no pairs between sets.

    >>> set_energies(torch.eye(4).reshape(2, 2, 4), s=2.0)
    tensor([0.5000, 0.5000])
    """
    if neurons.ndim != 3 or neurons.shape[1] < 2 or neurons.shape[2] < 1:
        raise ValueError(f"expected neurons (B, N, d) with N >= 2, got {tuple(neurons.shape)}")
    if not neurons.is_floating_point():
        raise TypeError(f"expected floating-point neurons, got {neurons.dtype}")
    if not 0 <= s < math.inf:
        raise ValueError(f"the energy is defined for 0 <= s < inf, got s={s}")
    if distance not in ("euclidean", "geodesic"):
        raise ValueError(f"distance must be 'euclidean' or 'geodesic', got {distance!r}")
    if reduction not in ("sum", "mean"):
        raise ValueError(f"reduction must be 'sum' or 'mean', got {reduction!r}")
    wide = neurons.float() if neurons.dtype.itemsize < 4 else neurons
    beta = _check_weights(weights, wide, distance)
    floor = distance_floor(s, wide.dtype)
    potential = Potential(float(s), distance == "geodesic", half_space, floor)
    with torch.autocast(neurons.device.type, enabled=False):
        tracked = wide.requires_grad and torch.is_grad_enabled()
        energies, _ = _Energy.apply(wide, beta, potential, tracked)
    if reduction == "mean":
        points = neurons.shape[1] * (2 if half_space else 1)
        energies = energies / (points * (points - 1))
    return energies


def _check_weights(weights: Tensor | None, neurons: Tensor, distance: str) -> Tensor | None:
    if weights is None:
        return None
    if distance != "euclidean":
        raise ValueError(
            "weights scale the directions (Eq. D.10), which leaves angles as they are: use them "
            "with distance='euclidean'"
        )
    if weights.shape != neurons.shape[1:2] or not bool((weights > 0).all()):
        raise ValueError(
            f"weights must be {neurons.shape[1]} positive numbers, one a neuron; got shape "
            f"{tuple(weights.shape)}"
            + (f", smallest {float(weights.min()):g}" if weights.numel() else "")
        )
    return weights.detach().to(neurons)


def _pair_energy(
    cos: Tensor, potential: Potential, gap: Tensor | None, product: Tensor | None
) -> Tensor:
    """c(cos): the potential, or in the half space that of all four pairs from {w, -w}^2, halved."""
    value = potential.value(cos, gap, product)
    return value + potential.value(-cos, gap, product) if potential.half_space else value


def _pair_energy_and_slope(
    cos: Tensor, potential: Potential, gap: Tensor | None, product: Tensor | None
) -> tuple[Tensor, Tensor, float]:
    """c(cos), and c'(cos) divided by the third value."""
    if potential.half_space and potential.s == 2 and not potential.geodesic and gap is None:
        # 1/(2 - 2c) + 1/(2 + 2c) = 1/(1 - c^2): the default regularizer, in half the passes
        floor = potential.floor**2 * (1 - potential.floor**2 / 4)
        one = torch.ones((), dtype=cos.dtype, device=cos.device)
        sine = torch.addcmul(one, cos, cos, value=-1)
        close = (
            sine <= floor if torch.compiler.is_compiling() or bool(sine.amin() <= floor) else None
        )
        value = sine.clamp_min_(floor).reciprocal_()
        slope = (cos * value).mul_(value)
        return value, slope if close is None else slope.masked_fill_(close, 0), 2.0
    value = potential.value(cos, gap, product)
    slope = potential.slope(cos, value, gap, product)
    if potential.half_space:
        mirrored = potential.value(-cos, gap, product)
        slope = slope.sub_(potential.slope(-cos, mirrored, gap, product))
        value = value.add_(mirrored)
    return value, slope, 1.0


def _self_energy(own: Tensor, potential: Potential, beta: Tensor | None) -> Tensor:
    """What the half space has on the diagonal: the pair (w, -w), a constant. (B, N) -> (B,)"""
    if not potential.half_space:
        return torch.zeros(own.shape[0], dtype=own.dtype, device=own.device)
    product = None if beta is None else beta * beta
    gap = None if beta is None else torch.zeros_like(beta)
    # own = |u|^2 is 1, or 0 for a zero neuron: without its rounding error the angle is pi itself
    return potential.value(-own.round(), gap, product).sum(-1)


def _plain(neurons: Tensor, beta: Tensor | None, potential: Potential) -> Tensor:
    """The energy by differentiable operations: for gradients of gradients."""
    u = normalize(neurons)
    cos = u @ u.mT
    gap = None if beta is None else (beta[:, None] - beta[None]).square()
    product = None if beta is None else beta[:, None] * beta[None]
    same = torch.eye(u.shape[1], dtype=torch.bool, device=u.device)
    value = _pair_energy(cos.masked_fill(same, 0), potential, gap, product).masked_fill(same, 0)
    own = u.detach().square().sum(-1)
    total = value.sum((-2, -1)) + _self_energy(own, potential, beta)
    return 2 * total if potential.half_space else total


def _value_and_gradient(
    neurons: Tensor, beta: Tensor | None, potential: Potential, with_gradient: bool
) -> tuple[Tensor, Tensor | None]:
    """Energies (B,) and their gradient (B, N, d), block of rows by block of rows."""
    squares = torch.linalg.vector_norm(neurons, dim=-1).square()
    info = torch.finfo(neurons.dtype)
    usual = (squares > info.tiny / info.eps) & (squares < info.max**0.5)
    if torch.compiler.is_compiling() or not bool(usual.all()):
        # Zero rows, or lengths whose squares leave the floating range: go through the directions.
        u = normalize(neurons)
        total, gradient = _pass(u, u.square().sum(-1), beta, potential, with_gradient)
        if gradient is not None:
            norm = row_norm(neurons, keepdim=True)
            gradient = torch.where(norm > 0, gradient / norm, 0.0)
        return total, gradient
    return _pass(neurons, squares, beta, potential, with_gradient)


def _pass(
    w: Tensor, squares: Tensor, beta: Tensor | None, potential: Potential, with_gradient: bool
) -> tuple[Tensor, Tensor | None]:
    """Several sets at a time if they are small, several rows at a time if they are large."""
    together = max(1, BLOCK_ENTRIES // w.shape[1] ** 2)
    parts = [
        _blocks(some, own, beta, potential, with_gradient)
        for some, own in zip(w.split(together), squares.split(together), strict=True)
    ]
    if len(parts) == 1:
        return parts[0]
    totals = torch.cat([total for total, _ in parts])
    return totals, torch.cat([g for _, g in parts if g is not None]) if with_gradient else None


def _blocks(
    w: Tensor, squares: Tensor, beta: Tensor | None, potential: Potential, with_gradient: bool
) -> tuple[Tensor, Tensor | None]:
    sets, n, d = w.shape
    inverse = torch.where(squares > 0, squares.rsqrt(), 0.0)
    total = _self_energy(squares * inverse * inverse, potential, beta)
    short = d < n  # then it is cheaper to divide the neurons by their lengths than the cosines
    x = w * inverse[..., None] if short else w
    rows = max(1, min(n, BLOCK_ENTRIES // (sets * n)))
    whole = rows == n
    gradient = torch.zeros_like(w) if with_gradient and not whole else None
    pull = torch.zeros_like(squares)  # t_i
    scale = 2.0 if potential.half_space else 1.0
    for start in range(0, n, rows):
        stop = min(start + rows, n)
        block, right, size = slice(start, stop), slice(start, n), stop - start
        cos = torch.bmm(x[:, block], x[:, right].mT)
        if not short:
            cos *= inverse[:, block, None]
            cos *= inverse[:, None, right]
        cos.diagonal(dim1=-2, dim2=-1).zero_()
        gap = product = None
        if beta is not None:
            gap = (beta[block, None] - beta[None, right]).square()
            product = beta[block, None] * beta[None, right]
        if with_gradient:
            value, slope, factor = _pair_energy_and_slope(cos, potential, gap, product)
        else:
            value = _pair_energy(cos, potential, gap, product)
        value.diagonal(dim1=-2, dim2=-1).zero_()
        total += value.sum((-2, -1))
        if stop < n:  # the mirror image of the part beyond the diagonal block
            total += value[:, :, size:].sum((-2, -1))
        if not with_gradient:
            continue
        slope *= 2 * scale * factor
        slope.diagonal(dim1=-2, dim2=-1).zero_()
        if not short:
            along = torch.mul(slope, cos, out=value)
            pull[:, block] += along.sum(-1)
            pull[:, stop:] += along[:, :, size:].sum(-2)
            slope *= inverse[:, block, None]
            slope *= inverse[:, None, right]
            if whole:  # the term along w_i goes into the matrix: no further pass over the neurons
                slope.diagonal(dim1=-2, dim2=-1).sub_(pull * inverse * inverse)
        pushed = torch.bmm(slope, x[:, right])
        if gradient is None:
            gradient = pushed
        else:
            gradient[:, block] += pushed
            gradient[:, stop:] += torch.bmm(slope[:, :, size:].mT, x[:, block])
    if gradient is not None and short:
        gradient.addcmul_(x, (gradient * x).sum(-1, keepdim=True), value=-1)
        gradient *= inverse[..., None]
    elif gradient is not None and not whole:
        gradient.addcmul_(w, (pull * inverse * inverse)[..., None], value=-1)
    return total * scale, gradient


class _Energy(torch.autograd.Function):
    """The energies, and beside them their gradient, which only the backward pass looks at."""

    @staticmethod
    def forward(
        neurons: Tensor, beta: Tensor | None, potential: Potential, with_gradient: bool
    ) -> tuple[Tensor, Tensor | None]:
        return _value_and_gradient(neurons, beta, potential, with_gradient)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: tuple[Any, ...]) -> None:
        neurons, beta, ctx.potential, _ = inputs
        gradient = output[1]
        if gradient is not None:
            ctx.mark_non_differentiable(gradient)
        ctx.save_for_backward(neurons, beta, gradient)

    @staticmethod
    def backward(ctx: Any, grad: Tensor, _: Any) -> tuple[Tensor, None, None, None]:  # type: ignore[override]
        neurons, beta, gradient = ctx.saved_tensors
        if torch.is_grad_enabled():  # the caller will differentiate this gradient again
            with torch.autocast(neurons.device.type, enabled=False):
                energies = _plain(neurons, beta, ctx.potential)
            (result,) = torch.autograd.grad(energies, neurons, grad, create_graph=True)
            return result, None, None, None
        return grad[:, None, None] * gradient, None, None, None
