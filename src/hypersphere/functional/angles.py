"""Angles between vectors.

Everything else in the package stands on these functions. Angles are in radians. Inputs in float16
or bfloat16 are computed in float32 or wider and returned in their own type. A zero vector has no
direction: it stays zero when normalized, its cosine with anything is 0 and its angle with anything
pi / 2, with finite gradients.
"""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor

from ._kernels.autograd import Function, runs_eagerly

__all__ = [
    "angle",
    "arccos",
    "cos_multiple",
    "cosine",
    "geodesic_distance",
    "normalize",
    "pairwise_angle",
    "pairwise_cosine",
    "row_norm",
    "uniform_on_sphere",
]


def _widen(x: Tensor) -> Tensor:
    """float32 for the 16-bit types: squares and arc cosines need the digits."""
    if not x.is_floating_point():
        raise TypeError(
            f"expected a floating-point tensor, got {x.dtype}; convert it with .float()"
        )
    return x.float() if x.dtype in (torch.float16, torch.bfloat16) else x


def _double(x: Tensor) -> Tensor:
    """float64 where the device has it: rounded unit vectors blur angles below their own eps."""
    return _widen(x) if x.device.type == "mps" else _widen(x).double()


def _scaled_norm(x: Tensor, dim: int) -> tuple[Tensor, Tensor, Tensor]:
    """x / scale, its norm (1 where x is zero) and the scale, with no overflow or underflow.

    The scale is the largest entry, as a constant: norm and direction do not depend on it, so
    neither do their gradients.
    """
    largest = x.detach().abs().amax(dim, keepdim=True)
    scale = torch.where(largest > 0, largest, torch.ones_like(largest))
    scaled = x / scale
    squares = scaled.square().sum(dim, keepdim=True)
    return scaled, torch.where(squares > 0, squares, torch.ones_like(squares)).sqrt(), scale


def row_norm(x: Tensor, dim: int = -1, keepdim: bool = False) -> Tensor:
    """Euclidean norm |x| along `dim`, with gradient 0 (not NaN) at the zero vector.

    Args:
        x: any shape.
        dim: dimension along which the norm is taken.
        keepdim: whether that dimension stays, with size 1.

    Returns:
        The norms, in the type of x.

    >>> row_norm(torch.tensor([[3.0, 4.0], [0.0, 0.0]]))
    tensor([5., 0.])
    """
    wide = _widen(x)
    _, norm, scale = _scaled_norm(wide, dim)
    nonzero = (wide.detach() != 0).any(dim, keepdim=True)
    result = (norm * scale * nonzero).to(x.dtype)
    return result if keepdim else result.squeeze(dim)


def normalize(x: Tensor, dim: int = -1) -> Tensor:
    """x / |x| along `dim`; zero vectors stay zero, and no length is too small or too large.

    Args:
        x: any shape.
        dim: dimension of the vectors.

    Returns:
        Like x.

    >>> normalize(torch.tensor([[3e-30, 4e-30], [0.0, 0.0]]))
    tensor([[0.6000, 0.8000],
            [0.0000, 0.0000]])
    """
    scaled, norm, _ = _scaled_norm(_widen(x), dim)
    return (scaled / norm).to(x.dtype)


def cosine(x: Tensor, y: Tensor, dim: int = -1) -> Tensor:
    """cos(theta) between corresponding vectors, in [-1, 1]; shapes broadcast.

    Args:
        x: vectors along `dim`; any shape that broadcasts with y.
        y: vectors along `dim`.
        dim: dimension of the vectors.

    Returns:
        cos(theta), of the broadcast shape without `dim`.

    >>> cosine(torch.tensor([1.0, 0.0]), torch.tensor([[2.0, 2.0], [0.0, 0.0]]))
    tensor([0.7071, 0.0000])
    """
    _same_length(x, y, dim)
    u, v = normalize(_widen(x), dim), normalize(_widen(y), dim)
    return (u * v).sum(dim).clamp(-1, 1).to(torch.promote_types(x.dtype, y.dtype))


