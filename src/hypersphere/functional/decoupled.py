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

import inspect
from collections.abc import Callable, Sequence
from functools import wraps
from typing import Literal, ParamSpec, TypeAlias, get_args

import torch
from torch import Tensor

from ..registry import unknown_name
from ._kernels.decoupled.accelerated import accelerated_layer
from ._kernels.decoupled.convolution import (
    Geometry,
    autocast_type,
    correlate,
    resolve_geometry,
)
from ._kernels.decoupled.directions import unit_rows
from ._kernels.decoupled.native.layer import native_layer
from ._kernels.decoupled.norms import with_norms
from ._kernels.decoupled.numbers import check_numbers, one, placed, scaled
from ._kernels.decoupled.plain import Inputs, OperatorSettings
from ._kernels.decoupled.tiled import apply_operator
from .angles import row_norm
from .angular import Angular, AngularFunction, angular_function
from .magnitude import Magnitude, MagnitudeFunction, magnitude_function, names_with_radius
from .plain_sizes import plain_sizes

__all__ = [
    "MeanNorm",
    "Weighted",
    "check_weighted",
    "decoupled_conv",
    "decoupled_conv1d",
    "decoupled_conv2d",
    "decoupled_conv3d",
    "decoupled_linear",
]

Weighted: TypeAlias = Literal["linear", "nonlinear", "nonlinear_separate"]
MeanNorm: TypeAlias = float | Tensor | Callable[[Tensor], Tensor]


