"""Decoupled layers: torch's convolution and linear layers with another operator in their place.

Each one is its torch twin (same arguments, same `weight` and `bias`) with an Operator beside it:
f(w, x) = h(|w|, |x|) g(theta), Eq. 4.3. The bias is off by default, as in the dissertation. State
dicts of the twin load as they are: what the operator learns (k, radius, rescaling) keeps its start.
"""

from __future__ import annotations

import sys
from typing import Any, TypeAlias

import torch
from torch import Tensor, fx, nn
from torch.nn import functional as F
from torch.nn.modules.conv import _ConvNd

from ..functional.decoupled import Weighted, decoupled_conv, decoupled_linear
from ..functional.plain_sizes import plain_sizes
from .angular import AngularLike
from .docstrings import with_arguments_of
from .magnitude import MagnitudeLike, make_magnitude
from .misplaced import refuse_misplaced
from .operator import Operator, RescaleLike
from .plain_state import accept_plain_state

__all__ = [
    "DecoupledConv1d",
    "DecoupledConv2d",
    "DecoupledConv3d",
    "DecoupledLayer",
    "DecoupledLinear",
]

Padding: TypeAlias = str | int | tuple[int, ...]
Size: TypeAlias = int | tuple[int, ...]


_FUSIONS = ("fuse_conv_bn_eval", "fuse_linear_bn_eval")


def _leaf_of_trace(layer: nn.Module, x: Any) -> Any:
    """The call of a layer as one node of torch.fx, as those of torch's own layers are."""
    # A layer that is traced alone has no name there: `_layer` is a way to itself.
    path = "_layer" if x.tracer.root is layer else x.tracer.path_of_module(layer)
    return x.tracer.create_proxy("call_module", path, (x,), {})


class DecoupledLayer(nn.Module):
    """What all decoupled layers have in common: an operator beside the weight of their twin."""

    operator: Operator
    preset: str | None = None  # the magnitude that a subclass stands for

    def __new__(cls, *args: Any, **kwargs: Any) -> DecoupledLayer:
        # Before Python itself refuses them, which does not know where they belong.
        refuse_misplaced(cls, kwargs)
        return super().__new__(cls)

    def attach(
        self,
        filters: int,
        magnitude: MagnitudeLike | None,
        angular: AngularLike,
        weighted: Weighted | None,
        rescale: RescaleLike,
        device: torch.device | str | None,
        dtype: torch.dtype | None,
    ) -> None:
        """Give the layer its operator.

        Args:
            filters: number of filters.
            magnitude: as in :class:`DecoupledConv2d`; None for the preset, or the sphere.
            angular: as in :class:`DecoupledConv2d`.
            weighted: as in :class:`DecoupledConv2d`.
            rescale: as in :class:`DecoupledConv2d`.
            device: where its parameters lie.
            dtype: the type of its parameters.
        """
        preset = type(self).preset
        chosen = make_magnitude(magnitude if magnitude is not None else preset or "sphere")
        if preset is not None and chosen.kind != preset:
            raise ValueError(
                f"{type(self).__name__} stands for the {preset} magnitude, got {chosen.kind}; for "
                f"that one use {type(self).__mro__[1].__name__}(..., magnitude={chosen.kind!r})"
            )
        operator = Operator(filters, chosen, angular, weighted, rescale)
        self.operator = operator.to(device=device, dtype=dtype)
        self.register_load_state_dict_pre_hook(accept_plain_state)  # type: ignore[no-untyped-call]

    def __setattr__(self, name: str, value: Any) -> None:
        # torch.nn.utils.fusion would multiply the factors of a BatchNorm into the weight, of which
        # the direction alone counts here: the outputs would be wrong, without a word.
        if name == "weight" and sys._getframe(1).f_code.co_name in _FUSIONS:
            raise TypeError(
                f"{type(self).__name__} cannot absorb a BatchNorm: its outputs do not change with "
                f"the length of its weight. Keep the BatchNorm, or give the layer rescale=True, "
                f"which has a factor and a summand per filter"
            )
        super().__setattr__(name, value)

    def __prepare_scriptable__(self) -> None:
        raise TypeError(
            f"torch.jit.script cannot read {type(self).__name__}, whose formulas are objects: use "
            f"torch.export or torch.compile, or torch.jit.trace with an example input"
        )

    @property
    def _layer(self) -> DecoupledLayer:
        """Itself, as the graph of torch.fx of this layer alone calls it."""
        return self

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
        """The operator radius in units of |x|, per filter if learned; 0 for none (4.3.2)."""
        return self.operator.radius


