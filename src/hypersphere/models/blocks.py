"""What every network is made of: the style of its layers, and the checks they share."""

from __future__ import annotations

import functools
import inspect
from collections import OrderedDict
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from ..functional.angular import angular_function
from ..registry import names, unknown_name

SHARES = ("filter", "layer", "network")
NORMS = ("batch", "layer", "none")
ACTIVATIONS = ("relu", "prelu", "leaky_relu", "none")
_NORM_LAYERS = {0: nn.BatchNorm1d, 1: nn.BatchNorm1d, 2: nn.BatchNorm2d}


def operators() -> tuple[str, ...]:
    """The names that `Style` takes as operator: "plain", and every magnitude."""
    return ("plain", *names("magnitude"))


def angulars() -> tuple[str, ...]:
    """The names that `Style` takes as angular activation."""
    return tuple(names("angular"))


@dataclass(frozen=True)
class Style:
    """How the layers of a network are made; the shape of the network is not its business.

    Args:
        operator: None or "plain" for the inner product; a magnitude by name ("sphere" "ball" "tanh"
            "linear" "segmented" "log" "mixed") or an instance of one (Eq. 4.4-4.10), copied for
            each layer; a layer class such as ``SphereConv2d``, used wherever it is a subclass of
            the plain layer; or a function ``make(plain_class, *arguments, **options)`` that returns
            the layer.
        angular: the angular activation g (Eq. 4.11-4.14) of decoupled layers: a name, an instance
            or a function of cos(theta).
        norm: "batch", "layer" (over all values of a sample) or "none".
        activation: "relu", "prelu", "leaky_relu" (slope 0.1) or "none".
        k: curvature of the sigmoid activation. Default: that of the layers.
        learn_k: learn the curvature per "filter", "layer" or "network". Default: fixed.
        weighted: "linear", "nonlinear" or "nonlinear_separate" for weighted decoupled layers
            (Eq. 4.15, 4.16). Default: unweighted.
        rescale: True learns a factor and a summand for each filter of decoupled layers, from 1 and
            0 (Sec. 3.2.5); two numbers fix them, as (30, 0) for features of about unit variance.

    >>> Style(activation="prelu").unit(2, 3, 8, kernel_size=3)
    Sequential(
      (conv): Conv2d(3, 8, kernel_size=(3, 3), stride=(1, 1), padding=(1, 1), bias=False)
      (norm): BatchNorm2d(8, ...)
      (act): PReLU(num_parameters=8)
    )
    """

    operator: Any = None
    angular: Any = "cosine"
    norm: str = "batch"
    activation: str = "relu"
    k: float | None = None
    learn_k: str | None = None
    weighted: str | None = None
    rescale: bool | Sequence[float] = False

    def __post_init__(self) -> None:
        if isinstance(self.operator, str) and self.operator not in operators():
            raise unknown_name("operator", self.operator, operators())
        if isinstance(self.angular, str) and self.angular not in angulars():
            raise unknown_name("angular activation", self.angular, angulars())
        if self.norm not in NORMS:
            raise unknown_name("norm", self.norm, NORMS)
        if self.activation not in ACTIVATIONS:
            raise unknown_name("activation", self.activation, ACTIVATIONS)
        if self.learn_k is not None and self.learn_k not in SHARES:
            raise unknown_name("learn_k", self.learn_k, SHARES)
        if (self.k is not None or self.learn_k) and not self._has_k():
            raise ValueError(
                "k and learn_k belong to angular='sigmoid' (Eq. 4.13); "
                f"got angular={self.angular!r}"
            )

    def _has_k(self) -> bool:
        named = isinstance(self.angular, str)
        return named and angular_function(self.angular).default_k is not None

    @functools.cached_property
    def _angular(self) -> Any:
        # Made once per network: a curvature shared by all layers is the parameter of one object.
        if self.k is None and self.learn_k is None:
            return self.angular
        from ..layers import make_angular

        given = {} if self.k is None else {"k": self.k}
        share: Any = self.learn_k or "layer"
        return make_angular(self.angular, **given, learnable=bool(self.learn_k), share=share)

    @property
    def plain(self) -> bool:
        """Whether the layers are torch's own."""
        return self.operator is None or (
            isinstance(self.operator, str) and self.operator == "plain"
        )

    def make(self, layer: type[nn.Module], *arguments: Any, **options: Any) -> nn.Module:
        """The layer of this style in place of a plain one.

        Args:
            layer: the plain class: ``nn.Conv1d``, ``nn.Conv2d`` or ``nn.Linear``.
            arguments: its positional arguments.
            options: its keyword arguments.

        Returns:
            The layer.
        """
        operator = self.operator
        if self.plain:
            return layer(*arguments, **options)
        made = operator.func if isinstance(operator, functools.partial) else operator
        if isinstance(made, type):
            return (operator if issubclass(made, layer) else layer)(*arguments, **options)
        if inspect.isroutine(made):
            return operator(layer, *arguments, **options)
        from .. import layers  # only decoupled networks need them

        return getattr(layers, "Decoupled" + layer.__name__)(
            *arguments,
            **options,
            magnitude=operator,  # the layers copy what they must not share
            angular=self._angular,
            weighted=self.weighted,
            rescale=self.rescale,
        )

    def conv(
        self,
        dims: int,
        inputs: int,
        outputs: int,
        kernel_size: int = 1,
        stride: int = 1,
        bias: bool = False,
    ) -> nn.Module:
        """A convolution in 1 or 2 dimensions, padded so that stride 1 keeps the size.

        Args:
            dims: 1 or 2.
            inputs: channels that enter.
            outputs: filters.
            kernel_size: side of the kernel.
            stride: step of the kernel.
            bias: whether it has a bias.

        Returns:
            The layer.
        """
        layer = nn.Conv1d if dims == 1 else nn.Conv2d
        return self.make(
            layer,
            inputs,
            outputs,
            kernel_size,
            stride=stride,
            padding=kernel_size // 2,
            bias=bias,
        )

    def linear(self, inputs: int, outputs: int, bias: bool = False) -> nn.Module:
        """A fully connected layer.

        Args:
            inputs: features that enter.
            outputs: neurons.
            bias: whether it has a bias.

        Returns:
            The layer.
        """
        return self.make(nn.Linear, inputs, outputs, bias=bias)

    def normalization(self, channels: int, dims: int = 2) -> nn.Module:
        """The normalization of this style.

        Args:
            channels: channels of its input.
            dims: 0 for vectors, 1 for sequences, 2 for images.

        Returns:
            The layer; the identity for norm "none".
        """
        if self.norm == "layer":
            return nn.GroupNorm(1, channels)  # over all values of a sample, a gain per channel
        return nn.Identity() if self.norm == "none" else _NORM_LAYERS[dims](channels)

    def activate(self, channels: int) -> nn.Module:
        """The activation of this style.

        Args:
            channels: channels of its input, each with its own slope for "prelu".

        Returns:
            The layer; the identity for activation "none".
        """
        if self.activation == "prelu":
            return nn.PReLU(channels)
        if self.activation == "leaky_relu":
            return nn.LeakyReLU(0.1)
        return nn.ReLU() if self.activation == "relu" else nn.Identity()

    def unit(
        self,
        dims: int,
        inputs: int,
        outputs: int,
        kernel_size: int = 1,
        stride: int = 1,
        activate: bool = True,
        normalize: bool = True,
        bias: bool = False,
    ) -> nn.Sequential:
        """A layer, then norm, then activation.

        Args:
            dims: 1 or 2 for a convolution, 0 for a fully connected layer.
            inputs: channels that enter.
            outputs: filters or neurons.
            kernel_size: side of the kernel of a convolution.
            stride: step of the kernel of a convolution.
            activate: whether the activation follows.
            normalize: whether the normalization follows.
            bias: whether the layer has a bias.

        Returns:
            The layers in their order, named ``conv`` or ``linear``, ``norm`` and ``act``.
        """
        layer = (
            self.linear(inputs, outputs, bias)
            if dims == 0
            else self.conv(dims, inputs, outputs, kernel_size, stride, bias)
        )
        parts: OrderedDict[str, nn.Module] = OrderedDict()
        parts["linear" if dims == 0 else "conv"] = layer
        if normalize and self.norm != "none":
            parts["norm"] = self.normalization(outputs, dims)
        if activate and self.activation != "none":
            parts["act"] = self.activate(outputs)
        return nn.Sequential(parts)


