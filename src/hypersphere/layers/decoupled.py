"""Decoupled layers: torch's convolution and linear layers with another operator in their place.

Each one is its torch twin (same arguments, same `weight` and `bias`) with an Operator beside it:
f(w, x) = h(|w|, |x|) g(theta), Eq. 4.3. The bias is off by default, as in the dissertation. State
dicts of the twin load as they are: what the operator learns (k, radius, rescaling) keeps its start.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, TypeAlias

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from ..functional.decoupled import Weighted, decoupled_conv, decoupled_linear
from .angular import Angular
from .magnitude import Magnitude, make_magnitude
from .operator import Operator, Rescale

__all__ = [
    "DecoupledConv1d",
    "DecoupledConv2d",
    "DecoupledConv3d",
    "DecoupledLayer",
    "DecoupledLinear",
]

Padding: TypeAlias = str | int | tuple[int, ...]
Size: TypeAlias = int | tuple[int, ...]
AngularLike: TypeAlias = str | Angular | Callable[[Tensor], Tensor]
RescaleLike: TypeAlias = bool | Sequence[float] | Rescale


class DecoupledConv1d(nn.Conv1d):
    """Decoupled convolution of x: (B, C_in, L); arguments as in :class:`DecoupledConv2d`."""

    operator: Operator
    preset: str | None = None  # the magnitude that a subclass stands for

    def __init__(
        self,
        in_channels: int,
        out_channels: int,
        kernel_size: Size,
        stride: Size = 1,
        padding: Padding = 0,
        dilation: Size = 1,
        groups: int = 1,
        bias: bool = False,
        padding_mode: str = "zeros",
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
        *,
        magnitude: str | Magnitude | None = None,
        angular: AngularLike = "cosine",
        weighted: Weighted | None = None,
        rescale: RescaleLike = False,
    ) -> None:
        super().__init__(
            in_channels,
            out_channels,
            kernel_size,  # type: ignore[arg-type]
            stride,  # type: ignore[arg-type]
            padding,  # type: ignore[arg-type]
            dilation,  # type: ignore[arg-type]
            groups,
            bias,
            padding_mode,  # type: ignore[arg-type]
            device,
            dtype,
        )
        _attach(self, out_channels, magnitude, angular, weighted, rescale, device, dtype)

    def forward(self, x: Tensor) -> Tensor:
        return _convolve(self, x)

    @property
    def bounded(self) -> bool:
        """Whether |f(w, x)| stays below a constant for all w and x (4.3.2)."""
        return self.operator.bounded

    @property
    def smooth(self) -> bool:
        """Whether the magnitude is differentiable for all |x| > 0 (4.3.2)."""
        return self.operator.smooth

    @property
    def radius(self) -> Tensor | float:
        """The operator radius in units of |x|, one a filter if learned; 0 for none (4.3.2)."""
        return self.operator.radius


class DecoupledConv2d(nn.Conv2d):
    """f(w, x) = h(|w|, |x|) g(theta) for every filter w and patch x, Eq. 4.3.

    The arguments up to dtype are nn.Conv2d's. The operator is
    magnitude: "sphere" (Eq. 4.4, the default), "ball", "tanh", "linear", "segmented", "log",
    "mixed" (4.5-4.10), or an instance with other constants;
    angular: "linear", "cosine", "sigmoid", "square_cosine" (4.11-4.14), an instance, or any
    callable of cos(theta);
    weighted: None, "linear" (4.3.5), "nonlinear" (4.15), "nonlinear_separate" (4.16);
    rescale: False, True (learned), a pair of fixed numbers (beta, gamma), or a Rescale (3.2.5).

    x: (B, C_in, H, W) or (C_in, H, W); the result is shaped as nn.Conv2d's.

    >>> layer = DecoupledConv2d(3, 8, 3, padding=1, angular="linear")
    >>> x = torch.rand(2, 3, 16, 16)
    >>> layer(x).shape, torch.allclose(layer(x), layer(0.001 * x), atol=1e-5)
    (torch.Size([2, 8, 16, 16]), True)
    >>> layer.bounded, layer.smooth, layer.radius
    (True, True, 0.0)
    """

    operator: Operator
    preset: str | None = None  # the magnitude that a subclass stands for

    def __init__(
        self,
        in_channels: int,
        out_channels: int,
        kernel_size: Size,
        stride: Size = 1,
        padding: Padding = 0,
        dilation: Size = 1,
        groups: int = 1,
        bias: bool = False,
        padding_mode: str = "zeros",
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
        *,
        magnitude: str | Magnitude | None = None,
        angular: AngularLike = "cosine",
        weighted: Weighted | None = None,
        rescale: RescaleLike = False,
    ) -> None:
        super().__init__(
            in_channels,
            out_channels,
            kernel_size,  # type: ignore[arg-type]
            stride,  # type: ignore[arg-type]
            padding,  # type: ignore[arg-type]
            dilation,  # type: ignore[arg-type]
            groups,
            bias,
            padding_mode,  # type: ignore[arg-type]
            device,
            dtype,
        )
        _attach(self, out_channels, magnitude, angular, weighted, rescale, device, dtype)

    def forward(self, x: Tensor) -> Tensor:
        return _convolve(self, x)

    @property
    def bounded(self) -> bool:
        """Whether |f(w, x)| stays below a constant for all w and x (4.3.2)."""
        return self.operator.bounded

    @property
    def smooth(self) -> bool:
        """Whether the magnitude is differentiable for all |x| > 0 (4.3.2)."""
        return self.operator.smooth

    @property
    def radius(self) -> Tensor | float:
        """The operator radius in units of |x|, one a filter if learned; 0 for none (4.3.2)."""
        return self.operator.radius


class DecoupledConv3d(nn.Conv3d):
    """Decoupled convolution of x: (B, C_in, D, H, W); arguments as in :class:`DecoupledConv2d`."""

    operator: Operator
    preset: str | None = None  # the magnitude that a subclass stands for

    def __init__(
        self,
        in_channels: int,
        out_channels: int,
        kernel_size: Size,
        stride: Size = 1,
        padding: Padding = 0,
        dilation: Size = 1,
        groups: int = 1,
        bias: bool = False,
        padding_mode: str = "zeros",
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
        *,
        magnitude: str | Magnitude | None = None,
        angular: AngularLike = "cosine",
        weighted: Weighted | None = None,
        rescale: RescaleLike = False,
    ) -> None:
        super().__init__(
            in_channels,
            out_channels,
            kernel_size,  # type: ignore[arg-type]
            stride,  # type: ignore[arg-type]
            padding,  # type: ignore[arg-type]
            dilation,  # type: ignore[arg-type]
            groups,
            bias,
            padding_mode,  # type: ignore[arg-type]
            device,
            dtype,
        )
        _attach(self, out_channels, magnitude, angular, weighted, rescale, device, dtype)

    def forward(self, x: Tensor) -> Tensor:
        return _convolve(self, x)

    @property
    def bounded(self) -> bool:
        """Whether |f(w, x)| stays below a constant for all w and x (4.3.2)."""
        return self.operator.bounded

    @property
    def smooth(self) -> bool:
        """Whether the magnitude is differentiable for all |x| > 0 (4.3.2)."""
        return self.operator.smooth

    @property
    def radius(self) -> Tensor | float:
        """The operator radius in units of |x|, one a filter if learned; 0 for none (4.3.2)."""
        return self.operator.radius


class DecoupledLinear(nn.Linear):
    """Decoupled linear layer (3.2.4); the operator is that of :class:`DecoupledConv2d`.

    x: (..., C_in); the result is (..., C_out).

    >>> layer = DecoupledLinear(4, 3, magnitude="tanh")
    >>> layer(torch.randn(2, 5, 4)).shape
    torch.Size([2, 5, 3])
    """

    operator: Operator
    preset: str | None = None

    def __init__(
        self,
        in_features: int,
        out_features: int,
        bias: bool = False,
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
        *,
        magnitude: str | Magnitude | None = None,
        angular: AngularLike = "cosine",
        weighted: Weighted | None = None,
        rescale: RescaleLike = False,
    ) -> None:
        super().__init__(in_features, out_features, bias, device, dtype)
        _attach(self, out_features, magnitude, angular, weighted, rescale, device, dtype)

    def forward(self, x: Tensor) -> Tensor:
        if x.ndim < 1 or x.shape[-1] != self.in_features:
            raise ValueError(
                f"{type(self).__name__} expects input (..., {self.in_features}); got "
                f"{tuple(x.shape)}: in_features is {self.in_features}"
            )
        return decoupled_linear(x, self.weight, **_settings(self.operator, self.bias))

    @property
    def bounded(self) -> bool:
        """Whether |f(w, x)| stays below a constant for all w and x (4.3.2)."""
        return self.operator.bounded

    @property
    def smooth(self) -> bool:
        """Whether the magnitude is differentiable for all |x| > 0 (4.3.2)."""
        return self.operator.smooth

    @property
    def radius(self) -> Tensor | float:
        """The operator radius in units of |x|, one a filter if learned; 0 for none (4.3.2)."""
        return self.operator.radius


DecoupledConv: TypeAlias = DecoupledConv1d | DecoupledConv2d | DecoupledConv3d
DecoupledLayer: TypeAlias = DecoupledConv | DecoupledLinear


def _attach(
    layer: DecoupledLayer,
    filters: int,
    magnitude: str | Magnitude | None,
    angular: AngularLike,
    weighted: Weighted | None,
    rescale: RescaleLike,
    device: torch.device | str | None,
    dtype: torch.dtype | None,
) -> None:
    preset = type(layer).preset
    chosen = make_magnitude(magnitude if magnitude is not None else preset or "sphere")
    if preset is not None and chosen.kind != preset:
        raise ValueError(
            f"{type(layer).__name__} stands for the {preset} magnitude, got {chosen.kind}; for "
            f"that one use {type(layer).__mro__[1].__name__}(..., magnitude={chosen.kind!r})"
        )
    operator = Operator(filters, chosen, angular, weighted, rescale)
    layer.operator = operator.to(device=device, dtype=dtype)
    layer.register_load_state_dict_pre_hook(_accept_plain_state)


def _accept_plain_state(
    layer: DecoupledLayer, state: dict[str, Any], prefix: str, *_: object
) -> None:
    """Let the state dict of a plain twin load strictly: it has no word about the operator."""
    if not any(key.startswith(f"{prefix}operator.") for key in state):
        for key, value in layer.operator.state_dict().items():
            state[f"{prefix}operator.{key}"] = value


def _convolve(layer: DecoupledConv, x: Tensor) -> Tensor:
    spatial = len(layer.kernel_size)
    if x.ndim not in (spatial + 1, spatial + 2) or x.shape[-spatial - 1] != layer.in_channels:
        sizes = ", ".join({1: "L", 2: "HW", 3: "DHW"}[spatial])
        raise ValueError(
            f"{type(layer).__name__} expects input (B, {layer.in_channels}, {sizes}); got "
            f"{tuple(x.shape)}: in_channels is {layer.in_channels}"
        )
    padding: Padding = layer.padding
    if layer.padding_mode != "zeros":  # these pad first, then measure
        x = F.pad(x, layer._reversed_padding_repeated_twice, mode=layer.padding_mode)
        padding = 0
    geometry = (layer.stride, padding, layer.dilation, layer.groups)
    settings = _settings(layer.operator, layer.bias)
    bias = settings.pop("bias")
    return decoupled_conv(x, layer.weight, bias, *geometry, **settings)


def _settings(op: Operator, bias: Tensor | None) -> dict[str, Any]:
    """The operator's state as arguments of the functional form."""
    h, scale = op.magnitude, None
    if op.rescale is not None:
        scale = op.rescale.beta
        bias = op.rescale.gamma if bias is None else scale * bias + op.rescale.gamma
    rho, mean_norm = h.rho_and_mean
    return {
        "bias": bias,
        "magnitude": h.kind,
        "angular": op.angular.kind,
        "alpha": h.alpha,
        "beta": h.beta,
        "radius": rho,
        "mean_norm": mean_norm,
        "k": op.angular.k(),
        "weighted": op.weighted,
        "scale": scale,
    }