def pairwise_cosine(x: Tensor, y: Tensor | None = None) -> Tensor:
    """cos(theta) of every row of x with every row of y, in [-1, 1].

    Args:
        x: (n, d), one vector per row.
        y: (m, d), one vector per row. Default: x.

    Returns:
        (n, m).
    """
    y = x if y is None else y
    check_rows(x, "x")
    check_rows(y, "y")
    _same_length(x, y, -1)
    u, v = normalize(_widen(x)), normalize(_widen(y))
    return (u @ v.T).clamp(-1, 1).to(torch.promote_types(x.dtype, y.dtype))


class _Arccos(Function):
    """arccos with a floor under sin(theta) in its gradient."""

    @staticmethod
    def forward(cos: Tensor) -> Tensor:
        return cos.clamp(-1, 1).acos()

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Any) -> None:
        ctx.save_for_backward(inputs[0])

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> Tensor:
        cos: Tensor = ctx.saved_tensors[0]
        # Note [Gradient of arccos at the ends]: -1 / sin(theta) is infinite at theta = 0 and pi.
        # There sin^2(theta) is floored at the rounding error of cos, below which it is noise.
        return -grad * (1 - cos * cos).clamp_min(torch.finfo(cos.dtype).eps).rsqrt()


def arccos(cos: Tensor) -> Tensor:
    """theta = arccos(cos) in [0, pi], exact to float precision, with a finite gradient at +-1.

    Cosines beyond +-1 by rounding count as +-1. See Note [Gradient of arccos at the ends]. From
    vectors rather than cosines, :func:`angle` also resolves angles below sqrt(eps).

    Args:
        cos: cosines, any shape.

    Returns:
        Angles in radians, like cos.

    >>> c = torch.tensor([-1.0, 0.0, 1.0], requires_grad=True)
    >>> arccos(c).sum().backward()
    >>> c.grad.isfinite().all()
    tensor(True)
    """
    wide = _widen(cos)
    theta: Tensor = _plain_arccos(wide) if runs_eagerly() else _Arccos.apply(wide)
    return theta.to(cos.dtype)


def _plain_arccos(cos: Tensor) -> Tensor:
    """The same by plain operations: arccos, and a line of the slope reached beside its ends."""
    eps = torch.finfo(cos.dtype).eps
    end = math.sqrt(1 - eps)
    inside = cos.clamp(-end, end)
    line = inside.acos() - torch.where(cos.abs() > end, (cos - inside.detach()) * eps**-0.5, 0.0)
    return line + (cos.clamp(-1, 1).acos() - line).detach()  # the value is exact


def _angle_from_chords(minus: Tensor, plus: Tensor) -> Tensor:
    """2 atan2(|u - v|, |u + v|): accurate where arccos(u.v) loses half the digits."""
    undefined = (minus == 0) & (plus == 0)  # two zero vectors
    one = torch.ones_like(minus)
    return 2 * torch.atan2(torch.where(undefined, one, minus), torch.where(undefined, one, plus))


def angle(x: Tensor, y: Tensor, dim: int = -1) -> Tensor:
    """Angle between corresponding vectors, in [0, pi]; exact however small or close to pi it is.

    Computed in float64 inside, so a float32 result has all its digits down to 1e-9 rad.

    Args:
        x: vectors along `dim`; any shape that broadcasts with y.
        y: vectors along `dim`.
        dim: dimension of the vectors.

    Returns:
        Angles in radians, of the broadcast shape without `dim`.

    >>> angle(torch.tensor([1.0, 0.0]), torch.tensor([1.0, 1e-6]))
    tensor(1.0000e-06)
    """
    _same_length(x, y, dim)
    u, v = normalize(_double(x), dim), normalize(_double(y), dim)
    theta = _angle_from_chords(row_norm(u - v, dim), row_norm(u + v, dim))
    return theta.to(torch.promote_types(x.dtype, y.dtype))