DEFAULT = Style()
UNNORMALIZED = Style(norm="none")


class Backbone(nn.Module):
    """A network that returns features; the head is separate.

    A subclass sets ``out_features``, the width of the features, and ``input_shape``, the shape of
    one sample. Samples (B, *input_shape) -> features (B, out_features).
    """

    out_features: int
    input_shape: tuple[int, ...]

    def example_inputs(self, batch: int = 2) -> tuple[Tensor, ...]:
        """Inputs of the right shapes, for summaries and exports.

        Args:
            batch: number of samples.

        Returns:
            The arguments of ``forward``: here one tensor of zeros (batch, *input_shape).
        """
        device = next(self.parameters()).device
        return (torch.zeros(batch, *self.input_shape, device=device),)


def embedding(
    style: Style,
    inputs: int,
    outputs: int | None,
    normalize: bool,
    bias: bool = False,
    relu: bool = False,
) -> nn.Module:
    """The last fully connected layer: no activation, so features may point anywhere (A.1).

    ``relu`` puts one there all the same, as standard CNNs have it: features of one orthant.
    It is a hidden layer (the classes are the head's), which it says to regularizers and rotations.
    """
    if outputs is None:
        return nn.ReLU() if relu else nn.Identity()
    layer = style.unit(0, inputs, outputs, activate=False, normalize=normalize, bias=bias)
    mark(layer[0], "hidden")
    if relu:
        layer.append(nn.ReLU())
    return layer


