"""The angle-preserving projection of chapter 6 (6.3.4), and what unrolling it takes.

The loss compares the cosines c of the images y = P w with the cosines c0 of the neurons w. Its
gradient in P, and for unrolled optimization the gradient of that, are written out below.
"""

from __future__ import annotations

import inspect
from typing import Any

import torch
from torch import Tensor

from .projections import gaussian_projection, project

__all__ = ["angle_preserving_loss", "angle_preserving_projection", "angle_preserving_step"]


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
        gradient = sum(_gradient(w, p, measure) for w in held) / len(held)
        return p - lr * p.square().sum((-2, -1), keepdim=True) * gradient


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


# --- derivatives ---------------------------------------------------------------------------


def _off_diagonal_cosines(x: Tensor) -> tuple[Tensor, Tensor]:
    """Cosines (0 on the diagonal) from the Gram matrix alone, and 1 / |x|: no copy of x."""
    gram = _Gram.apply(x)
    squares = _diagonal(gram)
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


def _gradient(neurons: Tensor, projection: Tensor, measure: str) -> Tensor:
    """d angle_preserving_loss / dP, differentiable in both."""
    w = neurons if neurons.ndim == 3 else neurons[None]
    p = projection if projection.ndim == 3 else projection[None]
    gradient, *_ = _Gradient.apply(w, p, measure)
    return gradient if projection.ndim == 3 else gradient[0]


def _plain_gradient(w: Tensor, p: Tensor, measure: str) -> Tensor:
    """The same by differentiable operations, for derivatives of any order."""
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
    return dp * (4 / (sets * len(p) * n * (n - 1)))


def _cosines(x: Tensor) -> tuple[Tensor, Tensor]:
    """`_off_diagonal_cosines` in fewer passes, without a graph."""
    cos = torch.bmm(x, x.mT)
    squares = _diagonal(cos).clone()
    inverse = squares.rsqrt()
    inverse.masked_fill_(squares <= 0, 0)
    cos.mul_(inverse[:, :, None]).mul_(inverse[:, None])
    _diagonal(cos).zero_()
    return cos, inverse


class _Gradient(torch.autograd.Function):
    r"""F = dL/dP, and its own derivatives in one go.

    With u = y / |y|, D = -dL/dc up to the number of pairs and t_i = sum_j D_ij c_ij,
    F = kappa sum over sets of (D u - t u)^T w / |y|. For a direction G in the space of P and
    v = G w / |y|, <G, F> = kappa sum_ij D_ij T_ij with T_ij = u_j . v_i - c_ij (u_i . v_i): the
    derivatives of this number in w (through c0, u and v) and P (through u) are what comes back.
    """

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
            limit = _limit(cos)
            before = torch.acos(original.clamp(-limit, limit))
            slope = before.repeat_interleave(len(p), 0) if len(p) > 1 else before
            slope = slope.sub(torch.acos(cos.clamp(-limit, limit))).mul_(root)
        else:
            root = root0 = torch.ones_like(cos[:, :1, :1])
            slope = cos - (original.repeat_interleave(len(p), 0) if len(p) > 1 else original)
        along = (slope * cos).sum(-1)
        pull = torch.bmm(slope, u).addcmul_(along[..., None], u, value=-1)  # D u - t u
        dy = (pull * inverse[..., None]).unflatten(0, (sets, len(p)))
        gradient = (dy.mT @ w[:, None]).sum(0).mul_(_pairs(w, p))
        return gradient, original, inverse0, root0, cos, inverse, u, root, slope, along, pull

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: tuple[Any, ...]) -> None:
        w, p, ctx.measure = inputs
        ctx.mark_non_differentiable(*output[1:])
        ctx.save_for_backward(w, p, *output[1:])

    @staticmethod
    def backward(ctx: Any, grad: Tensor, *_: Any) -> tuple[Tensor, Tensor, None]:  # type: ignore[override]
        w, p, *saved = ctx.saved_tensors
        with torch.autocast(w.device.type, enabled=False):
            if torch.is_grad_enabled():  # the caller will differentiate once more
                gradient = _plain_gradient(w, p, ctx.measure)
                dw, dp = torch.autograd.grad(gradient, (w, p), grad, create_graph=True)
                return dw, dp, None
            return *_second_order(w, p, grad, ctx.measure == "angle", *saved), None


def _second_order(
    w: Tensor, p: Tensor, direction: Tensor, angle: bool, original: Tensor, inverse0: Tensor,
    root0: Tensor, cos: Tensor, inverse: Tensor, u: Tensor, root: Tensor, slope: Tensor,
    along: Tensor, pull: Tensor,
) -> tuple[Tensor, Tensor]:  # fmt: skip
    """Derivatives of <direction, F> in w and P; the names are those of `_Gradient`."""
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
    kernel = kernel.unflatten(0, (sets, len(p))).sum(1) if len(p) > 1 else kernel
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
    dp = (dy.unflatten(0, (sets, len(p))).mT @ w[:, None]).sum(0)
    return dw, dp


def _side_by_side(images: Tensor, sets: int) -> Tensor:
    """(sets * C, N, k) -> (sets, N, C k)."""
    return images.unflatten(0, (sets, -1)).transpose(1, 2).flatten(2)


def _inverse_sine(cos: Tensor) -> Tensor:
    """1 / sqrt(1 - c^2), 0 beyond the limit."""
    root = torch.addcmul(torch.ones_like(cos[:, :1, :1]), cos, cos, value=-1).rsqrt_()
    limit = _limit(cos)
    if cos.abs().amax().item() >= limit:
        root.masked_fill_(cos.abs() >= limit, 0)
    return root


def _pairs(w: Tensor, p: Tensor) -> float:
    return 4 / (len(w) * len(p) * w.shape[1] * (w.shape[1] - 1))


def _diagonal(matrices: Tensor) -> Tensor:
    return matrices.diagonal(dim1=-2, dim2=-1)


_Gradient.forward.__signature__ = inspect.signature(_Gradient.forward)  # type: ignore[attr-defined]
