"""The energies of sets of neurons, and their gradient, in one pass over the cosines.

With c the potential of a pair, E = sum_ij c(cos_ij). With K_ij = c'(cos_ij) / (|w_i| |w_j|) and
t_i = sum_j c'(cos_ij) cos_ij, the gradient with respect to w_i is

    dE/dw_i = 2 (sum_j K_ij w_j - t_i w_i / |w_i|^2),

so it costs one more matrix product and no tensor of differences. For neurons longer than they are
many that product waits for the backward pass. Many neurons are treated in blocks of rows against
the columns to their right: half of the symmetric work, and memory O(N x block).
"""

from __future__ import annotations

import inspect
from typing import Any

import torch
from torch import Tensor

from ...angles import normalize, row_norm
from ...host import known
from ..autograd import Function, full_precision, runs_eagerly
from .potential import Potential

__all__ = ["BLOCK_ENTRIES", "pair_energies", "value_and_gradient"]

# Entries of a block of cosines: enough for an efficient matrix product, little memory.
BLOCK_ENTRIES = 2**21
# Entries of the small sets that are treated together: their matrices stay in the cache.
CACHED_ENTRIES = 2**18


def pair_energies(neurons: Tensor, beta: Tensor | None, potential: Potential) -> Tensor:
    """The energies of sets of neurons (B, N, d), with factors beta (N,) or none: (B,)."""
    if runs_eagerly():
        return _by_autograd(neurons, beta, potential)
    tracked = neurons.requires_grad and torch.is_grad_enabled()
    energies: Tensor = PairEnergy.apply(neurons, beta, potential, tracked)[0]
    return energies


class PairEnergy(Function):
    """The energies, and beside them what the backward pass needs: their gradient, or its kernel."""

    @staticmethod
    def forward(
        neurons: Tensor, beta: Tensor | None, potential: Potential, with_gradient: bool
    ) -> tuple[Tensor, Tensor | None, Tensor | None]:
        sets, n, d = neurons.shape
        if n <= d and sets * n * n <= BLOCK_ENTRIES and not torch.compiler.is_compiling():
            found = _value_and_kernel(neurons, beta, potential, with_gradient)
            if found is not None:
                return found[0], None, found[1]
        return (*value_and_gradient(neurons, beta, potential, with_gradient), None)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: tuple[Any, ...]) -> None:
        neurons, beta, ctx.potential, _ = inputs
        ctx.mark_non_differentiable(*(x for x in output[1:] if x is not None))
        ctx.save_for_backward(neurons, beta, *output[1:])

    @staticmethod
    def backward(ctx: Any, grad: Tensor, *_: Any) -> tuple[Tensor, None, None, None]:
        neurons, beta, gradient, kernel = ctx.saved_tensors
        with full_precision(neurons.device.type):
            if torch.is_grad_enabled():  # the caller will differentiate this gradient again
                energies = _by_autograd(neurons, beta, ctx.potential)
                (result,) = torch.autograd.grad(energies, neurons, grad, create_graph=True)
            elif kernel is not None:
                result = torch.bmm(kernel * grad[:, None, None], neurons)
            else:
                result = grad[:, None, None] * gradient
        return result, None, None, None


# torch asks for the signature in every call; looking it up once halves the cost of a small layer.
PairEnergy.forward.__signature__ = inspect.signature(PairEnergy.forward)  # type: ignore[attr-defined]


def _fill_diagonal(
    value: Tensor, potential: Potential, own: Tensor | None, beta: Tensor | None
) -> None:
    """A neuron with itself: nothing, or in the half space the pair (w, -w), a constant.

    own: |u|^2, which is 1, or 0 for a zero neuron; None if there is no zero neuron.
    """
    diagonal = value.diagonal(dim1=-2, dim2=-1)
    if not potential.half_space:
        diagonal.zero_()
    elif own is None and beta is None:
        diagonal.fill_(potential.mirror())
    else:
        product = None if beta is None else beta * beta
        gap = None if beta is None else torch.zeros_like(beta)
        # Without the rounding error of |u|^2 the angle is pi itself
        cos = -torch.ones_like(diagonal) if own is None else -own.round()
        diagonal.copy_(potential.one_side(cos, gap, product))


def _by_autograd(neurons: Tensor, beta: Tensor | None, potential: Potential) -> Tensor:
    """The energy by differentiable operations: for gradients of gradients."""
    u = normalize(neurons)
    cos = u @ u.mT
    gap, product = _weights(beta)
    same = torch.eye(u.shape[1], dtype=torch.bool, device=u.device)
    value = potential.energy(cos.masked_fill(same, 0), gap, product)
    alone = torch.zeros_like(value)
    _fill_diagonal(alone, potential, u.detach().square().sum(-1), beta)
    return torch.where(same, alone, value).sum((-2, -1)) * (2 if potential.half_space else 1)


def _weights(
    beta: Tensor | None, rows: slice = slice(None), columns: slice = slice(None)
) -> tuple[Tensor | None, Tensor | None]:
    """(beta_i - beta_j)^2 and beta_i beta_j, for the squared distance of Eq. D.10."""
    if beta is None:
        return None, None
    a, b = beta[rows, None], beta[None, columns]
    return (a - b).square(), a * b