def mark(layer: nn.Module, role: str) -> None:
    """Tell regularizers and rotations what the neurons of a layer are: "hidden" or "output"."""
    layer.neuron_role = role  # type: ignore[assignment]


def initialize_weights(model: nn.Module, weight: Callable[[Tensor], object] | None = None) -> None:
    """He et al. [38], N(0, 2 / fan_in), on every layer; biases 0 (Appendix C.1, Sec. 2.2.7)."""
    for module in model.modules():
        if isinstance(module, (nn.Conv1d, nn.Conv2d, nn.ConvTranspose2d, nn.Linear)):
            if weight is None:
                nn.init.kaiming_normal_(module.weight, nonlinearity="relu")
            else:
                weight(module.weight)
            if module.bias is not None:
                nn.init.zeros_(module.bias)


def size_pair(image_size: int | Sequence[int]) -> tuple[int, int]:
    """(height, width) from one number or two."""
    pair = (image_size, image_size) if isinstance(image_size, int) else tuple(image_size)
    if len(pair) != 2 or min(pair) < 1:
        raise ValueError(
            f"image_size must be a number or (height, width), both positive; got {image_size}"
        )
    return pair


def halve(size: tuple[int, int], ceil_mode: bool = True) -> tuple[int, int]:
    """The size after a stride of 2: rounded up, as in Caffe and TensorFlow, or down."""
    height, width = (n + 1 if ceil_mode else n for n in size)
    return height // 2, width // 2


def same_length(widths: Sequence[int], depths: Sequence[int]) -> None:
    """Raise unless ``widths`` has one number per stage."""
    if len(widths) != len(depths):
        raise ValueError(
            f"widths gives one number of filters per stage; this network has {len(depths)} stages, "
            f"got widths={tuple(widths)}"
        )


def check_images(x: Tensor, channels: int, size: tuple[int, int] | None = None) -> None:
    """Images (B, channels, H, W); `size` is given where a fully connected layer fixes it."""
    fits = x.dim() == 4 and x.shape[1] == channels and (size is None or x.shape[2:] == size)
    if not fits:
        height, width = size or ("H", "W")
        raise ValueError(
            f"this network expects images (B, {channels}, {height}, {width}); "
            f"got {tuple(x.shape)}: set in_channels and image_size when creating it"
        )
