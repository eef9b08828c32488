"""Decoupled operators f(w, x) = h(|w|, |x|) g(theta), Eq. 4.3: convolutions and linear maps.

The length of the input goes through a magnitude h (see magnitude.py), its angle with the filter
through an activation g (see angular.py). Three ways bring the length of the filter back (4.3.5):

===================  =====  =================================================================
weighted             Eq.    h(|w|, |x|)
===================  =====  =================================================================
None                        h(|x|)
linear               4.3.5  |w| h(|x|)
nonlinear            4.15   h(|w| |x|)
nonlinear_separate   4.16   h(|w|) h(|x|) / alpha
===================  =====  =================================================================

The two nonlinear ones exist for the magnitudes with a radius: ball, tanh, segmented.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import wraps
from typing import Literal, ParamSpec, TypeAlias

import torch
from torch import Tensor

from ._kernels.decoupled.directions import unit_rows
from ._kernels.decoupled.patches import project, resolve_geometry, with_norms
from ._kernels.decoupled.tiled import Inputs, Operator, apply_operator
from .angles import row_norm
from .angular import Angular, check_kind
from .magnitude import RADIUS_KINDS, MagnitudeKind, check_magnitude
from .magnitude import magnitude as _magnitude

__all__ = [
    "WEIGHTED_KINDS",
    "Weighted",
    "check_weighted",
    "decoupled_conv",
    "decoupled_conv1d",
    "decoupled_conv2d",
    "decoupled_conv3d",
    "decoupled_linear",
]

Weighted: TypeAlias = Literal["linear", "nonlinear", "nonlinear_separate"]
WEIGHTED_KINDS: tuple[str, ...] = ("linear", "nonlinear", "nonlinear_separate")


def decoupled_conv(
    x: Tensor,
    weight: Tensor,
    bias: Tensor | None = None,
    stride: int | Sequence[int] = 1,
    padding: str | int | Sequence[int] = 0,
    dilation: int | Sequence[int] = 1,
    groups: int = 1,
    magnitude: MagnitudeKind = "sphere",
    angular: Angular = "cosine",
    *,
    alpha: float = 1.0,
    beta: float | None = None,
    radius: float | Tensor = 1.0,
    mean_norm: float | Tensor | Callable[[Tensor], Tensor] = 1.0,
    k: float | Tensor | None = None,
    weighted: Weighted | None = None,
    scale: Tensor | None = None,
    norm: Tensor | None = None,
) -> Tensor:
    """scale h(|w|, |x|) g(theta) + bias for every filter w and patch x; Eq. 4.3 with 3.1's bias.

    x: (B, C_in, ...) or (C_in, ...); weight: (C, C_in / groups, ...) with one to three spatial
    dimensions; the result is (B, C, ...), as from torch's convolution of the same arguments.
    magnitude, alpha, beta, radius: h, see :func:`magnitude`. radius may hold one value a filter
    (C,). mean_norm: E|x| of Eq. C.1-C.3, which multiplies the radius for |x|, or a function that
    makes it from the norms of all patches.
    angular, k: g, see :func:`angular`. k may hold one value a filter (C,).
    weighted: how |w| enters h, see the table above; otherwise only its direction counts.
    scale: one factor a filter (C,), the beta of SphereNorm (3.2.5).
    norm: |x| of every patch, if :func:`patch_norm` was called already.

    A zero patch or a zero filter gives 0 (before the bias), with finite gradients. Patch norms
    are in float32 or wider, so lengths between 1e-18 and 1e18 are told apart from 0.

    >>> x, w = torch.randn(2, 3, 8, 8), torch.randn(5, 3, 3, 3)
    >>> f = decoupled_conv2d(x, w, padding=1)  # cosines
    >>> f.shape, bool(f.abs().max() <= 1)
    (torch.Size([2, 5, 8, 8]), True)
    >>> torch.allclose(f, decoupled_conv2d(0.001 * x, 10 * w, padding=1), atol=1e-5)
    True
    """
    _check_types(x, weight)
    batched = _check_shapes(x, weight, groups)
    x, geometry = resolve_geometry(x, tuple(weight.shape[2:]), stride, padding, dilation, groups)
    out = _decoupled(
        x if batched else x[None],
        weight,
        bias,
        Operator(magnitude, angular, alpha, beta, geometry),
        radius,
        mean_norm,
        k,
        weighted,
        scale,
        norm if batched or norm is None else norm[None],
    )
    return out if batched else out[0]


_P = ParamSpec("_P")


def _only(spatial: int, conv: Callable[_P, Tensor]) -> Callable[_P, Tensor]:
    @wraps(conv)
    def checked(*args: _P.args, **kwargs: _P.kwargs) -> Tensor:
        weight = kwargs["weight"] if "weight" in kwargs else args[1]
        if isinstance(weight, Tensor) and weight.ndim != spatial + 2:
            raise ValueError(
                f"{checked.__name__} expects weight (C, C_in / groups, ...) with {spatial} spatial "
                f"dimensions, got {tuple(weight.shape)}"
            )
        return conv(*args, **kwargs)

    checked.__name__ = checked.__qualname__ = f"decoupled_conv{spatial}d"
    checked.__doc__ = f":func:`decoupled_conv` with a weight of {spatial} spatial dimensions."
    return checked


decoupled_conv1d = _only(1, decoupled_conv)
decoupled_conv2d = _only(2, decoupled_conv)
decoupled_conv3d = _only(3, decoupled_conv)


def decoupled_linear(
    x: Tensor,
    weight: Tensor,
    bias: Tensor | None = None,
    magnitude: MagnitudeKind = "sphere",
    angular: Angular = "cosine",
    *,
    alpha: float = 1.0,
    beta: float | None = None,
    radius: float | Tensor = 1.0,
    mean_norm: float | Tensor | Callable[[Tensor], Tensor] = 1.0,
    k: float | Tensor | None = None,
    weighted: Weighted | None = None,
    scale: Tensor | None = None,
    norm: Tensor | None = None,
) -> Tensor:
    """scale h(|w|, |x|) g(theta) + bias for every row w of weight and vector x (3.2.4).

    x: (..., C_in); weight: (C, C_in); the result is (..., C). norm: (..., 1). Everything else is
    as in :func:`decoupled_conv`.

    >>> decoupled_linear(torch.tensor([[3.0, 4.0]]), torch.eye(2))
    tensor([[0.6000, 0.8000]])
    """
    if weight.ndim != 2 or x.ndim < 1 or x.shape[-1] != weight.shape[1]:
        raise ValueError(
            f"decoupled_linear expects x (..., C_in) and weight (C, C_in), got {tuple(x.shape)} "
            f"and {tuple(weight.shape)}"
        )
    _check_types(x, weight)
    out = _decoupled(
        x.reshape(-1, x.shape[-1]),
        weight,
        bias,
        Operator(magnitude, angular, alpha, beta, None),
        radius,
        mean_norm,
        k,
        weighted,
        scale,
        None if norm is None else norm.reshape(-1, 1),
    )
    return out.reshape(*x.shape[:-1], weight.shape[0])


def _decoupled(
    x: Tensor,
    weight: Tensor,
    bias: Tensor | None,
    op: Operator,
    radius: float | Tensor,
    mean_norm: float | Tensor | Callable[[Tensor], Tensor],
    k: float | Tensor | None,
    weighted: Weighted | None,
    scale: Tensor | None,
    norm: Tensor | None,
) -> Tensor:
    check_magnitude(op.magnitude, op.alpha, op.beta, radius)
    check_weighted(weighted, op.magnitude)
    if not callable(op.angular):
        check_kind(op.angular, k)
    if bias is not None and bias.shape != weight.shape[:1]:
        raise ValueError(
            f"expected bias ({weight.shape[0]},), one number a filter; got {tuple(bias.shape)}"
        )
    if torch.is_autocast_enabled(x.device.type):
        # Like torch's own layers, it leaves float64 alone.
        double = x.dtype == torch.float64
        dtype = x.dtype if double else torch.get_autocast_dtype(x.device.type)
        with torch.autocast(x.device.type, enabled=False):
            return _decoupled(
                x.to(dtype), weight, bias, op, radius, mean_norm, k, weighted, scale, norm
            )
    rows = weight.flatten(1)
    if op.magnitude == "linear" and op.angular == "cosine":
        # |x| cos(theta) = (w / |w|)^T x: a plain convolution. With |w| brought back it is
        # nn.Conv2d to the last bit, which w / |w| * |w| would not be.
        kernel = rows if weighted == "linear" else unit_rows(rows)
        factor = op.alpha if scale is None else op.alpha * scale[:, None]
        kernel = kernel if isinstance(factor, float) and factor == 1 else kernel * factor
        bias = None if bias is None else bias.to(x.dtype)
        return project(x, kernel.view_as(weight).to(x.dtype), op.geometry, bias)
    if weighted is not None:
        length = row_norm(rows.to(torch.promote_types(rows.dtype, torch.float32)))
        radius, scale = _weigh(length, op, radius, weighted, scale)
    kernel = unit_rows(rows).view_as(weight).to(x.dtype)
    wide = torch.promote_types(x.dtype, torch.float32)
    if norm is None:
        x, norm = with_norms(x, tuple(kernel.shape[2:]), op.geometry)
    mean = mean_norm(norm) if callable(mean_norm) else mean_norm
    has_radius = op.magnitude in RADIUS_KINDS
    inputs = Inputs(
        x,
        norm,
        kernel,
        _tensor(radius, x, wide) * mean if has_radius else _tensor(1.0, x, wide),
        _tensor(k, x, wide) if isinstance(k, Tensor) and op.angular == "sigmoid" else None,
        scale,
        bias,
    )
    return apply_operator(inputs, op if k is None or isinstance(k, Tensor) else op._replace(k=k))


def _weigh(
    length: Tensor,
    op: Operator,
    radius: float | Tensor,
    weighted: Weighted,
    scale: Tensor | None,
) -> tuple[float | Tensor, Tensor | None]:
    """|w| as a factor of each filter and a change of its radius, so that h need only know |x|."""
    factor: Tensor | None = length
    if weighted == "nonlinear":
        # h(|w| n; rho) is h(n; rho / |w|) for ball and tanh, |w| h(n; rho / |w|) for segmented.
        radius = radius / length.clamp_min(torch.finfo(length.dtype).tiny ** 0.5)
        factor = length if op.magnitude == "segmented" else None
    elif weighted == "nonlinear_separate":
        factor = _magnitude(length, op.magnitude, op.alpha, op.beta, radius) / op.alpha
    if factor is None or scale is None:
        return radius, scale if factor is None else factor
    return radius, scale * factor


def check_weighted(weighted: str | None, magnitude: str) -> None:
    """Refuse unknown weightings, and nonlinear ones of a magnitude that has no radius."""
    if weighted is not None and weighted not in WEIGHTED_KINDS:
        raise ValueError(
            f"unknown weighting {weighted!r}; expected None or one of {', '.join(WEIGHTED_KINDS)}"
        )
    if weighted not in (None, "linear") and magnitude not in RADIUS_KINDS:
        raise ValueError(
            f"weighted={weighted!r} (Eq. 4.15, 4.16) needs a magnitude with a radius "
            f"({', '.join(RADIUS_KINDS)}); {magnitude} has none, use weighted='linear'"
        )


def _check_types(x: Tensor, weight: Tensor) -> None:
    if not x.is_floating_point():
        raise TypeError(
            f"decoupled operators expect floating-point input, got {x.dtype}; convert it, for "
            f"pixels with x.float() / 255"
        )
    if x.dtype != weight.dtype and not torch.is_autocast_enabled(x.device.type):
        raise TypeError(
            f"input and weight should have one type, got {x.dtype} and {weight.dtype}; convert "
            f"the input with x.to({weight.dtype}), or the layer, or use torch.autocast"
        )


def _check_shapes(x: Tensor, weight: Tensor, groups: int) -> bool:
    spatial = weight.ndim - 2
    if not 1 <= spatial <= 3:
        raise ValueError(
            f"decoupled_conv expects weight (C, C_in / groups, ...) with one to three spatial "
            f"dimensions, got {tuple(weight.shape)}"
        )
    channels = weight.shape[1] * groups
    if x.ndim not in (weight.ndim, weight.ndim - 1) or x.shape[-spatial - 1] != channels:
        sizes = ", ".join("LDHW"[:1] if spatial == 1 else "DHW"[-spatial:])
        raise ValueError(
            f"decoupled_conv expects input (B, {channels}, {sizes}) for weight "
            f"{tuple(weight.shape)} and groups={groups}, got {tuple(x.shape)}"
        )
    if groups < 1 or weight.shape[0] % groups:
        raise ValueError(f"expected filters in equal groups, got {weight.shape[0]} in {groups}")
    return x.ndim == weight.ndim


def _tensor(value: float | Tensor, like: Tensor, dtype: torch.dtype) -> Tensor:
    if isinstance(value, Tensor):
        return value.to(device=like.device, dtype=dtype)
    return torch.full((), value, device=like.device, dtype=dtype)