def _diagonal(matrices: Tensor) -> Tensor:
    return matrices.diagonal(dim1=-2, dim2=-1)


def _usual(squares: Tensor) -> bool:
    """No zero rows, no lengths whose squares leave the floating range, as far as is `known`."""
    info = torch.finfo(squares.dtype)
    shortest, longest = (known(end) for end in squares.aminmax())
    if shortest is None or longest is None:
        return False
    return shortest > info.tiny / info.eps and longest < info.max**0.5


def _value_and_kernel(
    w: Tensor, beta: Tensor | None, potential: Potential, with_gradient: bool
) -> tuple[Tensor, Tensor | None] | None:
    """Energies (B,) and the matrices K - diag(t_i / |w_i|^2) that take w to the gradient.

    Norms come from the Gram matrix too, so that the neurons are read once; the product with the
    kernel is left to the backward pass. None if lengths are not :func:`_usual`.
    """
    cos = torch.bmm(w, w.mT)
    squares = _diagonal(cos).clone()
    if not _usual(squares):
        return None
    inverse = squares.rsqrt()
    cos.mul_(inverse[:, :, None]).mul_(inverse[:, None])
    _diagonal(cos).zero_()
    scale = 2.0 if potential.half_space else 1.0
    gap, product = _weights(beta)
    if with_gradient:
        value, slope, factor = potential.energy_and_slope(cos, gap, product)
    else:
        value = potential.energy(cos, gap, product)
    _fill_diagonal(value, potential, None, beta)
    total = value.sum((-2, -1)).mul_(scale)
    if not with_gradient:
        return total, None
    right = inverse * (2 * scale * factor)
    # The cosines are not needed any more, so t_i takes their place, and K that of the slopes.
    pull = cos.mul_(slope).sum(-1)  # the diagonal of cos is zero
    slope.mul_(inverse[:, :, None]).mul_(right[:, None])
    _diagonal(slope).copy_(pull.mul_(inverse).mul_(right).neg_())
    return total, slope


def value_and_gradient(
    neurons: Tensor, beta: Tensor | None, potential: Potential, with_gradient: bool
) -> tuple[Tensor, Tensor | None]:
    """Energies (B,) and their gradient (B, N, d), block of rows by block of rows."""
    squares = torch.linalg.vector_norm(neurons, dim=-1).square()
    if _usual(squares):
        return _pass(neurons, squares, beta, potential, with_gradient)
    u = normalize(neurons)
    total, gradient = _pass(u, u.square().sum(-1), beta, potential, with_gradient)
    if gradient is not None:
        norm = row_norm(neurons, keepdim=True)
        gradient = torch.where(norm > 0, gradient / norm, 0.0)
    return total, gradient


def _pass(
    w: Tensor, squares: Tensor, beta: Tensor | None, potential: Potential, with_gradient: bool
) -> tuple[Tensor, Tensor | None]:
    """Several sets at a time if they are small, several rows at a time if they are large."""
    together = max(1, CACHED_ENTRIES // w.shape[1] ** 2)
    parts = [
        _blocks(some, own, beta, potential, with_gradient)
        for some, own in zip(torch.split(w, together), torch.split(squares, together), strict=True)
    ]
    if len(parts) == 1:
        return parts[0]
    totals = torch.cat([total for total, _ in parts])
    return totals, torch.cat([g for _, g in parts if g is not None]) if with_gradient else None


def _blocks(
    w: Tensor, squares: Tensor, beta: Tensor | None, potential: Potential, with_gradient: bool
) -> tuple[Tensor, Tensor | None]:
    sets, n, _ = w.shape
    inverse = torch.where(squares > 0, squares.rsqrt(), 0.0)
    x = w * inverse[..., None]
    own = squares * inverse * inverse
    total = torch.zeros_like(squares[:, 0])
    rows = max(1, min(n, BLOCK_ENTRIES // (sets * n)))
    gradient = torch.zeros_like(w) if with_gradient and rows < n else None
    scale, factor = 2.0 if potential.half_space else 1.0, 1.0
    for start in range(0, n, rows):
        stop = min(start + rows, n)
        block, right, size = slice(start, stop), slice(start, n), stop - start
        cos = torch.bmm(x[:, block], x[:, right].mT)
        _diagonal(cos).zero_()
        gap, product = _weights(beta, block, right)
        if with_gradient:
            value, slope, factor = potential.energy_and_slope(cos, gap, product)
        else:
            value = potential.energy(cos, gap, product)
        _fill_diagonal(value, potential, own[:, block], None if beta is None else beta[block])
        total += value.sum((-2, -1))
        if stop < n:  # the mirror image of the part beyond the diagonal block
            total += value[:, :, size:].sum((-2, -1))
        if not with_gradient:
            continue
        _diagonal(slope).zero_()
        pushed = torch.bmm(slope, x[:, right])
        if gradient is None:
            gradient = pushed
        else:
            gradient[:, block] += pushed
            gradient[:, stop:] += torch.bmm(slope[:, :, size:].mT, x[:, block])
    if gradient is not None:
        gradient.addcmul_(x, (gradient * x).sum(-1, keepdim=True), value=-1)
        gradient *= (inverse * (2 * scale * factor))[..., None]
    return total * scale, gradient
