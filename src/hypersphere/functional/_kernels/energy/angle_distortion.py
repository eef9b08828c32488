"""The gradient of the distortion of angles under a projection, and the gradient of that.

The loss L = sum_{i != j} (theta(c0_ij) - theta(c_ij))^2 / N(N-1) compares the cosines c of the
images y = P w with the cosines c0 of the neurons w. With u = y / |y|, D_ij = -dL/dc_ij and
t_i = sum_j D_ij c_ij,

    F = dL/dP = kappa sum over sets of (D u - t u)^T w / |y|.

For a direction G in the space of P and v = G w / |y|, <G, F> = kappa sum_ij D_ij T_ij with
T_ij = u_j . v_i - c_ij (u_i . v_i): the derivatives of this number in w (through c0, u and v) and
P (through u) are what unrolled optimization needs.
"""

from __future__ import annotations

import inspect
import math
from typing import Any

import torch
from torch import Tensor

from ...host import known
from ...projections import project
from ..autograd import Function, runs_eagerly

__all__ = ["cosine_limit", "distortion_gradient", "off_diagonal_cosines"]


def distortion_gradient(neurons: Tensor, projection: Tensor, measure: str) -> Tensor:
    """d angle_preserving_loss / dP, differentiable in both."""
    w = neurons if neurons.ndim == 3 else neurons[None]
    p = projection if projection.ndim == 3 else projection[None]
    if runs_eagerly():
        gradient = _gradient_by_autograd(w, p, measure)
    else:
        gradient = _DistortionGradient.apply(w, p, measure)[0]
    return gradient if projection.ndim == 3 else gradient[0]


class _DistortionGradient(Function):
    """F = dL/dP; what its own derivatives need is computed beside it."""

    @staticmethod
    def forward(w: Tensor, p: Tensor, measure: str) -> tuple[Tensor, ...]:
        sets = len(w)
        original, inverse0 = _cosines(w)
        y = project(w, p)
        cos, inverse = _cosines(y)
        u = y.mul_(inverse[..., None])
        # root = 1 / sin of the angles, 0 where a pair is left alone; cross = dD/dc0
        if measure == "angle":
            root = _inverse_sine(cos)
            root0 = _inverse_sine(original)
            limit = cosine_limit(cos)
            before = torch.acos(original.clamp(-limit, limit))
            slope = before.repeat_interleave(len(p), 0) if len(p) > 1 else before
            slope = slope.sub(torch.acos(cos.clamp(-limit, limit))).mul_(root)
        else:
            root = root0 = torch.ones_like(cos[:, :1, :1])
            slope = cos - (original.repeat_interleave(len(p), 0) if len(p) > 1 else original)
        along = (slope * cos).sum(-1)
        pull = torch.bmm(slope, u).addcmul_(along[..., None], u, value=-1)  # D u - t u
        dy = torch.unflatten(pull * inverse[..., None], 0, (sets, len(p)))
        gradient = (dy.mT @ w[:, None]).sum(0).mul_(_pairs(w, p))
        return gradient, original, inverse0, root0, cos, inverse, u, root, slope, along, pull

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: tuple[Any, ...]) -> None:
        w, p, ctx.measure = inputs
        ctx.mark_non_differentiable(*output[1:])
        ctx.save_for_backward(w, p, *output[1:])

    @staticmethod
    def backward(ctx: Any, grad: Tensor, *_: Any) -> tuple[Tensor, Tensor, None]:
        w, p, *saved = ctx.saved_tensors
        with torch.autocast(w.device.type, enabled=False):
            if torch.is_grad_enabled():  # the caller will differentiate once more
                gradient = _gradient_by_autograd(w, p, ctx.measure)
                dw, dp = torch.autograd.grad(gradient, (w, p), grad, create_graph=True)
                return dw, dp, None
            return *_second_order(w, p, grad, ctx.measure == "angle", *saved), None


# torch asks for the signature in every call; looking it up once makes it cheap.
_DistortionGradient.forward.__signature__ = inspect.signature(_DistortionGradient.forward)  # type: ignore[attr-defined]


def off_diagonal_cosines(x: Tensor) -> tuple[Tensor, Tensor]:
    """Cosines (0 on the diagonal) from the Gram matrix alone, and 1 / |x|: no copy of x."""
    gram = x @ x.mT if runs_eagerly() else _Gram.apply(x)
    squares = _diagonal(gram)
    inverse = torch.where(squares > 0, squares, 1.0).rsqrt() * (squares > 0)
    other = 1 - torch.eye(x.shape[1], dtype=x.dtype, device=x.device)
    return gram * (inverse[..., None] * inverse[..., None, :] * other), inverse


class _Gram(Function):
    """x x^T, whose gradient takes one matrix product instead of the two of a general product."""

    @staticmethod
    def forward(x: Tensor) -> Tensor:
        return x @ x.mT

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Any) -> None:
        ctx.save_for_backward(*inputs)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> Tensor:
        x: Tensor = ctx.saved_tensors[0]
        with torch.autocast(x.device.type, enabled=False):
            return (grad + grad.mT) @ x