class _DecoupledConv(DecoupledLayer, _ConvNd):
    """The one constructor and forward of the convolutions; torch's twin comes next in line."""

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
        magnitude: MagnitudeLike | None = None,
        angular: AngularLike = "cosine",
        weighted: Weighted | None = None,
        rescale: RescaleLike = False,
    ) -> None:
        twin: Any = super()
        geometry = (kernel_size, stride, padding, dilation, groups)
        twin.__init__(in_channels, out_channels, *geometry, bias, padding_mode, device, dtype)
        self.attach(out_channels, magnitude, angular, weighted, rescale, device, dtype)

    def forward(self, x: Tensor) -> Tensor:
        # f(w, x) = h(|w|, |x|) g(theta) for every filter w and patch x, then scale f + bias.
        if isinstance(x, fx.Proxy):
            return _leaf_of_trace(self, x)
        x, geometry = self._padded(x)
        h, g, scale_and_bias = self.operator.h(), self.operator.g(), self.operator.affine(self.bias)
        return decoupled_conv(x, self.weight, **geometry, **h, **g, **scale_and_bias)

    def _padded(self, x: Tensor) -> tuple[Tensor, dict[str, Any]]:
        """The input, and how the kernel moves over it; modes other than zeros pad, then measure."""
        self._check(x)
        padding: Padding = self.padding
        if self.padding_mode != "zeros":
            x = F.pad(x, self._reversed_padding_repeated_twice, mode=self.padding_mode)
            padding = 0
        steps = {"stride": self.stride, "dilation": self.dilation, "groups": self.groups}
        return x, {"padding": padding, **steps}

    def _check(self, x: Tensor) -> None:
        spatial, shape = len(self.kernel_size), plain_sizes(x)
        if x.ndim not in (spatial + 1, spatial + 2) or shape[-spatial - 1] != self.in_channels:
            axes = ", ".join({1: "L", 2: "HW", 3: "DHW"}[spatial])
            raise ValueError(
                f"{type(self).__name__} expects input (B, {self.in_channels}, {axes}); got "
                f"{tuple(shape)}: in_channels is {self.in_channels}"
            )


class DecoupledConv2d(_DecoupledConv, nn.Conv2d):
    """f(w, x) = h(|w|, |x|) g(theta) for every filter w and patch x, Eq. 4.3.

    Input: (B, C_in, H, W) or (C_in, H, W); the output is shaped as nn.Conv2d's.

    Args:
        in_channels: as in nn.Conv2d.
        out_channels: as in nn.Conv2d, the number of filters.
        kernel_size: as in nn.Conv2d.
        stride: as in nn.Conv2d.
        padding: as in nn.Conv2d.
        dilation: as in nn.Conv2d.
        groups: as in nn.Conv2d.
        bias: as in nn.Conv2d, but off by default.
        padding_mode: as in nn.Conv2d.
        device: as in nn.Conv2d.
        dtype: as in nn.Conv2d.
        magnitude: h: "sphere" (Eq. 4.4, the default), "ball", "tanh", "linear", "segmented",
            "log", "mixed" (4.5-4.10), another registered name, or an instance with other constants.
        angular: g: "linear", "cosine", "sigmoid", "square_cosine" (4.11-4.14), another registered
            name, an instance, or any callable of cos(theta).
        weighted: None, "linear" (4.3.5), "nonlinear" (4.15), "nonlinear_separate" (4.16).
        rescale: False, True (learned), a pair of fixed numbers (beta, gamma), or a Rescale (3.2.5).

    >>> layer = DecoupledConv2d(3, 8, 3, padding=1, angular="linear")
    >>> x = torch.rand(2, 3, 16, 16)
    >>> layer(x).shape, torch.allclose(layer(x), layer(0.001 * x), atol=1e-5)
    (torch.Size([2, 8, 16, 16]), True)
    >>> layer.bounded, layer.smooth, layer.radius
    (True, True, 0.0)
    """


@with_arguments_of(DecoupledConv2d)
class DecoupledConv1d(_DecoupledConv, nn.Conv1d):
    """:class:`DecoupledConv2d` for inputs (B, C_in, L) or (C_in, L)."""


@with_arguments_of(DecoupledConv2d)
class DecoupledConv3d(_DecoupledConv, nn.Conv3d):
    """:class:`DecoupledConv2d` for inputs (B, C_in, D, H, W) or (C_in, D, H, W)."""


class DecoupledLinear(DecoupledLayer, nn.Linear):
    """Decoupled linear layer (3.2.4); the operator is that of :class:`DecoupledConv2d`.

    Input: (..., C_in); the output is (..., C_out).

    Args:
        in_features: as in nn.Linear.
        out_features: as in nn.Linear.
        bias: as in nn.Linear, but off by default.
        device: as in nn.Linear.
        dtype: as in nn.Linear.
        magnitude: as in :class:`DecoupledConv2d`.
        angular: as in :class:`DecoupledConv2d`.
        weighted: as in :class:`DecoupledConv2d`.
        rescale: as in :class:`DecoupledConv2d`.

    >>> layer = DecoupledLinear(4, 3, magnitude="tanh")
    >>> layer(torch.randn(2, 5, 4)).shape
    torch.Size([2, 5, 3])
    """

    def __init__(
        self,
        in_features: int,
        out_features: int,
        bias: bool = False,
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
        *,
        magnitude: MagnitudeLike | None = None,
        angular: AngularLike = "cosine",
        weighted: Weighted | None = None,
        rescale: RescaleLike = False,
    ) -> None:
        twin: Any = super()
        twin.__init__(in_features, out_features, bias, device, dtype)
        self.attach(out_features, magnitude, angular, weighted, rescale, device, dtype)

    def forward(self, x: Tensor) -> Tensor:
        # f(w, x) = h(|w|, |x|) g(theta) for every row w of the weight, then scale f + bias.
        if isinstance(x, fx.Proxy):
            return _leaf_of_trace(self, x)
        if x.ndim < 1 or plain_sizes(x)[-1] != self.in_features:
            raise ValueError(
                f"{type(self).__name__} expects input (..., {self.in_features}); got "
                f"{tuple(plain_sizes(x))}: in_features is {self.in_features}"
            )
        h, g, scale_and_bias = self.operator.h(), self.operator.g(), self.operator.affine(self.bias)
        return decoupled_linear(x, self.weight, **h, **g, **scale_and_bias)