def decoupled_conv(
    x: Tensor,
    weight: Tensor,
    bias: Tensor | None = None,
    stride: int | Sequence[int] = 1,
    padding: str | int | Sequence[int] = 0,
    dilation: int | Sequence[int] = 1,
    groups: int = 1,
    magnitude: Magnitude = "sphere",
    angular: Angular = "cosine",
    *,
    alpha: float = 1.0,
    beta: float | None = None,
    radius: float | Tensor = 1.0,
    mean_norm: MeanNorm = 1.0,
    k: float | Tensor | None = None,
    weighted: Weighted | None = None,
    scale: Tensor | None = None,
    norm: Tensor | None = None,
) -> Tensor:
    """scale h(|w|, |x|) g(theta) + bias for every filter w and patch x; Eq. 4.3 with 3.1's bias.

    A zero patch or a zero filter gives 0 (before the bias), with finite gradients. Patch norms
    are in float32 or wider, so lengths between 1e-18 and 1e18 are told apart from 0.

    Args:
        x: (B, C_in, ...) or (C_in, ...) with one to three spatial dimensions.
        weight: (C, C_in / groups, ...), the filters; only their directions count unless weighted.
        bias: (C,), added in the end.
        stride: as in torch's convolutions.
        padding: as in torch's convolutions, "same" and "valid" included.
        dilation: as in torch's convolutions.
        groups: as in torch's convolutions.
        magnitude: h by name, an object or a callable of |x|; see :func:`magnitude`.
        angular: g by name, an object or a callable of cos(theta); see :func:`angular`.
        alpha: first constant of h.
        beta: second constant of h. Default: as in :func:`magnitude`.
        radius: rho of h, a number or one per filter (C,).
        mean_norm: E|x| of Eq. C.1-C.3, which multiplies the radius for |x|, or a function that
            computes it from the norms of all patches.
        k: curvature of the sigmoid activation, a number or one per filter (C,). Default: 0.5.
        weighted: how |w| enters h, see the table above. Default: not at all.
        scale: (C,), a factor per filter, the beta of SphereNorm (3.2.5).
        norm: |x| of every patch, (B, groups, ...), if :func:`patch_norm` was called already.

    Returns:
        (B, C, ...) or (C, ...), shaped as by torch's convolution of the same arguments.

    Raises:
        ValueError: if shapes do not fit, a name is unknown or a constant is out of range.
        TypeError: if x is not floating-point, or not of the type of weight.

    >>> x, w = torch.randn(2, 3, 8, 8), torch.randn(5, 3, 3, 3)
    >>> f = decoupled_conv2d(x, w, padding=1)  # cosines
    >>> f.shape, bool(f.abs().max() <= 1)
    (torch.Size([2, 5, 8, 8]), True)
    >>> torch.allclose(f, decoupled_conv2d(0.001 * x, 10 * w, padding=1), atol=1e-5)
    True
    """
    _check_types(x, weight)
    batched = _check_shapes(x, weight, groups)
    x, geometry = resolve_geometry(
        x, tuple(plain_sizes(weight)[2:]), stride, padding, dilation, groups
    )
    out = _decoupled(
        x if batched else x[None],
        weight,
        bias,
        _settings(magnitude, angular, alpha, beta, radius, k, weighted, geometry),
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
    # The arguments and results of the general form; its examples stand there alone.
    arguments = inspect.getdoc(conv).partition("Args:")[2].partition(">>>")[0]  # type: ignore[union-attr]
    checked.__doc__ = (
        f":func:`decoupled_conv` with a weight of {spatial} spatial dimensions.\n\nArgs:{arguments}"
    )
    return checked


decoupled_conv1d = _only(1, decoupled_conv)
decoupled_conv2d = _only(2, decoupled_conv)
decoupled_conv3d = _only(3, decoupled_conv)


def decoupled_linear(
    x: Tensor,
    weight: Tensor,
    bias: Tensor | None = None,
    magnitude: Magnitude = "sphere",
    angular: Angular = "cosine",
    *,
    alpha: float = 1.0,
    beta: float | None = None,
    radius: float | Tensor = 1.0,
    mean_norm: MeanNorm = 1.0,
    k: float | Tensor | None = None,
    weighted: Weighted | None = None,
    scale: Tensor | None = None,
    norm: Tensor | None = None,
) -> Tensor:
    """scale h(|w|, |x|) g(theta) + bias for every row w of weight and vector x (3.2.4).

    Args:
        x: (..., C_in).
        weight: (C, C_in), a neuron per row.
        bias: (C,), added in the end.
        magnitude: as in :func:`decoupled_conv`.
        angular: as in :func:`decoupled_conv`.
        alpha: as in :func:`decoupled_conv`.
        beta: as in :func:`decoupled_conv`.
        radius: as in :func:`decoupled_conv`.
        mean_norm: as in :func:`decoupled_conv`.
        k: as in :func:`decoupled_conv`.
        weighted: as in :func:`decoupled_conv`.
        scale: as in :func:`decoupled_conv`.
        norm: |x| of every vector, (..., 1), if it is known already.

    Returns:
        (..., C).

    >>> decoupled_linear(torch.tensor([[3.0, 4.0]]), torch.eye(2))
    tensor([[0.6000, 0.8000]])
    """
    if weight.ndim != 2 or x.ndim < 1 or plain_sizes(x)[-1] != plain_sizes(weight)[1]:
        raise ValueError(
            f"decoupled_linear expects x (..., C_in) and weight (C, C_in), got {tuple(x.shape)} "
            f"and {tuple(weight.shape)}"
        )
    _check_types(x, weight)
    out = _decoupled(
        x.reshape(-1, x.shape[-1]),
        weight,
        bias,
        _settings(magnitude, angular, alpha, beta, radius, k, weighted, None),
        radius,
        mean_norm,
        k,
        weighted,
        scale,
        None if norm is None else norm.reshape(-1, 1),
    )
    return out.reshape(*x.shape[:-1], weight.shape[0])


def _settings(
    magnitude: Magnitude,
    angular: Angular,
    alpha: float,
    beta: float | None,
    radius: float | Tensor,
    k: float | Tensor | None,
    weighted: Weighted | None,
    geometry: Geometry | None,
) -> OperatorSettings:
    # Layers hand over the formulas themselves, which need not be looked up again.
    h = magnitude if isinstance(magnitude, MagnitudeFunction) else magnitude_function(magnitude)
    g = angular if isinstance(angular, AngularFunction) else angular_function(angular)
    beta = h.check(alpha, beta, radius)
    g.check(k)
    if weighted is not None:
        check_weighted(weighted, h)
    number = g.default_k if k is None or isinstance(k, Tensor) else k
    return OperatorSettings(h, g, alpha, beta, geometry, number)


def _decoupled(
    x: Tensor,
    weight: Tensor,
    bias: Tensor | None,
    op: OperatorSettings,
    radius: float | Tensor,
    mean_norm: MeanNorm,
    k: float | Tensor | None,
    weighted: Weighted | None,
    scale: Tensor | None,
    norm: Tensor | None,
) -> Tensor:
    numbers = {"radius": radius, "k": k, "mean_norm": mean_norm}
    check_numbers(weight, {"bias": bias, "scale": scale}, numbers)
    dtype = autocast_type(x)
    if dtype is not None:
        with torch.autocast(x.device.type, enabled=False):
            return _decoupled(
                x.to(dtype), weight, bias, op, radius, mean_norm, k, weighted, scale, norm
            )
    if op.magnitude.is_proportional and op.angular.is_cosine:
        rows = weight.flatten(1)
        # |x| cos(theta) = (w / |w|)^T x: a plain convolution. With |w| brought back it is
        # nn.Conv2d to the last bit, which w / |w| * |w| would not be.
        kernel = rows if weighted == "linear" else unit_rows(rows)
        factor = op.alpha if scale is None else op.alpha * scale[:, None]
        kernel = kernel if isinstance(factor, float) and factor == 1 else kernel * factor
        bias = None if bias is None else bias.to(x.dtype)
        return correlate(x, kernel.view_as(weight).to(x.dtype), op.geometry, bias)
    if weighted is not None:
        wide = torch.promote_types(weight.dtype, torch.float32)
        length = row_norm(weight.flatten(1).to(wide))
        radius, scale = _weigh(length, op, radius, weighted, scale)
    wide = torch.promote_types(x.dtype, torch.float32)
    rho = placed(radius, x, wide) if op.magnitude.has_radius else one(x, wide)
    learned_k = placed(k, x, wide) if isinstance(k, Tensor) and op.k is not None else None
    own_norm = norm is None
    if norm is None and not callable(mean_norm):
        relative = scaled(rho, mean_norm) if op.magnitude.has_radius else None
        out = native_layer(x, weight, op, relative, learned_k, scale, bias)
        if out is not None:
            return out
    kernel = unit_rows(weight.flatten(1)).view_as(weight).to(x.dtype)
    if norm is None:
        inputs = Inputs(x, x, kernel, rho, learned_k, scale, bias)
        layer = accelerated_layer(inputs, mean_norm, op)
        if layer is not None:
            return layer
        x, norm = with_norms(x, tuple(kernel.shape[2:]), op.geometry)
    else:
        _check_norm(norm, x, weight, op.geometry)
    mean = mean_norm(norm) if callable(mean_norm) else mean_norm
    rho = scaled(rho, mean) if op.magnitude.has_radius else rho
    inputs = Inputs(x, norm, kernel, rho, learned_k, scale, bias)
    return apply_operator(inputs, op, own_norm)


def _check_norm(norm: Tensor, x: Tensor, weight: Tensor, geometry: Geometry | None) -> None:
    """Refuse norms that are not those of the patches of x."""
    groups = 1 if geometry is None else geometry.groups
    outputs: tuple[int, ...] = ()
    if geometry is not None:
        axes = zip(plain_sizes(x)[2:], plain_sizes(weight)[2:], *geometry[:3], strict=True)
        outputs = tuple((n + 2 * p - d * (k - 1) - 1) // s + 1 for n, k, s, p, d in axes)
    expected = (plain_sizes(x)[0], groups, *outputs)
    if plain_sizes(norm) != expected:
        raise ValueError(
            f"expected a norm of every patch {expected}, as `patch_norm` gives them with the same "
            f"geometry; got {tuple(plain_sizes(norm))}"
        )


def _weigh(
    length: Tensor,
    op: OperatorSettings,
    radius: float | Tensor,
    weighted: Weighted,
    scale: Tensor | None,
) -> tuple[float | Tensor, Tensor | None]:
    """|w| as a factor of each filter and a change of its radius, so that h need only know |x|."""
    factor: Tensor | None = None
    if weighted == "linear":
        factor = length
    elif weighted == "nonlinear":
        # h(|w| n; rho) = |w|^p h(n; rho / |w|) with the degree p of h.
        radius = radius / length.clamp_min(torch.finfo(length.dtype).tiny ** 0.5)
        factor = None if op.magnitude.degree == 0 else length**op.magnitude.degree
    elif weighted == "nonlinear_separate":
        factor = op.magnitude.value(length, *op.constants, radius) / op.alpha
    else:
        raise _unknown_weighting(weighted)
    if factor is None or scale is None:
        return radius, scale if factor is None else factor
    return radius, scale * factor


def check_weighted(weighted: str | None, h: MagnitudeFunction) -> None:
    """Refuse unknown weightings, and nonlinear ones of a magnitude that has no radius.

    Args:
        weighted: None, "linear", "nonlinear" or "nonlinear_separate".
        h: the formulas of the magnitude.

    Raises:
        ValueError: if they do not fit.
    """
    if weighted is not None and weighted not in get_args(Weighted):
        raise _unknown_weighting(weighted)
    if weighted not in (None, "linear") and not h.has_radius:
        raise ValueError(
            f"weighted={weighted!r} (Eq. 4.15, 4.16) needs a magnitude with a radius "
            f"({', '.join(names_with_radius())}); {h.name or h} has none, use weighted='linear'"
        )


def _unknown_weighting(weighted: str) -> ValueError:
    return unknown_name("weighting", weighted, get_args(Weighted))


def _check_types(x: Tensor, weight: Tensor) -> None:
    if not x.is_floating_point():
        raise TypeError(
            f"decoupled operators expect floating-point input, got {x.dtype}; convert it, for "
            f"pixels with x.float() / 255"
        )
    if x.dtype != weight.dtype and autocast_type(x) is None:
        raise TypeError(
            f"input and weight should have one type, got {x.dtype} and {weight.dtype}; convert "
            f"the input with x.to({weight.dtype}), or the layer, or use torch.autocast"
        )


def _check_shapes(x: Tensor, weight: Tensor, groups: int) -> bool:
    spatial, shape, filters = weight.ndim - 2, plain_sizes(x), plain_sizes(weight)
    if not 1 <= spatial <= 3:
        raise ValueError(
            f"decoupled_conv expects weight (C, C_in / groups, ...) with one to three spatial "
            f"dimensions, got {tuple(filters)}"
        )
    channels = filters[1] * groups
    if x.ndim not in (weight.ndim, weight.ndim - 1) or shape[-spatial - 1] != channels:
        axes = ", ".join("LDHW"[:1] if spatial == 1 else "DHW"[-spatial:])
        raise ValueError(
            f"decoupled_conv expects input (B, {channels}, {axes}) for weight "
            f"{tuple(filters)} and groups={groups}, got {tuple(shape)}"
        )
    if groups < 1 or filters[0] % groups:
        raise ValueError(f"expected filters in equal groups, got {filters[0]} in {groups}")
    return x.ndim == weight.ndim