def cosine_limit(cos: Tensor) -> float:
    # The second derivative of arccos grows as sin^-3: a pair closer than this is left alone.
    return 1 - 10 * math.pow(torch.finfo(cos.dtype).eps, 0.75)


def _gradient_by_autograd(w: Tensor, p: Tensor, measure: str) -> Tensor:
    """The same by differentiable operations, for derivatives of any order."""
    sets, n, _ = w.shape
    original = off_diagonal_cosines(w)[0].repeat_interleave(len(p), 0)
    y = project(w, p)
    cos, inverse = off_diagonal_cosines(y)
    if measure == "angle":
        limit = cosine_limit(cos)
        inside = (cos.detach().abs() < limit).to(cos)
        held = cos.clamp(-limit, limit)
        slope = (torch.acos(original.clamp(-limit, limit)) - torch.acos(held)) * inside
        slope = slope * (1 - held * held).rsqrt()
    else:
        slope = cos - original
    along = (slope * cos).sum(-1) * inverse * inverse
    dy = (slope * inverse[..., None] * inverse[..., None, :]) @ y - along[..., None] * y
    dp = (torch.unflatten(dy, 0, (sets, len(p))).mT @ w[:, None]).sum(0)  # (C, k, d)
    return dp * (4 / (sets * len(p) * n * (n - 1)))


def _cosines(x: Tensor) -> tuple[Tensor, Tensor]:
    """`off_diagonal_cosines` in fewer passes, without a graph."""
    cos = torch.bmm(x, x.mT)
    squares = _diagonal(cos).clone()
    inverse = squares.rsqrt()
    inverse.masked_fill_(squares <= 0, 0)
    cos.mul_(inverse[:, :, None]).mul_(inverse[:, None])
    _diagonal(cos).zero_()
    return cos, inverse


def _second_order(
    w: Tensor, p: Tensor, direction: Tensor, angle: bool, original: Tensor, inverse0: Tensor,
    root0: Tensor, cos: Tensor, inverse: Tensor, u: Tensor, root: Tensor, slope: Tensor,
    along: Tensor, pull: Tensor,
) -> tuple[Tensor, Tensor]:  # fmt: skip
    """Derivatives of <direction, F> in w and P; the names are those of `_DistortionGradient`."""
    sets, r = len(w), inverse[..., None]
    g = direction * _pairs(w, p)
    v = project(w, g).mul_(r)
    own = (u * v).sum(-1)  # u_i . v_i
    # (T + T^T) / 2
    turn = torch.bmm(v, u.mT)
    mean = (own[:, :, None] + own[:, None]).mul_(0.5)
    turn = (turn + turn.mT).mul_(0.5).addcmul_(cos, mean, value=-1)
    _diagonal(turn).zero_()
    # through the cosines of the neurons: a matrix whose product with w is the gradient
    through = turn * root
    kernel = -(through * root0.repeat_interleave(len(p), 0)) if angle else -through
    kernel = torch.unflatten(kernel, 0, (sets, len(p))).sum(1) if len(p) > 1 else kernel
    stay = (kernel * original).sum(-1).mul_(inverse0).mul_(inverse0)
    kernel.mul_(inverse0[:, :, None]).mul_(inverse0[:, None])
    _diagonal(kernel).copy_(stay.neg_())
    dw = torch.bmm(kernel.mul_(2), w)
    # through the cosines of the images
    if angle:
        through.mul_(root).addcmul_(through, cos * slope)
    du = torch.bmm(through.addcmul_(slope, mean, value=-1).mul_(2), u)
    du.baddbmm_(slope, v).addcmul_(along[..., None], v, value=-1)
    inward = ((u * du).sum(-1) + (v * pull).sum(-1))[..., None]
    dy = du.addcmul_(u, inward, value=-1).mul_(r)
    dz = pull * r
    # y = P w and z = G w
    images = torch.cat([_side_by_side(dy, sets), _side_by_side(dz, sets)], -1)
    dw.baddbmm_(images, torch.cat([p, g]).flatten(0, 1).expand(sets, -1, -1))
    dp = (torch.unflatten(dy, 0, (sets, len(p))).mT @ w[:, None]).sum(0)
    return dw, dp


def _side_by_side(images: Tensor, sets: int) -> Tensor:
    """(sets * C, N, k) -> (sets, N, C k)."""
    return torch.unflatten(images, 0, (sets, -1)).transpose(1, 2).flatten(2)


def _inverse_sine(cos: Tensor) -> Tensor:
    """1 / sqrt(1 - c^2), 0 beyond the limit."""
    root = torch.addcmul(torch.ones_like(cos[:, :1, :1]), cos, cos, value=-1).rsqrt_()
    limit = cosine_limit(cos)
    largest = known(cos.abs().amax())
    if largest is None or largest >= limit:
        root.masked_fill_(cos.abs() >= limit, 0)
    return root


def _pairs(w: Tensor, p: Tensor) -> float:
    return 4 / (len(w) * len(p) * w.shape[1] * (w.shape[1] - 1))


def _diagonal(matrices: Tensor) -> Tensor:
    return matrices.diagonal(dim1=-2, dim2=-1)