def pairwise_angle(x: Tensor, y: Tensor | None = None) -> Tensor:
    """Angle between every row of x and every row of y, in [0, pi].

    Args:
        x: (n, d), one vector per row.
        y: (m, d), one vector per row. Default: x.

    Returns:
        Angles in radians, (n, m).
    """
    y = x if y is None else y
    check_rows(x, "x")
    check_rows(y, "y")
    _same_length(x, y, -1)
    u, v = normalize(_double(x)), normalize(_double(y))
    mode = "donot_use_mm_for_euclid_dist"  # the matrix-product form loses small distances
    theta = _angle_from_chords(
        torch.cdist(u, v, compute_mode=mode), torch.cdist(u, -v, compute_mode=mode)
    )
    return theta.to(torch.promote_types(x.dtype, y.dtype))


def geodesic_distance(x: Tensor, y: Tensor, dim: int = -1) -> Tensor:
    """Length of the shortest arc between x/|x| and y/|y| on the unit sphere, which is the angle.

    Args:
        x: vectors along `dim`; any shape that broadcasts with y.
        y: vectors along `dim`.
        dim: dimension of the vectors.

    Returns:
        Lengths in radians, of the broadcast shape without `dim`.
    """
    return angle(x, y, dim)


def cos_multiple(cos: Tensor, m: int) -> Tensor:
    """cos(m theta) from cos(theta), by T_m = 2 cos(theta) T_{m-1} - T_{m-2} (the polynomial 2.7).

    Args:
        cos: cos(theta), any shape.
        m: integer >= 0.

    Returns:
        cos(m theta), like cos.

    >>> cos_multiple(torch.tensor(0.5), 3)  # theta = pi / 3
    tensor(-1.)
    """
    if not isinstance(m, int) or isinstance(m, bool) or m < 0:
        raise ValueError(f"cos_multiple expects an integer m >= 0, got {m!r}")
    wide = _widen(cos)
    before, now = torch.ones_like(wide), wide
    if m == 0:
        return before.to(cos.dtype)
    for _ in range(m - 1):
        before, now = now, 2 * wide * now - before
    return now.to(cos.dtype)


def uniform_on_sphere(
    n: int,
    dim: int,
    generator: torch.Generator | None = None,
    dtype: torch.dtype | None = None,
    device: torch.device | str | None = None,
) -> Tensor:
    """n points drawn independently and uniformly on the unit sphere of R^dim.

    Args:
        n: number of points.
        dim: dimension of the space around the sphere.
        generator: source of randomness.
        dtype: of the result. Default: torch's default type.
        device: of the result. Default: torch's default device.

    Returns:
        (n, dim), one unit vector per row.

    >>> uniform_on_sphere(3, 5).norm(dim=1).round(decimals=5)
    tensor([1., 1., 1.])
    """
    if n < 0 or dim < 1:
        raise ValueError(f"uniform_on_sphere expects n >= 0 and dim >= 1, got n={n}, dim={dim}")
    dtype = dtype or torch.get_default_dtype()
    wide = torch.float32 if dtype in (torch.float16, torch.bfloat16) else dtype
    return normalize(torch.randn(n, dim, generator=generator, dtype=wide, device=device)).to(dtype)


def check_rows(x: Tensor, name: str, least: int = 0) -> None:
    """Refuse anything but a matrix (n, d) with n >= least and d >= 1."""
    if x.ndim != 2 or x.shape[0] < least or x.shape[1] < 1:
        at_least = f" with n >= {least}" if least else ""
        raise ValueError(f"expected {name} of shape (n, d){at_least}, got {tuple(x.shape)}")


def _same_length(x: Tensor, y: Tensor, dim: int) -> None:
    if x.ndim == 0 or y.ndim == 0 or x.shape[dim] != y.shape[dim]:
        raise ValueError(
            f"expected vectors of equal length along dim {dim}, got shapes "
            f"{tuple(x.shape)} and {tuple(y.shape)}"
        )
